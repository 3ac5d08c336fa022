"""Small simulated assemblies with ligands and nucleic acids: mmCIF files, components, alignments.

    mmcif/<entry>.cif       a dimer, an RNA or a DNA, a ligand and an ion
    components.cif          their components, a copy of the file in this folder
    msa/<entry>_<entity>/   uniref90_hits.a3m and uniprot_hits.a3m of every protein

Structures are artificial: chains are helices of residues, and the atoms of a component are placed
so that distances are nearly those along its bonds.
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


class Component(NamedTuple):
    """A component: type, letter, and names, elements and positions (ångström) of its atoms."""

    type: str
    letter: str
    names: tuple[str, ...]
    elements: tuple[str, ...]
    position: np.ndarray


@functools.cache
def components() -> dict[str, Component]:
    """All components by code, in the order of the file."""
    from gemmi import cif

    items = ["atom_id", "type_symbol", *(f"model_Cartn_{axis}" for axis in "xyz")]
    by_code = {}
    for block in cif.read(str(COMPONENTS)):
        kind, letter = (
            cif.as_string(block.find_value(f"_chem_comp.{item}"))
            for item in ("type", "one_letter_code")
        )
        rows = [map(cif.as_string, row) for row in block.find("_chem_comp_atom.", items)]
        names, elements, *axes = zip(*rows, strict=True)
        by_code[block.name] = Component(kind, letter, names, elements, np.array(axes, float).T)
    return by_code


def _quoted(name: str) -> str:
    return f'"{name}"' if "'" in name else name


class SimulatedEntity(NamedTuple):
    """An entity and the start positions of its chains, ångström."""

    kind: str
    polymer: str
    residues: tuple[str, ...]
    copies: tuple[tuple[float, float, float], ...]


def simulated_entities(seed: int, residues: int = 24) -> tuple[SimulatedEntity, ...]:
    """Two copies of a protein, a nucleic acid, a ligand at each copy, an ion and a sulfate."""
    rng = np.random.default_rng(seed)
    protein = [str(code) for code in rng.choice(list(components())[:8], residues)]
    protein[residues // 2] = "MSE"
    nucleic, polymer = (
        (tuple("ACGUGCAU"), "polyribonucleotide")
        if seed % 2 == 0
        else (("DA", "DC", "DA", "DC", "DC", "DA"), "polydeoxyribonucleotide")
    )
    return (
        SimulatedEntity("polymer", "polypeptide(L)", tuple(protein), ((0, 0, 0), (9, 0, 0))),
        SimulatedEntity("polymer", polymer, nucleic, ((0, 12, 0),)),
        SimulatedEntity("non-polymer", "", ("LIG",), ((4, -6, 4), (13, -6, 8))),
        SimulatedEntity("non-polymer", "", ("MG",), ((4, 5, 0),)),
        SimulatedEntity("non-polymer", "", ("SO4",), ((20, 8, 0),)),
    )


def entry_cif(entry: str, seed: int, residues: int = 24) -> str:
    """An entry as mmCIF text."""
    entities = simulated_entities(seed, residues)
    numbered = list(enumerate(entities, 1))
    polymers = [(n, entity) for n, entity in numbered if entity.polymer]
    count = sum(len(entity.copies) for _, entity in polymers)
    codes = sorted({code for entity in entities for code in entity.residues})
    entity_of = [n for n, entity in numbered for _ in entity.copies]
    asyms = [chain_name(row) for row in range(1, len(entity_of) + 1)]
    items = [f"matrix[{i}][{j}]" for i in (1, 2, 3) for j in (1, 2, 3)]
    items += [f"vector[{i}]" for i in (1, 2, 3)]
    poly = [(n, f"'{entity.polymer}'", sequence_of(entity)) for n, entity in polymers]
    monomers = [(n, i, code) for n, entity in polymers for i, code in enumerate(entity.residues, 1)]
    lines = [
        f"data_{entry}",
        f"_entry.id {entry}",
        "_exptl.method 'X-RAY DIFFRACTION'",
        f"_refine.ls_d_res_high {1.8 + seed % 5 / 10:.2f}",
        "_pdbx_database_status.recvd_initial_deposition_date 2019-05-01",
        *loop("_pdbx_audit_revision_history", "ordinal revision_date", ["1 2020-01-15"]),
        *loop("_entity", "id type", [(n, entity.kind) for n, entity in numbered]),
        *loop("_entity_poly", "entity_id type pdbx_seq_one_letter_code_can", poly),
        *loop("_entity_poly_seq", "entity_id num mon_id", monomers),
        *loop("_chem_comp", "id type", [(code, f"'{components()[code].type}'") for code in codes]),
        *loop("_struct_asym", "id entity_id", list(zip(asyms, entity_of, strict=True))),
        *loop("_pdbx_struct_assembly", "id oligomeric_count", [(1, count)]),
        *loop(
            "_pdbx_struct_assembly_gen",
            "assembly_id oper_expression asym_id_list",
            [(1, 1, ",".join(asyms))],
        ),
        *loop("_pdbx_struct_oper_list", " ".join(["id", *items]), ["1 1 0 0 0 1 0 0 0 1 0 0 0"]),
        *loop("_atom_site", ATOM_ITEMS, _atoms(entities, asyms, seed)),
    ]
    return "\n".join(lines) + "\n"


def sequence_of(entity: SimulatedEntity) -> str:
    """Canonical letters of a polymer."""
    return "".join(components()[code].letter for code in entity.residues)


def _atoms(entities: tuple[SimulatedEntity, ...], asyms: list[str], seed: int) -> list[str]:
    """Rows of `_atom_site`."""
    rng = np.random.default_rng(seed + 1000)
    names = iter(asyms)
    rows: list[str] = []
    for number, entity in enumerate(entities, 1):
        for origin in entity.copies:
            asym, end = next(names), np.array(origin, float)
            end += _helix(components()[entity.residues[0]], 1) if entity.polymer else 0
            for i, code in enumerate(entity.residues, 1):
                component, start = components()[code], end
                if entity.polymer:
                    end = start + _helix(component, i + 1) - _helix(component, i)
                if entity.polymer and i == 3:  # an unresolved residue
                    continue
                positions = start + _oriented(component, end - start, rng)
                seq_id, group = (str(i), "ATOM") if entity.polymer else (".", "HETATM")
                atoms = zip(component.names, component.elements, positions, strict=True)
                for name, element, position in atoms:
                    if entity.polymer and name in _LEAVING:
                        continue
                    x, y, z = (f"{value:.3f}" for value in position)
                    rows.append(
                        f"{group} {len(rows) + 1} {element} {_quoted(name)} . {code} {asym} "
                        f"{number} {seq_id} ? {x} {y} {z} 1.00 {20 + i % 30:.2f} {i} {asym} 1"
                    )
    return rows


def _ends(component: Component) -> np.ndarray:
    """Positions of the atoms that bond to the previous and the next residue."""
    names = component.names
    ends = ("N", "C") if "N" in names and "CA" in names else ("P", "O3'")
    return np.asarray(component.position[[names.index(name) for name in ends]])


def _helix(component: Component, seq_id: int) -> np.ndarray:
    """The start of residue `seq_id` on a helix of such residues."""
    scale = (np.linalg.norm(np.subtract(*_ends(component))) + 1.4) / 3.8
    turn = np.radians(100 * seq_id)
    return np.asarray(scale * np.array([2.3 * np.cos(turn), 2.3 * np.sin(turn), 1.5 * seq_id]))


def _oriented(component: Component, step: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions of a ligand in a random orientation; of a residue, along the step to the next."""
    if not step.any():
        return np.asarray(component.position @ np.linalg.qr(rng.normal(size=[3, 3]))[0])
    first, last = _ends(component)
    source, target = (_frame(axis, rng.normal(size=3)) for axis in (last - first, step))
    return np.asarray((component.position - first) @ source @ target.T)


def _frame(axis: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A right-handed frame as columns, the first along the axis."""
    x = axis / np.linalg.norm(axis)
    y = other - x * (other @ x)
    y /= np.linalg.norm(y)
    return np.stack([x, y, np.cross(x, y)], 1)


def alignment_a3m(sequence: str, seed: int, rows: int, *, uniprot: bool) -> str:
    """A random alignment with species and insertions, the query first."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    records = [f">query\n{sequence}\n"]
    for row in range(rows):
        homolog = np.array(list(sequence))
        is_changed = rng.random(len(homolog)) < 0.4
        homolog[is_changed] = rng.choice(letters, int(is_changed.sum()))
        homolog[rng.random(len(homolog)) < 0.1] = "-"
        body = "".join(homolog)
        if row % 3 == 0:
            body = body[:5] + "gg" + body[5:]
        name = f"A{row:05d}"
        mnemonic = f"SPC{row % 12:02d}"
        head = f"tr|{name}|{name}_{mnemonic}/1-{len(sequence)}" if uniprot else f"UniRef90_{name}"
        records.append(f">{head}\n{body}\n")
    return "".join(records)


def write_entries(out: str | Path, count: int, *, seed: int = 0, residues: int = 24) -> list[str]:
    """Write the files of `count` entries below a folder; returns their names."""
    root = Path(out)
    (root / "mmcif").mkdir(parents=True, exist_ok=True)
    (root / "components.cif").write_bytes(COMPONENTS.read_bytes())
    names = []
    for number in range(count):
        entry = f"s{number:03d}"
        names.append(entry)
        (root / "mmcif" / f"{entry}.cif").write_text(entry_cif(entry, seed + number, residues))
        sequence = sequence_of(simulated_entities(seed + number, residues)[0])
        folder = root / "msa" / f"{entry}_1"
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("uniref90_hits", 60), ("uniprot_hits", 40)):
            a3m = alignment_a3m(sequence, seed + number, rows, uniprot=name == "uniprot_hits")
            (folder / f"{name}.a3m").write_text(a3m)
    return names
