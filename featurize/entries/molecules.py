"""Reference molecules of components: seeded conformers and the orders of atoms that change nothing.

The only module that imports RDKit. A conformer is a function of the component, its number and
RDKit's version; where none can be made the ideal coordinates stand in, then those of the model.
"""

from __future__ import annotations

import importlib.metadata
import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.base.errors import InputError
from evofeed.protein.components import Component
from evofeed.protein.molecules import Molecule
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
        component: as the dictionary defines it.
        conformers: how many to make (K).
    """
    heavy = np.flatnonzero(component.heavy)
    graph = _graph(
        component.element.tolist(),
        component.charge.tolist(),
        component.bond.tolist(),
        component.bond_order.tolist(),
    )
    position = _embedded(graph, heavy, component.code, conformers)
    mask, origin = np.ones(len(heavy), bool), "computed"
    if position is None:
        origin, position, mask = "none", np.zeros([1, len(heavy), 3]), np.zeros(len(heavy), bool)
        for name, known in (("model", component.model), ("ideal", component.ideal)):
            there = np.isfinite(known[heavy]).all(1)
            if there.any():
                origin, mask = name, there
                position = np.where(there[:, None], known[heavy], 0)[None]
    return _made(component, heavy, np.asarray(position), mask, graph, origin)


def _made(
    component: Component,
    heavy: np.ndarray,
    position: np.ndarray,
    mask: np.ndarray,
    graph: Any,
    origin: str,
) -> MadeMolecule:
    place = np.full(len(component.name), -1)
    place[heavy] = np.arange(len(heavy))
    bonds = place[component.bond]
    return MadeMolecule(
        Molecule(
            name=component.name[heavy],
            element=_numbers(component.element[heavy].tolist()),
            charge=component.charge[heavy].astype(np.int64),
            position=position.astype(np.float32),
            mask=mask,
            bond=bonds[(bonds >= 0).all(1)].astype(np.int64),
            orders=_orders(graph, heavy),
        ),
        origin,
    )


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
        bonds = section.bond_atom[inside] - low
        elements, charges = section.atom_element[low:high], section.atom_charge[low:high]
        types = section.bond_type[inside]
        graph = _graph(elements.tolist(), charges.tolist(), bonds.tolist(), types.tolist())
        heavy = np.arange(high - low)
        position = _embedded(graph, heavy, name, conformers, add_hydrogens=True)
        known = position is not None
        made[name] = MadeMolecule(
            Molecule(
                name=section.atom_name[low:high],
                element=_numbers(elements.tolist()),
                charge=charges.astype(np.int64),
                position=np.zeros([1, len(heavy), 3], np.float32)
                if position is None
                else position.astype(np.float32),
                mask=np.full(len(heavy), known),
                bond=bonds.astype(np.int64).reshape(-1, 2),
                orders=_orders(graph, heavy),
            ),
            "computed" if known else "none",
        )
    return made


def conformer_version() -> str:
    """RDKit's version, on which conformers depend; empty without it."""
    try:
        return importlib.metadata.version("rdkit")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _rdkit() -> Any:
    try:
        from rdkit import Chem, RDLogger
        from rdkit.Chem import AllChem  # noqa: F401 (Chem.AllChem is there once it was imported)
    except ImportError as error:
        raise InputError(
            "conformers need RDKit: pip install 'evofeed[conformers]', or give recorded ones"
        ) from error
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined, unused-ignore]
    return Chem


def _graph(
    elements: list[str], charges: list[int], bonds: list[list[int]], orders: Iterable[int]
) -> Any:
    """RDKit's molecule, sanitized as far as it can be."""
    chem = _rdkit()
    graph = chem.RWMol()
    for element, charge in zip(elements, charges, strict=True):
        atom = chem.Atom(_symbol(element))
        atom.SetFormalCharge(int(charge))
        graph.AddAtom(atom)
    for (one, two), order in zip(bonds, orders, strict=True):
        if graph.GetBondBetweenAtoms(one, two) is None:
            kind = getattr(chem.BondType, _ORDERS.get(int(order), "SINGLE"))
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
    chem = _rdkit()
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
    chem = _rdkit()
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


def _numbers(elements: list[str]) -> np.ndarray:
    """Atomic numbers, 0 if unknown."""
    table = _rdkit().GetPeriodicTable()
    numbers = {
        name: 0 if name in ("", "X") else table.GetAtomicNumber(_symbol(name))
        for name in set(elements)
    }
    return np.array([numbers[name] for name in elements], np.int64)
