"""Simulated entries as mmCIF, with the categories that readers of the PDB rely on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.protein.residue_geometry import RESIDUE_ATOMS
from evofeed.protein.residues import RESTYPE_3
from evofeed.protein.structure_text import chain_name, loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One chain of an entry.

    Attributes:
        author_id: `auth_asym_id`, the chain's name outside.
        aatype: `[L]` codes of SEQRES.
        atoms: `f64[L, 14, 3]` ångström.
        resolved: `bool[L]`, residues seen in the density.
        first_number: author number of the first residue.
        selenium: methionines are selenomethionines (MSE), as crystallographers like them.
    """

    author_id: str
    aatype: np.ndarray
    atoms: np.ndarray
    resolved: np.ndarray
    first_number: int
    selenium: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a PDB entry says besides its coordinates. Chains of one sequence are one entity."""

    entry_id: str
    method: str
    resolution: float | None
    release_date: str
    num_models: int
    chains: tuple[Model, ...]


_ATOM_ITEMS = (
    "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id "
    "label_entity_id label_seq_id pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy "
    "B_iso_or_equiv pdbx_formal_charge auth_seq_id auth_comp_id auth_asym_id auth_atom_id "
    "pdbx_PDB_model_num"
)


def mmcif(entry: Entry) -> str:
    """The entry as mmCIF text."""
    name = entry.entry_id.upper()
    kinds = [[_component(chain, code) for code in chain.aatype.tolist()] for chain in entry.chains]
    seen: dict[tuple[str, ...], int] = {}
    of_chain = [seen.setdefault(tuple(chain), len(seen) + 1) for chain in kinds]
    water = len(seen) + 1
    revisions = [(1, entry.release_date), (2, "2021-07-13")]
    resolution = [f"{_RESOLUTION[entry.method]} {entry.resolution:.2f}"] if entry.resolution else []
    components = sorted({kind for chain in seen for kind in chain})
    polymers = [(number, "polymer", of_chain.count(number)) for number in seen.values()]
    asyms = [(chain_name(k), number) for k, number in enumerate([*of_chain, water], 1)]
    monomers = [(e, i, kind) for chain, e in seen.items() for i, kind in enumerate(chain, 1)]
    lines = [
        f"data_{name}",
        f"_entry.id {name}",
        f"_exptl.method '{entry.method}'",
        f"_struct.title 'Simulated protein {name}'",
        *resolution,
        *loop("_pdbx_audit_revision_history", "ordinal revision_date", revisions),
        *loop("_chem_comp", "id type", [(kind, _type(kind)) for kind in [*components, "HOH"]]),
        *loop("_entity", "id type pdbx_number_of_molecules", [*polymers, (water, "water", "?")]),
        *loop("_struct_asym", "id entity_id", asyms),
        *loop("_entity_poly_seq", "entity_id num mon_id", monomers),
        *loop("_atom_site", _ATOM_ITEMS, _atoms(entry, kinds, of_chain)),
    ]
    return "\n".join(lines) + "\n"


_RESOLUTION = {
    "X-RAY DIFFRACTION": "_refine.ls_d_res_high",
    "ELECTRON MICROSCOPY": "_em_3d_reconstruction.resolution",
}


def _component(chain: Model, code: int) -> str:
    name = RESTYPE_3[code]
    return "MSE" if chain.selenium and name == "MET" else name


def _type(component: str) -> str:
    types = {"HOH": "non-polymer", "GLY": "'peptide linking'"}
    return types.get(component, "'L-peptide linking'")


def _atoms(entry: Entry, kinds: list[list[str]], of_chain: list[int]) -> list[str]:
    """Rows of `_atom_site`, a water behind the first model's."""
    lines: list[str] = []
    for model in range(1, entry.num_models + 1):
        shift = 0.03 * (model - 1)  # the models of an NMR ensemble differ a little
        for k, (chain, chain_kinds) in enumerate(zip(entry.chains, kinds, strict=True), 1):
            for i in np.flatnonzero(chain.resolved).tolist():
                place = f"{chain_name(k)} {of_chain[k - 1]}"
                _residue(lines, chain, chain_kinds[i], i, place, model, shift)
        if model == 1:
            x, y, z = entry.chains[0].atoms[0, 1] + 8.0
            water = f"{chain_name(len(entry.chains) + 1)} {max(of_chain) + 1}"
            lines.append(
                f"HETATM {len(lines) + 1} O O . HOH {water} . ? {x:.3f} {y:.3f} {z:.3f} 1.00 30.00 "
                f"? 901 HOH {entry.chains[0].author_id} O 1"
            )
    return lines


def _residue(
    lines: list[str], chain: Model, kind: str, i: int, place: str, model: int, shift: float
) -> None:
    """Add the atoms of residue `i` of a chain (its label and entity) as rows of `_atom_site`."""
    group = "HETATM" if kind == "MSE" else "ATOM"
    number = chain.first_number + i
    tail = f"? {number} {kind} {chain.author_id}"
    b_factor = 12.0 + (i * 7919) % 400 / 10
    at = (chain.atoms[i] + shift).tolist()
    for slot, atom in enumerate(RESIDUE_ATOMS[RESTYPE_3[chain.aatype[i]]]):
        x, y, z = at[slot]
        name = "SE" if kind == "MSE" and atom == "SD" else atom
        symbol = "SE" if name == "SE" else atom[0]
        lines.append(
            f"{group} {len(lines) + 1} {symbol} {name} . {kind} {place} {i + 1} ? {x:.3f} {y:.3f} "
            f"{z:.3f} 1.00 {b_factor:.2f} {tail} {name} {model}"
        )
