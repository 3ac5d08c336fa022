"""Small made-up assemblies with ligands and nucleic acids: mmCIF files, components, alignments.

    mmcif/<entry>.cif       a dimer, an RNA or a DNA, a ligand and an ion
    components.cif          of everything in them, the shapes laid out from the bonds
    msa/<entry>_<entity>/   uniref90_hits.a3m and uniprot_hits.a3m of every protein

Nothing in them is nature's: chains are springs of residues, shapes follow from bonds alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from evofeed.protein.structure_text import ATOM_ITEMS, chain_name, loop

BACKBONE: Final = "N-CA CA-C C=O C-OXT"
SUGAR: Final = (
    "OP3-P P=OP1 P-OP2 P-O5' O5'-C5' C5'-C4' C4'-O4' C4'-C3' C3'-O3' C3'-C2' C2'-C1' O4'-C1'"
)
PURINE: Final = "C1'-N9 N9-C8 C8=N7 N7-C5 C5=C6 C6-N1 N1=C2 C2-N3 N3=C4 C4-C5 C4-N9"
GUANINE: Final = "C1'-N9 N9-C8 C8=N7 N7-C5 C5-C6 C6-N1 N1-C2 C2=N3 N3-C4 C4=C5 C4-N9"
PYRIMIDINE: Final = "C1'-N1 N1-C2 C2=O2 C2-N3 N3-C4 C4-C5 C5=C6 C6-N1"


class Piece(NamedTuple):
    """A component: type, letter, and bonds between its atoms."""

    type: str
    letter: str
    bonds: str


def _peptide(letter: str, side: str) -> Piece:
    return Piece("L-PEPTIDE LINKING", letter, f"{BACKBONE} {side}".strip())


PIECES: Final = {
    "GLY": _peptide("G", ""),
    "ALA": _peptide("A", "CA-CB"),
    "SER": _peptide("S", "CA-CB CB-OG"),
    "VAL": _peptide("V", "CA-CB CB-CG1 CB-CG2"),
    "LEU": _peptide("L", "CA-CB CB-CG CG-CD1 CG-CD2"),
    "ASP": _peptide("D", "CA-CB CB-CG CG=OD1 CG-OD2"),
    "LYS": _peptide("K", "CA-CB CB-CG CG-CD CD-CE CE-NZ"),
    "PHE": _peptide("F", "CA-CB CB-CG CG=CD1 CD1-CE1 CE1=CZ CZ-CE2 CE2=CD2 CD2-CG"),
    "MET": _peptide("M", "CA-CB CB-CG CG-SD SD-CE"),
    "MSE": _peptide("M", "CA-CB CB-CG CG-SE SE-CE"),
    "A": Piece("RNA LINKING", "A", f"{SUGAR} C2'-O2' {PURINE} C6-N6"),
    "G": Piece("RNA LINKING", "G", f"{SUGAR} C2'-O2' {GUANINE} C6=O6 C2-N2"),
    "C": Piece("RNA LINKING", "C", f"{SUGAR} C2'-O2' {PYRIMIDINE} C4=N4"),
    "U": Piece("RNA LINKING", "U", f"{SUGAR} C2'-O2' {PYRIMIDINE} C4=O4"),
    "DA": Piece("DNA LINKING", "A", f"{SUGAR} {PURINE} C6-N6"),
    "DC": Piece("DNA LINKING", "C", f"{SUGAR} {PYRIMIDINE} C4=N4"),
    "LIG": Piece("NON-POLYMER", "", "C1=C2 C2-C3 C3=C4 C4-C5 C5=C6 C6-C1 C1-N1 C4-C7 C7=O1 C7-O2"),
    "SO4": Piece("NON-POLYMER", "", "S=O1 S=O2 S-O3 S-O4"),
    "MG": Piece("NON-POLYMER", "", ""),
}
_LEAVING: Final = ("OXT", "OP3")


class Shape(NamedTuple):
    """Atoms of a component, their elements, and where they are, ångström."""

    names: tuple[str, ...]
    elements: tuple[str, ...]
    position: np.ndarray


def bonds_of(code: str) -> list[tuple[str, str, str]]:
    """Atoms and order of every bond of a component."""
    found = []
    for text in PIECES[code].bonds.split():
        order = "DOUB" if "=" in text else "SING"
        one, two = text.replace("=", "-").split("-")
        found.append((one, two, order))
    return found


def shape_of(code: str) -> Shape:
    """A component laid out so that distances are nearly those along its bonds."""
    bonds = bonds_of(code)
    names = tuple(dict.fromkeys(name for one, two, _ in bonds for name in (one, two))) or (code,)
    elements = tuple(_element(name) for name in names)
    place = {name: row for row, name in enumerate(names)}
    steps = np.full([len(names), len(names)], 99.0)
    np.fill_diagonal(steps, 0)
    for one, two, _ in bonds:
        steps[place[one], place[two]] = steps[place[two], place[one]] = 1
    for middle in range(len(names)):
        steps = np.minimum(steps, steps[:, middle : middle + 1] + steps[middle])
    squared = (1.45 * steps**0.85) ** 2
    centred = np.eye(len(names)) - 1 / len(names)
    values, vectors = np.linalg.eigh(-0.5 * centred @ squared @ centred)
    vectors *= np.where(vectors.sum(0) < 0, -1, 1)  # the sign is anybody's
    position = vectors[:, -3:] * np.sqrt(np.maximum(values[-3:], 0.05))
    if position.shape[1] < 3:
        position = np.pad(position, ((0, 0), (0, 3 - position.shape[1])))
    return Shape(names, elements, np.round(position, 3))


def _element(name: str) -> str:
    return name if name in ("SE", "MG", "S") else name[0]


def components_cif() -> str:
    """Definitions of all components, as `components.cif` has them."""
    return "".join(_component(code) for code in PIECES)


def _component(code: str) -> str:
    piece, shape = PIECES[code], shape_of(code)
    atoms = [
        (
            code,
            _quoted(name),
            element,
            0,
            "NY"[name in _LEAVING],
            *(f"{v:.3f}" for v in (*xyz, *xyz)),
        )
        for name, element, xyz in zip(*shape, strict=True)
    ]
    bonds = [(code, _quoted(one), _quoted(two), order, "N") for one, two, order in bonds_of(code)]
    axes = ("model_Cartn_{}", "pdbx_model_Cartn_{}_ideal")
    items = "comp_id atom_id type_symbol charge pdbx_leaving_atom_flag " + " ".join(
        item.format(axis) for item in axes for axis in "xyz"
    )
    ends = "comp_id atom_id_1 atom_id_2 value_order pdbx_aromatic_flag"
    lines = [
        f"data_{code}",
        f"_chem_comp.id {code}",
        f"_chem_comp.type '{piece.type}'",
        f"_chem_comp.one_letter_code {piece.letter or '?'}",
        f"_chem_comp.mon_nstd_parent_comp_id {'MET' if code == 'MSE' else '?'}",
        *loop("_chem_comp_atom", items, atoms),
        *(loop("_chem_comp_bond", ends, bonds) if bonds else ()),
    ]
    return "\n".join(lines) + "\n"


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
    protein = [str(one) for one in rng.choice([c for c in PIECES if len(c) == 3][:8], residues)]
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
        *loop("_chem_comp", "id type", [(code, f"'{PIECES[code].type}'") for code in codes]),
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
    return "".join(PIECES[code].letter for code in entity.residues)


def _atoms(entities: tuple[MadeEntity, ...], asyms: list[str], seed: int) -> list[str]:
    """Rows of `_atom_site`."""
    rng = np.random.default_rng(seed + 1000)
    names = iter(asyms)
    rows: list[str] = []
    for number, entity in enumerate(entities, 1):
        for start in entity.copies:
            asym, here = next(names), np.array(start, float)
            here += _helix(shape_of(entity.residues[0]), 1) if entity.polymer else 0
            for place, code in enumerate(entity.residues, 1):
                shape, before = shape_of(code), here
                if entity.polymer:
                    here = before + _helix(shape, place + 1) - _helix(shape, place)
                if entity.polymer and place == 3:  # one that nobody saw
                    continue
                position = before + _placed(shape, here - before, rng)
                seq, group = (str(place), "ATOM") if entity.polymer else (".", "HETATM")
                for name, element, xyz in zip(shape.names, shape.elements, position, strict=True):
                    if entity.polymer and name in _LEAVING:
                        continue
                    x, y, z = (f"{value:.3f}" for value in xyz)
                    rows.append(
                        f"{group} {len(rows) + 1} {element} {_quoted(name)} . {code} {asym} "
                        f"{number} {seq} ? {x} {y} {z} 1.00 {20 + place % 30:.2f} {place} {asym} 1"
                    )
    return rows


def _ends(shape: Shape) -> np.ndarray:
    """Where a residue is joined to the one before and the next."""
    names = ("N", "C") if "N" in shape.names and "CA" in shape.names else ("P", "O3'")
    return np.asarray(shape.position[[shape.names.index(name) for name in names]])


def _helix(shape: Shape, place: int) -> np.ndarray:
    """A place on a helix of such residues."""
    wide, turn = (np.linalg.norm(np.subtract(*_ends(shape))) + 1.4) / 3.8, np.radians(100 * place)
    return np.asarray(wide * np.array([2.3 * np.cos(turn), 2.3 * np.sin(turn), 1.5 * place]))


def _placed(shape: Shape, step: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A ligand turned at random; a residue along the step to the next one."""
    if not step.any():
        return np.asarray(shape.position @ np.linalg.qr(rng.normal(size=[3, 3]))[0])
    first, last = _ends(shape)
    one, two = (_frame(vector, rng.normal(size=3)) for vector in (last - first, step))
    return np.asarray((shape.position - first) @ one @ two.T)


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
    (root / "components.cif").write_text(components_cif())
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
