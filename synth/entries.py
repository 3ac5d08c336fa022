"""Small made-up assemblies with ligands and nucleic acids: mmCIF files, components, alignments.

    mmcif/<entry>.cif       a dimer, an RNA or a DNA, a ligand and an ion
    components.cif          of everything in them, the file beside this one
    msa/<entry>_<entity>/   uniref90_hits.a3m and uniprot_hits.a3m of every protein

Nothing in them is nature's: chains are springs of residues, and a component is laid out so that
distances are nearly those along its bonds.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from evofeed.protein.structure_text import ATOM_ITEMS, chain_name, loop

COMPONENTS: Final = Path(__file__).with_name("components.cif")
"""Definitions of all components, in the form of the wwPDB's dictionary."""
_LEAVING: Final = ("OXT", "OP3")


class Piece(NamedTuple):
    """A component: type, letter, its atoms, their elements, and where they are, ångström."""

    type: str
    letter: str
    names: tuple[str, ...]
    elements: tuple[str, ...]
    position: np.ndarray


@functools.cache
def pieces() -> dict[str, Piece]:
    """All components by code, in the order of the file."""
    from gemmi import cif

    items = ["atom_id", "type_symbol", *(f"model_Cartn_{axis}" for axis in "xyz")]
    found = {}
    for block in cif.read(str(COMPONENTS)):
        kind, letter = (
            cif.as_string(block.find_value(f"_chem_comp.{item}"))
            for item in ("type", "one_letter_code")
        )
        rows = [map(cif.as_string, row) for row in block.find("_chem_comp_atom.", items)]
        names, elements, *axes = zip(*rows, strict=True)
        found[block.name] = Piece(kind, letter, names, elements, np.array(axes, float).T)
    return found


def _quoted(name: str) -> str:
    return f'"{name}"' if "'" in name else name


class MadeEntity(NamedTuple):
    """An entity and where its chains begin, ångström."""

    kind: str
    polymer: str
    residues: tuple[str, ...]
    copies: tuple[tuple[float, float, float], ...]


def made_entities(seed: int, residues: int = 24) -> tuple[MadeEntity, ...]:
    """A protein twice, a nucleic acid, a ligand at each copy, an ion and a sulfate."""
    rng = np.random.default_rng(seed)
    protein = [str(one) for one in rng.choice(list(pieces())[:8], residues)]
    protein[residues // 2] = "MSE"
    nucleic, polymer = (
        (tuple("ACGUGCAU"), "polyribonucleotide")
        if seed % 2 == 0
        else (("DA", "DC", "DA", "DC", "DC", "DA"), "polydeoxyribonucleotide")
    )
    return (
        MadeEntity("polymer", "polypeptide(L)", tuple(protein), ((0, 0, 0), (9, 0, 0))),
        MadeEntity("polymer", polymer, nucleic, ((0, 12, 0),)),
        MadeEntity("non-polymer", "", ("LIG",), ((4, -6, 4), (13, -6, 8))),
        MadeEntity("non-polymer", "", ("MG",), ((4, 5, 0),)),
        MadeEntity("non-polymer", "", ("SO4",), ((20, 8, 0),)),
    )


def entry_cif(entry: str, seed: int, residues: int = 24) -> str:
    """An entry as mmCIF text."""
    entities = made_entities(seed, residues)
    numbered = list(enumerate(entities, 1))
    polymers = [(number, one) for number, one in numbered if one.polymer]
    count = sum(len(one.copies) for _, one in polymers)
    codes = sorted({code for one in entities for code in one.residues})
    entity_of = [number for number, one in numbered for _ in one.copies]
    asyms = [chain_name(row) for row in range(1, len(entity_of) + 1)]
    axes = [f"matrix[{i}][{j}]" for i in (1, 2, 3) for j in (1, 2, 3)]
    axes += [f"vector[{i}]" for i in (1, 2, 3)]
    poly = [(n, f"'{one.polymer}'", sequence_of(one)) for n, one in polymers]
    monomers = [(n, at, code) for n, one in polymers for at, code in enumerate(one.residues, 1)]
    lines = [
        f"data_{entry}",
        f"_entry.id {entry}",
        "_exptl.method 'X-RAY DIFFRACTION'",
        f"_refine.ls_d_res_high {1.8 + seed % 5 / 10:.2f}",
        "_pdbx_database_status.recvd_initial_deposition_date 2019-05-01",
        *loop("_pdbx_audit_revision_history", "ordinal revision_date", ["1 2020-01-15"]),
        *loop("_entity", "id type", [(number, one.kind) for number, one in numbered]),
        *loop("_entity_poly", "entity_id type pdbx_seq_one_letter_code_can", poly),
        *loop("_entity_poly_seq", "entity_id num mon_id", monomers),
        *loop("_chem_comp", "id type", [(code, f"'{pieces()[code].type}'") for code in codes]),
        *loop("_struct_asym", "id entity_id", list(zip(asyms, entity_of, strict=True))),
        *loop("_pdbx_struct_assembly", "id oligomeric_count", [(1, count)]),
        *loop(
            "_pdbx_struct_assembly_gen",
            "assembly_id oper_expression asym_id_list",
            [(1, 1, ",".join(asyms))],
        ),
        *loop("_pdbx_struct_oper_list", " ".join(["id", *axes]), ["1 1 0 0 0 1 0 0 0 1 0 0 0"]),
        *loop("_atom_site", ATOM_ITEMS, _atoms(entities, asyms, seed)),
    ]
    return "\n".join(lines) + "\n"


def sequence_of(entity: MadeEntity) -> str:
    """Canonical letters of a polymer."""
    return "".join(pieces()[code].letter for code in entity.residues)


def _atoms(entities: tuple[MadeEntity, ...], asyms: list[str], seed: int) -> list[str]:
    """Rows of `_atom_site`."""
    rng = np.random.default_rng(seed + 1000)
    names = iter(asyms)
    rows: list[str] = []
    for number, entity in enumerate(entities, 1):
        for start in entity.copies:
            asym, here = next(names), np.array(start, float)
            here += _helix(pieces()[entity.residues[0]], 1) if entity.polymer else 0
            for place, code in enumerate(entity.residues, 1):
                piece, before = pieces()[code], here
                if entity.polymer:
                    here = before + _helix(piece, place + 1) - _helix(piece, place)
                if entity.polymer and place == 3:  # one that nobody saw
                    continue
                position = before + _placed(piece, here - before, rng)
                seq, group = (str(place), "ATOM") if entity.polymer else (".", "HETATM")
                for name, element, xyz in zip(piece.names, piece.elements, position, strict=True):
                    if entity.polymer and name in _LEAVING:
                        continue
                    x, y, z = (f"{value:.3f}" for value in xyz)
                    rows.append(
                        f"{group} {len(rows) + 1} {element} {_quoted(name)} . {code} {asym} "
                        f"{number} {seq} ? {x} {y} {z} 1.00 {20 + place % 30:.2f} {place} {asym} 1"
                    )
    return rows


def _ends(piece: Piece) -> np.ndarray:
    """Where a residue is joined to the one before and the next."""
    names = ("N", "C") if "N" in piece.names and "CA" in piece.names else ("P", "O3'")
    return np.asarray(piece.position[[piece.names.index(name) for name in names]])


def _helix(piece: Piece, place: int) -> np.ndarray:
    """A place on a helix of such residues."""
    wide, turn = (np.linalg.norm(np.subtract(*_ends(piece))) + 1.4) / 3.8, np.radians(100 * place)
    return np.asarray(wide * np.array([2.3 * np.cos(turn), 2.3 * np.sin(turn), 1.5 * place]))


def _placed(piece: Piece, step: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A ligand turned at random; a residue along the step to the next one."""
    if not step.any():
        return np.asarray(piece.position @ np.linalg.qr(rng.normal(size=[3, 3]))[0])
    first, last = _ends(piece)
    one, two = (_frame(vector, rng.normal(size=3)) for vector in (last - first, step))
    return np.asarray((piece.position - first) @ one @ two.T)


def _frame(axis: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Columns of a right-handed frame whose first one is the axis."""
    one = axis / np.linalg.norm(axis)
    two = other - one * (other @ one)
    two /= np.linalg.norm(two)
    return np.stack([one, two, np.cross(one, two)], 1)


def alignment_a3m(sequence: str, seed: int, rows: int, *, uniprot: bool) -> str:
    """An alignment with species and insertions, the query first."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    text = [f">query\n{sequence}\n"]
    for row in range(rows):
        copy = np.array(list(sequence))
        changed = rng.random(len(copy)) < 0.4
        copy[changed] = rng.choice(letters, int(changed.sum()))
        copy[rng.random(len(copy)) < 0.1] = "-"
        body = "".join(copy)
        if row % 3 == 0:
            body = body[:5] + "gg" + body[5:]
        name = f"A{row:05d}"
        mnemonic = f"SPC{row % 12:02d}"
        head = f"tr|{name}|{name}_{mnemonic}/1-{len(sequence)}" if uniprot else f"UniRef90_{name}"
        text.append(f">{head}\n{body}\n")
    return "".join(text)


def write_entries(out: str | Path, count: int, *, seed: int = 0, residues: int = 24) -> list[str]:
    """Files of `count` entries below a folder; their names."""
    root = Path(out)
    (root / "mmcif").mkdir(parents=True, exist_ok=True)
    (root / "components.cif").write_bytes(COMPONENTS.read_bytes())
    names = []
    for number in range(count):
        entry = f"s{number:03d}"
        names.append(entry)
        (root / "mmcif" / f"{entry}.cif").write_text(entry_cif(entry, seed + number, residues))
        sequence = sequence_of(made_entities(seed + number, residues)[0])
        folder = root / "msa" / f"{entry}_1"
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("uniref90_hits", 60), ("uniprot_hits", 40)):
            made = alignment_a3m(sequence, seed + number, rows, uniprot=name == "uniprot_hits")
            (folder / f"{name}.a3m").write_text(made)
    return names
