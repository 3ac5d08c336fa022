"""Simulated entries as mmCIF, with the categories that readers of PDB files need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.protein.residue_geometry import RESIDUE_ATOMS
from evofeed.protein.residues import RESTYPE_3
from evofeed.protein.structure_text import chain_name, loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One chain of an entry.

    Attributes:
        author_id: `auth_asym_id`, the chain's name in publications.
        aatype: `[L]` codes of SEQRES.
        atoms: `f64[L, 14, 3]` ångström.
        resolved: `bool[L]`, residues resolved in the density.
        first_number: author number of the first residue.
        selenium: methionines are selenomethionines (MSE), as is common in crystallography.
    """

    author_id: str
    aatype: np.ndarray
    atoms: np.ndarray
    resolved: np.ndarray
    first_number: int
    selenium: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A PDB entry: its metadata and chains. Chains of one sequence are one entity."""

    entry_id: str
    method: str
    resolution: float | None
    release_date: str
    num_models: int
    chains: tuple[Chain, ...]


_ATOM_ITEMS = (
    "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id "
    "label_entity_id label_seq_id pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy "
    "B_iso_or_equiv pdbx_formal_charge auth_seq_id auth_comp_id auth_asym_id auth_atom_id "
    "pdbx_PDB_model_num"
)


def mmcif(entry: Entry) -> str:
    """The entry as mmCIF text."""
    name = entry.entry_id.upper()
    codes = [[_component(chain, code) for code in chain.aatype.tolist()] for chain in entry.chains]
    entities: dict[tuple[str, ...], int] = {}
    of_chain = [entities.setdefault(tuple(chain), len(entities) + 1) for chain in codes]
    water = len(entities) + 1
    revisions = [(1, entry.release_date), (2, "2021-07-13")]
    resolution = [f"{_RESOLUTION[entry.method]} {entry.resolution:.2f}"] if entry.resolution else []
    components = sorted({code for chain in entities for code in chain})
    polymers = [(number, "polymer", of_chain.count(number)) for number in entities.values()]
    asyms = [(chain_name(k), number) for k, number in enumerate([*of_chain, water], 1)]
    monomers = [(e, i, code) for chain, e in entities.items() for i, code in enumerate(chain, 1)]
    lines = [
        f"data_{name}",
        f"_entry.id {name}",
        f"_exptl.method '{entry.method}'",
        f"_struct.title 'Simulated protein {name}'",
        *resolution,
        *loop("_pdbx_audit_revision_history", "ordinal revision_date", revisions),
        *loop("_chem_comp", "id type", [(code, _type(code)) for code in [*components, "HOH"]]),
        *loop("_entity", "id type pdbx_number_of_molecules", [*polymers, (water, "water", "?")]),
        *loop("_struct_asym", "id entity_id", asyms),
        *loop("_entity_poly_seq", "entity_id num mon_id", monomers),
        *loop("_atom_site", _ATOM_ITEMS, _atoms(entry, codes, of_chain)),
    ]
    return "\n".join(lines) + "\n"


_RESOLUTION = {
    "X-RAY DIFFRACTION": "_refine.ls_d_res_high",
    "ELECTRON MICROSCOPY": "_em_3d_reconstruction.resolution",
}


def _component(chain: Chain, code: int) -> str:
    name = RESTYPE_3[code]
    return "MSE" if chain.selenium and name == "MET" else name


def _type(component: str) -> str:
    types = {"HOH": "non-polymer", "GLY": "'peptide linking'"}
    return types.get(component, "'L-peptide linking'")


def _atoms(entry: Entry, codes: list[list[str]], of_chain: list[int]) -> list[str]:
    """Rows of `_atom_site`, with a water after those of the first model."""
    lines: list[str] = []
    for model in range(1, entry.num_models + 1):
        shift = 0.03 * (model - 1)  # the models of an NMR ensemble differ a little
        for k, (chain, chain_codes) in enumerate(zip(entry.chains, codes, strict=True), 1):
            label = f"{chain_name(k)} {of_chain[k - 1]}"
            for i in np.flatnonzero(chain.resolved).tolist():
                _add_residue(lines, chain, chain_codes[i], i, label, model, shift)
        if model == 1:
            x, y, z = entry.chains[0].atoms[0, 1] + 8.0
            water = f"{chain_name(len(entry.chains) + 1)} {max(of_chain) + 1}"
            lines.append(
                f"HETATM {len(lines) + 1} O O . HOH {water} . ? {x:.3f} {y:.3f} {z:.3f} 1.00 30.00 "
                f"? 901 HOH {entry.chains[0].author_id} O 1"
            )
    return lines


def _add_residue(
    lines: list[str], chain: Chain, code: str, i: int, label: str, model: int, shift: float
) -> None:
    """Add rows of `_atom_site` for residue `i` of a chain, whose asym and entity are `label`."""
    group = "HETATM" if code == "MSE" else "ATOM"
    author = f"{chain.first_number + i} {code} {chain.author_id}"
    b_factor = 12.0 + (i * 7919) % 400 / 10
    positions = (chain.atoms[i] + shift).tolist()
    for slot, atom in enumerate(RESIDUE_ATOMS[RESTYPE_3[chain.aatype[i]]]):
        x, y, z = positions[slot]
        name = "SE" if code == "MSE" and atom == "SD" else atom
        symbol = "SE" if name == "SE" else atom[0]
        lines.append(
            f"{group} {len(lines) + 1} {symbol} {name} . {code} {label} {i + 1} ? {x:.3f} {y:.3f} "
            f"{z:.3f} 1.00 {b_factor:.2f} ? {author} {name} {model}"
        )
