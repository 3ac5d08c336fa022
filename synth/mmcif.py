"""Simulated entries as mmCIF, with the categories that readers of the PDB rely on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.protein.residue_geometry import RESIDUE_ATOMS
from evofeed.protein.residues import RESTYPE_3


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


def mmcif(entry: Entry) -> str:
    """The entry as mmCIF text."""
    name = entry.entry_id.upper()
    kinds = [[_component(chain, code) for code in chain.aatype.tolist()] for chain in entry.chains]
    return "".join(
        [
            f"data_{name}\n#\n_entry.id   {name}\n#\n",
            _header(entry, name),
            _chemistry(kinds),
            _polymers(entry, kinds),
            _ATOM_SITE,
            *_atom_site(entry, kinds),
            "#\n",
        ]
    )


def _component(chain: Model, code: int) -> str:
    name = RESTYPE_3[code]
    return "MSE" if chain.selenium and name == "MET" else name


def _header(entry: Entry, name: str) -> str:
    text = (
        "loop_\n_pdbx_audit_revision_history.ordinal\n"
        "_pdbx_audit_revision_history.data_content_type\n"
        "_pdbx_audit_revision_history.major_revision\n"
        "_pdbx_audit_revision_history.minor_revision\n"
        "_pdbx_audit_revision_history.revision_date\n"
        f"1 'Structure model' 1 0 {entry.release_date}\n2 'Structure model' 1 1 2021-07-13\n#\n"
        f"_exptl.entry_id          {name}\n_exptl.method            '{entry.method}'\n#\n"
        f"_struct.entry_id   {name}\n_struct.title      'Simulated protein {name}'\n#\n"
    )
    if entry.resolution is not None and entry.method == "X-RAY DIFFRACTION":
        text += f"_refine.entry_id      {name}\n_refine.ls_d_res_high {entry.resolution:.2f}\n#\n"
    elif entry.resolution is not None:
        text += (
            f"_em_3d_reconstruction.entry_id   {name}\n"
            f"_em_3d_reconstruction.resolution {entry.resolution:.2f}\n#\n"
        )
    return text


def _chemistry(kinds: list[list[str]]) -> str:
    rows = "".join(
        f"{kind} '{'peptide linking' if kind == 'GLY' else 'L-peptide linking'}' "
        f"{'n' if kind == 'MSE' else 'y'} ?\n"
        for kind in sorted({kind for chain in kinds for kind in chain})
    )
    columns = "loop_\n_chem_comp.id\n_chem_comp.type\n_chem_comp.mon_nstd_flag\n_chem_comp.name\n"
    return f"{columns}{rows}HOH non-polymer . WATER\n#\n"


def _entities(kinds: list[list[str]]) -> list[int]:
    """Number of the entity of each chain, from 1 in the order of first sight."""
    seen: dict[tuple[str, ...], int] = {}
    return [seen.setdefault(tuple(chain), len(seen) + 1) for chain in kinds]


def _polymers(entry: Entry, kinds: list[list[str]]) -> str:
    of_chain = _entities(kinds)
    water = max(of_chain) + 1
    entities = "".join(
        f"{k} polymer man 'Simulated chain {k}' {of_chain.count(k)}\n" for k in range(1, water)
    )
    asyms = "".join(f"{_label(k)} {e} N\n" for k, e in enumerate([*of_chain, water], 1))
    sequence = "".join(
        f"{k} {i} {kind} n\n"
        for k in range(1, water)
        for i, kind in enumerate(kinds[of_chain.index(k)], 1)
    )
    return (
        "loop_\n_entity.id\n_entity.type\n_entity.src_method\n_entity.pdbx_description\n"
        f"_entity.pdbx_number_of_molecules\n{entities}{water} water nat water ?\n#\n"
        "loop_\n_struct_asym.id\n_struct_asym.entity_id\n_struct_asym.pdbx_modified\n"
        f"{asyms}#\n"
        "loop_\n_entity_poly_seq.entity_id\n_entity_poly_seq.num\n_entity_poly_seq.mon_id\n"
        f"_entity_poly_seq.hetero\n{sequence}#\n"
    )


def _label(number: int) -> str:
    """`label_asym_id` of a chain: A, B, ..., Z, AA in order, whatever the authors say."""
    before, letter = divmod(number - 1, 26)
    return (_label(before) if before else "") + chr(ord("A") + letter)


_ATOM_SITE = "loop_\n" + "".join(
    f"_atom_site.{column}\n"
    for column in (
        "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id "
        "label_entity_id label_seq_id pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy "
        "B_iso_or_equiv pdbx_formal_charge auth_seq_id auth_comp_id auth_asym_id auth_atom_id "
        "pdbx_PDB_model_num"
    ).split()
)


def _atom_site(entry: Entry, kinds: list[list[str]]) -> list[str]:
    lines: list[str] = []
    of_chain = _entities(kinds)
    for model in range(1, entry.num_models + 1):
        shift = 0.03 * (model - 1)  # the models of an NMR ensemble differ a little
        for k, (chain, chain_kinds) in enumerate(zip(entry.chains, kinds, strict=True), 1):
            for i in np.flatnonzero(chain.resolved).tolist():
                _residue(lines, chain, chain_kinds[i], i, (k, of_chain[k - 1]), model, shift)
        if model == 1:
            x, y, z = entry.chains[0].atoms[0, 1] + 8.0
            water = f"{_label(len(entry.chains) + 1)} {max(of_chain) + 1}"
            lines.append(
                f"HETATM {len(lines) + 1} O O . HOH {water} . ? {x:.3f} {y:.3f} {z:.3f} 1.00 30.00 "
                f"? 901 HOH {entry.chains[0].author_id} O 1\n"
            )
    return lines


def _residue(
    lines: list[str],
    chain: Model,
    kind: str,
    i: int,
    place: tuple[int, int],
    model: int,
    shift: float,
) -> None:
    """The atoms of residue `i` of a chain (its number and entity), as `_atom_site` rows."""
    group = "HETATM" if kind == "MSE" else "ATOM"
    number = chain.first_number + i
    middle = f"{_label(place[0])} {place[1]} {i + 1} ?"
    tail = f"? {number} {kind} {chain.author_id}"
    b_factor = 12.0 + (i * 7919) % 400 / 10
    at = (chain.atoms[i] + shift).tolist()
    for slot, atom in enumerate(RESIDUE_ATOMS[RESTYPE_3[chain.aatype[i]]]):
        x, y, z = at[slot]
        name = "SE" if kind == "MSE" and atom == "SD" else atom
        symbol = "SE" if name == "SE" else atom[0]
        lines.append(
            f"{group} {len(lines) + 1} {symbol} {name} . {kind} {middle} {x:.3f} {y:.3f} {z:.3f} "
            f"1.00 {b_factor:.2f} {tail} {name} {model}\n"
        )
