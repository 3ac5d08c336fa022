"""Relaxation of a predicted structure by OpenMM: removes strained bonds and clashes.

As in AF2: Amber's force field, harmonic restraints on heavy atoms, no solvent.
Source: AF2 SI 1.8.6.
"""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError, TrainerError
from evofeed.protein.residues import ATOM_ORDER, UNKNOWN
from evofeed.protein.structure_text import Structure, to_pdb
from evofeed.trainer.predict.prediction import Prediction

STIFFNESS: Final = 10.0
"""Of the restraints, kcal/mol/Å²."""
TOLERANCE: Final = 10.0
"""Root mean square force at which the minimisation ends, kJ/mol/nm: OpenMM's default."""
_CO: Final = 1.25  # ångström, both oxygens of a carboxylate


def relaxed(prediction: Prediction) -> tuple[Prediction, dict[str, float]]:
    """The prediction with relaxed atoms, and `energy_before`, `energy_after` in kJ/mol and
    `moved`, the root mean square displacement of the heavy atoms in ångström.

    Raises:
        TrainerError: OpenMM is not installed.
        InputError: a residue is unknown (X), or the structure cannot be minimised.
    """
    try:
        import openmm
        from openmm import app, unit
    except ImportError:
        raise TrainerError("relaxation needs OpenMM: pip install openmm, or omit --relax") from None
    structure = prediction.structure
    if (structure.aatype >= UNKNOWN).any():
        number = int(np.flatnonzero(structure.aatype >= UNKNOWN)[0]) + 1
        raise InputError(
            f"residue {number} is unknown (X), so its atoms are too: it cannot be relaxed",
            item=structure.name,
        )
    field = app.ForceField("amber14-all.xml")
    text = to_pdb(replace(_with_terminal_oxygens(structure), chain_names=()))
    pdb = app.PDBFile(io.StringIO(text))
    modeller = app.Modeller(pdb.topology, pdb.positions)
    modeller.addHydrogens(field)
    system = field.createSystem(modeller.topology, constraints=app.HBonds)
    restraints = openmm.CustomExternalForce("k*((x-x0)^2+(y-y0)^2+(z-z0)^2)")
    restraints.addGlobalParameter(
        "k", 0.5 * STIFFNESS * unit.kilocalories_per_mole / unit.angstroms**2
    )
    for axis in ("x0", "y0", "z0"):
        restraints.addPerParticleParameter(axis)
    heavy = [a for a in modeller.topology.atoms() if a.element is not app.element.hydrogen]
    for atom in heavy:
        restraints.addParticle(atom.index, modeller.positions[atom.index])
    system.addForce(restraints)
    simulation = app.Simulation(modeller.topology, system, openmm.VerletIntegrator(0.001))
    simulation.context.setPositions(modeller.positions)
    try:
        before = _energy(simulation, unit)
        simulation.minimizeEnergy(tolerance=TOLERANCE * unit.kilojoules_per_mole / unit.nanometer)
        after = _energy(simulation, unit)
    except openmm.OpenMMException as error:  # such as a structure whose atoms are at one point
        raise InputError(
            f"it cannot be minimised ({str(error).partition('. ')[0]}): omit --relax",
            item=structure.name,
        ) from None
    if not np.isfinite(after):
        raise InputError("its energy is not finite after minimisation", item=structure.name)
    state = simulation.context.getState(getPositions=True)
    atoms = np.asarray(state.getPositions(asNumpy=True).value_in_unit(unit.angstrom))
    positions = structure.positions.copy()
    rows = {residue: row for row, residue in enumerate(modeller.topology.residues())}
    for atom in heavy:
        if atom.name in ATOM_ORDER and atom.name != "OXT":
            positions[rows[atom.residue], ATOM_ORDER[atom.name]] = atoms[atom.index]
    mask = structure.mask.astype(bool)
    moved = np.sqrt(np.mean(np.sum((positions - structure.positions)[mask] ** 2, axis=-1)))
    facts = {"energy_before": before, "energy_after": after, "moved": float(moved)}
    result = replace(prediction, structure=replace(structure, positions=positions))
    return result, {name: round(value, 3) for name, value in facts.items()}


def _energy(simulation: Any, unit: Any) -> float:
    state = simulation.context.getState(getEnergy=True)
    return float(state.getPotentialEnergy().value_in_unit(unit.kilojoules_per_mole))


def _with_terminal_oxygens(structure: Structure) -> Structure:
    """The structure with OXT at the end of each chain: predictions lack it, Amber needs it."""
    chain = np.zeros(len(structure.aatype)) if structure.chain is None else structure.chain
    last = np.flatnonzero(np.append(np.diff(chain), 1))
    alpha, carbon, oxygen = (structure.positions[last, ATOM_ORDER[n]] for n in ("CA", "C", "O"))
    axis, bond = carbon - alpha, oxygen - carbon
    axis /= np.linalg.norm(axis, axis=-1, keepdims=True)
    mirrored = 2 * np.sum(bond * axis, -1, keepdims=True) * axis - bond  # half a turn about CA-C
    positions, mask = structure.positions.copy(), structure.mask.copy()
    length = np.linalg.norm(mirrored, axis=-1, keepdims=True)
    positions[last, ATOM_ORDER["OXT"]] = carbon + _CO * mirrored / length
    mask[last, ATOM_ORDER["OXT"]] = 1
    return replace(structure, positions=positions, mask=mask)
