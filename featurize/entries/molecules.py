"""Reference molecules of components: seeded conformers and the orders of atoms that change nothing.

The only module that imports RDKit. A conformer is a function of the component, its number and
RDKit's version; where none can be made the ideal coordinates stand in, then those of the model.
"""

from __future__ import annotations

import importlib.metadata
import zlib
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.base.errors import InputError
from evofeed.protein.components import Component
from evofeed.protein.molecules import Molecule, element_numbers
from evofeed.protein.ruleset_section import RulesetSection

MAX_ORDERS: Final = 1000
"""Orders of atoms of one molecule, at most: the projects' limit."""
_MAX_ITERATIONS: Final = 30
_ORDERS: Final = {1: "SINGLE", 2: "DOUBLE", 3: "TRIPLE", 4: "QUADRUPLE", 5: "AROMATIC"}


class MadeMolecule(NamedTuple):
    """A molecule, and where its coordinates are from: `computed`, `ideal`, `model` or `none`."""

    molecule: Molecule
    origin: str


def component_molecule(component: Component, conformers: int) -> MadeMolecule:
    """The reference molecule of a component: its heavy atoms.

    Args:
        conformers: how many to make (K).
    """
    heavy = np.flatnonzero(component.heavy)
    columns = (component.element, component.charge, component.bond)
    graph = _graph(*columns, component.bond_order)
    position = _embedded(graph, heavy, component.code, conformers)
    mask, origin = np.ones(len(heavy), bool), "computed"
    if position is None:
        origin, position, mask = "none", np.zeros([1, len(heavy), 3]), np.zeros(len(heavy), bool)
        for name, known in (("model", component.model), ("ideal", component.ideal)):
            there = np.isfinite(known[heavy]).all(1)
            if there.any():
                origin, mask = name, there
                position = np.where(there[:, None], known[heavy], 0)[None]
    return MadeMolecule(_molecule(graph, heavy, component.name, *columns, position, mask), origin)


def annotated_molecule(path: str, *, hidden: bool) -> Molecule:
    """The molecule of an SDF file of OpenFold3's, with the conformer in it.

    Args:
        hidden: whether it is shown without coordinates, as one that would leak.

    Raises:
        InputError: the file is no such one.
    """
    chem = rdkit()
    try:
        graph = next(chem.SDMolSupplier(path, sanitize=False, removeHs=False))
        chem.SanitizeMol(graph, catchErrors=True)
        position = np.array(graph.GetConformer().GetPositions())
        names = np.array(graph.GetProp("atom_annot_atom_name").split())
        used = np.array(graph.GetProp("atom_annot_used_atom_mask").split()) == "True"
        atoms = list(graph.GetAtoms())
        if not len(position) == len(names) == len(used):
            raise ValueError("annotations of other atoms")
    except (OSError, StopIteration, AttributeError, KeyError, ValueError, RuntimeError) as error:
        raise InputError(f"no molecule of OpenFold3's: {error!r}", path=path) from None
    mask = used & (not hidden)
    pairs = [[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()] for bond in graph.GetBonds()]
    columns = (
        np.array([one.GetSymbol() for one in atoms]),
        np.array([one.GetFormalCharge() for one in atoms]),
        np.array(pairs, np.int64).reshape(-1, 2),
    )
    position = np.where(mask[:, None], position, 0)[None]
    return _molecule(graph, np.arange(len(atoms)), names, *columns, position, mask)


def ligand_molecules(
    entry: str, section: RulesetSection, conformers: int
) -> dict[str, MadeMolecule]:
    """Molecules of ligands of several residues, each made of the atoms of its first copy."""
    made: dict[str, MadeMolecule] = {}
    for chain in np.flatnonzero((section.chain_type == 3) & (np.diff(section.chain_residue) > 1)):
        name = f"{entry}_{section.chain_entity[chain]}"
        if name in made:
            continue
        low, high = section.residue_atom[section.chain_residue[[chain, chain + 1]]]
        inside = ((section.bond_atom >= low) & (section.bond_atom < high)).all(1)
        columns = (
            section.atom_element[low:high],
            section.atom_charge[low:high],
            section.bond_atom[inside] - low,
        )
        graph = _graph(*columns, section.bond_type[inside])
        heavy = np.arange(high - low)
        position = _embedded(graph, heavy, name, conformers, add_hydrogens=True)
        mask = np.full(len(heavy), position is not None)
        if position is None:
            position = np.zeros([1, len(heavy), 3])
        names = section.atom_name[low:high]
        molecule = _molecule(graph, heavy, names, *columns, position, mask)
        made[name] = MadeMolecule(molecule, "computed" if mask.any() else "none")
    return made


def _molecule(
    graph: Any,
    heavy: np.ndarray,
    names: np.ndarray,
    elements: np.ndarray,
    charges: np.ndarray,
    bonds: np.ndarray,
    position: np.ndarray,
    mask: np.ndarray,
) -> Molecule:
    """The heavy atoms of a graph, and the bonds among them."""
    place = np.full(len(names), -1)
    place[heavy] = np.arange(len(heavy))
    pairs = place[bonds].reshape(-1, 2)
    return Molecule(
        name=names[heavy],
        element=element_numbers(elements[heavy]).astype(np.int64),
        charge=charges[heavy].astype(np.int64),
        position=position.astype(np.float32),
        mask=mask,
        bond=pairs[(pairs >= 0).all(1)].astype(np.int64),
        orders=_orders(graph, heavy),
    )


def conformer_version() -> str:
    """RDKit's version, on which conformers depend; empty without it."""
    try:
        return importlib.metadata.version("rdkit")
    except importlib.metadata.PackageNotFoundError:
        return ""


def rdkit() -> Any:
    """RDKit's `Chem`; an `InputError` where it is not installed."""
    try:
        from rdkit import Chem, RDLogger
        from rdkit.Chem import AllChem  # noqa: F401 (Chem.AllChem is there once it was imported)
    except ImportError as error:
        raise InputError(
            "conformers need RDKit: pip install 'evofeed[conformers]', or give recorded ones"
        ) from error
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined, unused-ignore]
    return Chem


def _graph(elements: np.ndarray, charges: np.ndarray, bonds: np.ndarray, orders: np.ndarray) -> Any:
    """RDKit's molecule, sanitized as far as it can be."""
    chem = rdkit()
    graph = chem.RWMol()
    for element, charge in zip(elements.tolist(), charges.tolist(), strict=True):
        atom = chem.Atom(_symbol(element))
        atom.SetFormalCharge(charge)
        graph.AddAtom(atom)
    for (one, two), order in zip(bonds.tolist(), orders.tolist(), strict=True):
        if graph.GetBondBetweenAtoms(one, two) is None:
            kind = getattr(chem.BondType, _ORDERS.get(order, "SINGLE"))
            graph.AddBond(one, two, kind)
    for atom in graph.GetAtoms():
        atom.SetNoImplicit(False)
    chem.SanitizeMol(graph, catchErrors=True)
    return graph


def _symbol(element: str) -> str:
    return "H" if element == "D" else element.capitalize() if element not in ("", "X") else "*"


def _embedded(
    graph: Any, heavy: np.ndarray, seed_text: str, count: int, *, add_hydrogens: bool = False
) -> np.ndarray | None:
    """Conformers `[K, a, 3]`, each of its own seed; None if none can be made."""
    chem = rdkit()
    found: list[np.ndarray] = []
    try:
        whole = chem.AddHs(graph) if add_hydrogens else chem.Mol(graph)
        for number in range(count):
            options = chem.AllChem.ETKDGv3()
            options.randomSeed = zlib.crc32(f"{seed_text}:{number}".encode()) & 0x7FFFFFFF
            options.maxIterations = _MAX_ITERATIONS
            options.clearConfs = True
            if chem.AllChem.EmbedMolecule(whole, options) != 0:
                options.useRandomCoords = True
                if chem.AllChem.EmbedMolecule(whole, options) != 0:
                    return np.array(found) if found else None
            found.append(np.array(whole.GetConformer().GetPositions())[heavy])
    except (RuntimeError, ValueError):  # what RDKit says of valences it cannot have
        return None
    return np.array(found)


def _orders(graph: Any, heavy: np.ndarray) -> np.ndarray:
    """Orders of the heavy atoms that map the molecule onto itself, the identity first."""
    identity = np.arange(len(heavy))
    chem = rdkit()
    pattern = chem.RWMol(graph)
    for atom in sorted(set(range(pattern.GetNumAtoms())) - set(heavy.tolist()), reverse=True):
        pattern.RemoveAtom(atom)
    try:
        matches = pattern.GetSubstructMatches(pattern, uniquify=False, maxMatches=MAX_ORDERS)
    except (RuntimeError, ValueError):
        return identity[None]
    orders = np.array(matches, np.int64).reshape(-1, len(heavy))
    there = (orders == identity).all(1)
    return np.concatenate([identity[None], orders[~there]])[:MAX_ORDERS]
