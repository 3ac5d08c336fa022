"""Reference molecules of components: seeded conformers and symmetries (orders of equivalent atoms).

The only module that imports RDKit. A conformer is a function of the component, its number and
RDKit's version; if none can be made, the ideal coordinates are used, then those of the model.
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
"""Largest number of atom orders of a molecule: the projects' limit."""
_MAX_ITERATIONS: Final = 30
_ORDERS: Final = {1: "SINGLE", 2: "DOUBLE", 3: "TRIPLE", 4: "QUADRUPLE", 5: "AROMATIC"}
_BIOTITE_ORDERS: Final = np.array([0, 1, 2, 3, 4, 1, 2, 3, 0, 5])
"""Key of `_ORDERS` by biotite's bond type: 5 to 7 are in an aromatic ring."""


class ReferenceMolecule(NamedTuple):
    """A molecule and the origin of its coordinates: `computed`, `ideal`, `model` or `none`."""

    molecule: Molecule
    origin: str


class MoleculeAtoms(NamedTuple):
    """Columns of `Component`; `position` gives stereochemistry if it has all coordinates."""

    name: np.ndarray
    element: np.ndarray
    charge: np.ndarray
    bond: np.ndarray
    order: np.ndarray
    position: np.ndarray


def component_atoms(component: Component) -> MoleculeAtoms:
    """Atoms and bonds of a component, hydrogens included."""
    position = component.ideal if np.isfinite(component.ideal).all() else component.model
    columns = (component.name, component.element, component.charge, component.bond)
    return MoleculeAtoms(*columns, component.bond_order, position)


def ligand_atoms(record: EntryRecord, section: RulesetSection, chain: int) -> MoleculeAtoms:
    """Atoms and bonds of a section's chain."""
    low, high = section.residue_atom[section.chain_residue[[chain, chain + 1]]]
    inside = ((section.bond_atom >= low) & (section.bond_atom < high)).all(1)
    row = section.atom_row[low:high]
    return MoleculeAtoms(
        name=section.atom_name[low:high],
        element=section.atom_element[low:high],
        charge=section.atom_charge[low:high],
        bond=section.bond_atom[inside] - low,
        order=_BIOTITE_ORDERS[section.bond_type[inside]],
        position=np.where(row[:, None] >= 0, record.atom_position[row], np.nan),
    )


def component_molecule(component: Component, conformers: int) -> ReferenceMolecule:
    """The reference molecule of a component: its heavy atoms."""
    heavy, atoms = np.flatnonzero(component.heavy), component_atoms(component)
    graph = molecule_graph(atoms)
    position = _embedded(graph, heavy, component.code, conformers)
    mask, origin = np.ones(len(heavy), bool), "computed"
    if position is None:
        origin, position, mask = "none", np.zeros([1, len(heavy), 3]), np.zeros(len(heavy), bool)
        for name, coordinates in (("model", component.model), ("ideal", component.ideal)):
            finite = np.isfinite(coordinates[heavy]).all(1)
            if finite.any():
                origin, mask = name, finite
                position = np.where(finite[:, None], coordinates[heavy], 0)[None]
    return ReferenceMolecule(_molecule(graph, heavy, atoms, position, mask), origin)


def annotated_molecule(path: str, *, hidden: bool) -> Molecule:
    """The molecule and conformer of an OpenFold3 SDF file; `hidden`: coordinates would leak and
    are dropped.

    Raises:
        InputError: it is not a file of OpenFold3.
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
        raise InputError(f"not a molecule of OpenFold3: {error!r}", path=path) from None
    mask = used & (not hidden)
    pairs = [[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()] for bond in graph.GetBonds()]
    element = np.array([atom.GetSymbol() for atom in atoms])
    charge = np.array([atom.GetFormalCharge() for atom in atoms])
    bond = np.array(pairs, np.int64).reshape(-1, 2)
    parts = MoleculeAtoms(names, element, charge, bond, bond[:, 0] * 0, position)
    position = np.where(mask[:, None], position, 0)[None]
    return _molecule(graph, np.arange(len(atoms)), parts, position, mask)


def ligand_molecules(
    record: EntryRecord, section: RulesetSection, conformers: int
) -> dict[str, ReferenceMolecule]:
    """Molecules of ligands with several residues, each from the atoms of its first copy."""
    molecules: dict[str, ReferenceMolecule] = {}
    multi_residue = (section.chain_type == LIGAND) & (np.diff(section.chain_residue) > 1)
    for chain in np.flatnonzero(multi_residue).tolist():
        name = f"{record.entry}_{section.chain_entity[chain]}"
        if name in molecules:
            continue
        atoms = ligand_atoms(record, section, chain)
        graph, heavy = molecule_graph(atoms), np.arange(len(atoms.name))
        position = _embedded(graph, heavy, name, conformers, add_hydrogens=True)
        mask = np.full(len(heavy), position is not None)
        if position is None:
            position = np.zeros([1, len(heavy), 3])
        molecule = _molecule(graph, heavy, atoms, position, mask)
        molecules[name] = ReferenceMolecule(molecule, "computed" if mask.any() else "none")
    return molecules


def _molecule(
    graph: Any, heavy: np.ndarray, atoms: MoleculeAtoms, position: np.ndarray, mask: np.ndarray
) -> Molecule:
    """The heavy atoms of a graph and their bonds."""
    new_row = np.full(len(atoms.name), -1)
    new_row[heavy] = np.arange(len(heavy))
    pairs = new_row[atoms.bond].reshape(-1, 2)
    return Molecule(
        name=atoms.name[heavy],
        element=element_numbers(atoms.element[heavy]).astype(np.int64),
        charge=atoms.charge[heavy].astype(np.int64),
        position=position.astype(np.float32),
        mask=mask,
        bond=pairs[(pairs >= 0).all(1)].astype(np.int64),
        orders=_orders(graph, heavy),
    )


def conformer_version() -> str:
    """RDKit's version, on which conformers depend; '' if it is not installed."""
    try:
        return importlib.metadata.version("rdkit")
    except importlib.metadata.PackageNotFoundError:
        return ""


def rdkit() -> Any:
    """RDKit's `Chem`; raises `InputError` if it is not installed."""
    try:
        from rdkit import Chem, RDLogger
        from rdkit.Chem import AllChem  # noqa: F401 (the import sets Chem.AllChem)
    except ImportError as error:
        raise InputError(
            "conformers need RDKit: pip install 'evofeed[conformers]', or give recorded ones"
        ) from error
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined, unused-ignore]
    return Chem


def molecule_graph(parts: MoleculeAtoms) -> Any:
    """RDKit's molecule, sanitized as far as possible."""
    chem = rdkit()
    graph = chem.RWMol()
    for element, charge in zip(parts.element.tolist(), parts.charge.tolist(), strict=True):
        atom = chem.Atom(_symbol(element))
        atom.SetFormalCharge(charge)
        graph.AddAtom(atom)
    for (first, second), order in zip(parts.bond.tolist(), parts.order.tolist(), strict=True):
        if graph.GetBondBetweenAtoms(first, second) is None:
            kind = getattr(chem.BondType, _ORDERS.get(order, "SINGLE"))
            graph.AddBond(first, second, kind)
    for atom in graph.GetAtoms():
        atom.SetNoImplicit(False)
    chem.SanitizeMol(graph, catchErrors=True)
    if np.isfinite(parts.position).all():
        conformer = chem.Conformer(len(parts.position))
        conformer.SetPositions(np.ascontiguousarray(parts.position, np.float64))
        graph.AddConformer(conformer)
        chem.AssignStereochemistryFrom3D(graph)
        graph.RemoveAllConformers()
    return graph


def _symbol(element: str) -> str:
    return "H" if element == "D" else element.capitalize() if element not in ("", "X") else "*"


def _embedded(
    graph: Any, heavy: np.ndarray, seed_text: str, count: int, *, add_hydrogens: bool = False
) -> np.ndarray | None:
    """Conformers `[K, a, 3]`, each with its own seed; None if none can be made."""
    chem = rdkit()
    conformers: list[np.ndarray] = []
    try:
        molecule = chem.AddHs(graph) if add_hydrogens else chem.Mol(graph)
        for number in range(count):
            options = chem.AllChem.ETKDGv3()
            options.randomSeed = zlib.crc32(f"{seed_text}:{number}".encode()) & 0x7FFFFFFF
            options.maxIterations = _MAX_ITERATIONS
            options.clearConfs = True
            if chem.AllChem.EmbedMolecule(molecule, options) != 0:
                options.useRandomCoords = True
                if chem.AllChem.EmbedMolecule(molecule, options) != 0:
                    return np.array(conformers) if conformers else None
            conformers.append(np.array(molecule.GetConformer().GetPositions())[heavy])
    except (RuntimeError, ValueError):  # RDKit raises these for impossible valences
        return None
    return np.array(conformers)


def _orders(graph: Any, heavy: np.ndarray) -> np.ndarray:
    """Orders of the heavy atoms under which the molecule is unchanged, the identity first."""
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
    is_identity = (orders == identity).all(1)
    return np.concatenate([identity[None], orders[~is_identity]])[:MAX_ORDERS]
