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
from evofeed.protein.entry_record import LIGAND, EntryRecord
from evofeed.protein.molecules import Molecule, element_numbers
from evofeed.protein.ruleset_section import RulesetSection

MAX_ORDERS: Final = 1000
"""Orders of atoms of one molecule, at most: the projects' limit."""
_MAX_ITERATIONS: Final = 30
_ORDERS: Final = {1: "SINGLE", 2: "DOUBLE", 3: "TRIPLE", 4: "QUADRUPLE", 5: "AROMATIC"}
_OF_BIOTITE: Final = np.array([0, 1, 2, 3, 4, 1, 2, 3, 0, 5])
"""These orders by biotite's type of a bond: 5 to 7 are in an aromatic ring."""


class MadeMolecule(NamedTuple):
    """A molecule, and where its coordinates are from: `computed`, `ideal`, `model` or `none`."""

    molecule: Molecule
    origin: str


class Parts(NamedTuple):
    """Atoms and bonds that a molecule is drawn of, as columns of `Component`; `place` gives
    stereochemistry if it has all coordinates."""

    name: np.ndarray
    element: np.ndarray
    charge: np.ndarray
    bond: np.ndarray
    order: np.ndarray
    place: np.ndarray


def component_parts(one: Component) -> Parts:
    """Those of a component, hydrogens too."""
    place = one.ideal if np.isfinite(one.ideal).all() else one.model
    return Parts(one.name, one.element, one.charge, one.bond, one.bond_order, place)


def ligand_parts(record: EntryRecord, section: RulesetSection, chain: int) -> Parts:
    """Those of a chain of a section."""
    low, high = section.residue_atom[section.chain_residue[[chain, chain + 1]]]
    inside = ((section.bond_atom >= low) & (section.bond_atom < high)).all(1)
    row = section.atom_row[low:high]
    return Parts(
        name=section.atom_name[low:high],
        element=section.atom_element[low:high],
        charge=section.atom_charge[low:high],
        bond=section.bond_atom[inside] - low,
        order=_OF_BIOTITE[section.bond_type[inside]],
        place=np.where(row[:, None] >= 0, record.atom_position[row], np.nan),
    )


def component_molecule(component: Component, conformers: int) -> MadeMolecule:
    """The reference molecule of a component: its heavy atoms."""
    heavy, parts = np.flatnonzero(component.heavy), component_parts(component)
    graph = molecule_graph(parts)
    position = _embedded(graph, heavy, component.code, conformers)
    mask, origin = np.ones(len(heavy), bool), "computed"
    if position is None:
        origin, position, mask = "none", np.zeros([1, len(heavy), 3]), np.zeros(len(heavy), bool)
        for name, known in (("model", component.model), ("ideal", component.ideal)):
            there = np.isfinite(known[heavy]).all(1)
            if there.any():
                origin, mask = name, there
                position = np.where(there[:, None], known[heavy], 0)[None]
    return MadeMolecule(_molecule(graph, heavy, parts, position, mask), origin)


def annotated_molecule(path: str, *, hidden: bool) -> Molecule:
    """The molecule of an SDF file of OpenFold3's, with the conformer in it; `hidden`: without
    coordinates, as one that would leak.

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
    element = np.array([one.GetSymbol() for one in atoms])
    charge = np.array([one.GetFormalCharge() for one in atoms])
    bond = np.array(pairs, np.int64).reshape(-1, 2)
    parts = Parts(names, element, charge, bond, bond[:, 0] * 0, position)
    position = np.where(mask[:, None], position, 0)[None]
    return _molecule(graph, np.arange(len(atoms)), parts, position, mask)


def ligand_molecules(
    record: EntryRecord, section: RulesetSection, conformers: int
) -> dict[str, MadeMolecule]:
    """Molecules of ligands of several residues, each made of the atoms of its first copy."""
    made: dict[str, MadeMolecule] = {}
    several = (section.chain_type == LIGAND) & (np.diff(section.chain_residue) > 1)
    for chain in np.flatnonzero(several).tolist():
        name = f"{record.entry}_{section.chain_entity[chain]}"
        if name in made:
            continue
        parts = ligand_parts(record, section, chain)
        graph, heavy = molecule_graph(parts), np.arange(len(parts.name))
        position = _embedded(graph, heavy, name, conformers, add_hydrogens=True)
        mask = np.full(len(heavy), position is not None)
        if position is None:
            position = np.zeros([1, len(heavy), 3])
        molecule = _molecule(graph, heavy, parts, position, mask)
        made[name] = MadeMolecule(molecule, "computed" if mask.any() else "none")
    return made


def _molecule(
    graph: Any, heavy: np.ndarray, parts: Parts, position: np.ndarray, mask: np.ndarray
) -> Molecule:
    """The heavy atoms of a graph, and the bonds among them."""
    place = np.full(len(parts.name), -1)
    place[heavy] = np.arange(len(heavy))
    pairs = place[parts.bond].reshape(-1, 2)
    return Molecule(
        name=parts.name[heavy],
        element=element_numbers(parts.element[heavy]).astype(np.int64),
        charge=parts.charge[heavy].astype(np.int64),
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


def molecule_graph(parts: Parts) -> Any:
    """RDKit's molecule, sanitized as far as it can be."""
    chem = rdkit()
    graph = chem.RWMol()
    for element, charge in zip(parts.element.tolist(), parts.charge.tolist(), strict=True):
        atom = chem.Atom(_symbol(element))
        atom.SetFormalCharge(charge)
        graph.AddAtom(atom)
    for (one, two), order in zip(parts.bond.tolist(), parts.order.tolist(), strict=True):
        if graph.GetBondBetweenAtoms(one, two) is None:
            kind = getattr(chem.BondType, _ORDERS.get(order, "SINGLE"))
            graph.AddBond(one, two, kind)
    for atom in graph.GetAtoms():
        atom.SetNoImplicit(False)
    chem.SanitizeMol(graph, catchErrors=True)
    if np.isfinite(parts.place).all():
        conformer = chem.Conformer(len(parts.place))
        conformer.SetPositions(np.ascontiguousarray(parts.place, np.float64))
        graph.AddConformer(conformer)
        chem.AssignStereochemistryFrom3D(graph)
        graph.RemoveAllConformers()
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
