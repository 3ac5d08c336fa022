"""OpenFold3's template caches: `<representative>.npz`, with arrays of atoms or mmCIF files in a
folder next to theirs.

A cache has the hits of a query by `<pdb id>_<chain>`, each with its index in the alignment, its
date and the pairs of aligned residues. Layout: OpenFold3 0.5.0, `preprocessing/template.py` and
`primitives/structure/template.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError
from evofeed.featurize.formats.packed_arrays import TABLE_ERRORS, Npz, unpickle
from evofeed.featurize.formats.reading import PACKED, file_ref, plain, read_bytes
from evofeed.featurize.job.units import stamp_of
from evofeed.featurize.records.entry import entry_record
from evofeed.featurize.records.rulesets.openfold3 import template_chain
from evofeed.featurize.records.template_library import FolderUse
from evofeed.protein.alignment import Templates
from evofeed.protein.components import ComponentTable
from evofeed.protein.entry_record import run_starts
from evofeed.protein.residues import GAP, RESTYPE_3, RESTYPES

_BACKBONE: Final = ("N", "CA", "C")


def template_cache(folder: str, representative: str, use: FolderUse) -> Path | None:
    """The cache of a representative's hits in a folder of caches; None if there is none."""
    names = (f"{representative}.npz", f"{representative}/template.npz")
    use.files |= {name: stamp_of(Path(folder, name)) for name in names}
    return next((path for name in names if (path := Path(folder, name)).is_file()), None)


def cached_templates(
    path: Path, length: int, components: ComponentTable, use: FolderUse
) -> tuple[Templates, list[str]]:
    """Templates of a query of `length` residues, by index in the alignment, and notes.

    A template without a structure keeps its row, as in OpenFold3. `use` records the files read.

    Raises:
        InputError: the cache or an array is damaged, or they do not match.
    """
    table = Npz(read_bytes(file_ref(path)), str(path))
    rows, num_missing = [], 0
    folder = path.parent if path.stem != "template" else path.parents[1]
    try:
        for name, hit in sorted(table.items(), key=lambda item: int(item[1]["index"])):
            restype = np.full(length, GAP, np.uint8)
            position = np.full((length, 4, 3), np.nan, np.float32)
            file = template_structure(str(folder), name)
            if file is None:
                use.missing.add(name)
                num_missing += 1
            else:
                use.files[str(file)] = stamp_of(file)
                atoms = _atom_columns(file, name, components)
                _fill_template(atoms, np.asarray(hit["idx_map"]), restype, position)
            rows.append((name, str(hit["release_date"])[:10], restype, position))
    except TABLE_ERRORS as error:
        raise InputError(f"not a template cache of OpenFold3: {error!r}", path=str(path)) from None
    shape = (len(rows), length)
    templates = Templates(
        name=tuple(row[0] for row in rows),
        date=tuple(row[1] for row in rows),
        restype=np.array([row[2] for row in rows], np.uint8).reshape(shape),
        position=np.array([row[3] for row in rows], np.float32).reshape(*shape, 4, 3),
    )
    note = f"{num_missing} of {len(rows)} templates passed over: no structure next to the cache"
    return templates, [note] if num_missing else []


def template_structure(folder: str, name: str) -> Path | None:
    """File of a chain's atoms: `<pdb id>/<pdb id>_<chain>.npz` or `.pkl`, or `<pdb id>.cif`."""
    root = Path(folder).parent
    entry = name.partition("_")[0]
    parts = [f"*template*/{entry}/{name}.{suffix}" for suffix in ("npz", "pkl")]
    parts += [f"*template*/{entry}.cif{packed}" for packed in ("", *PACKED)]
    return next((file for part in parts for file in sorted(root.glob(part))), None)


def _atom_columns(file: Path, name: str, components: ComponentTable) -> Mapping[str, Any]:
    data = read_bytes(file_ref(file))
    if plain(file.name).endswith(".cif"):
        record = entry_record(data, path=str(file))
        atoms = template_chain(record, components, name.partition("_")[2])
        columns = ("res_id", "res_name", "occupancy")
        table = {column: getattr(atoms, column) for column in columns}
        return {**table, "atom_name": atoms.name, "coord": atoms.position}
    if file.suffix == ".npz":
        return Npz(data, str(file))
    array = vars(unpickle(data, str(file)))
    return {**array["_annot"], "coord": array["_coord"]}


def _fill_template(
    columns: Mapping[str, Any], pairs: np.ndarray, restype: np.ndarray, position: np.ndarray
) -> None:
    """Fills in residue types and atoms at the query's positions.

    Of two residues with one number, the one of higher occupancy is used; a modified residue only
    if it has all four atoms.
    """
    number, atom_names = columns["res_id"].astype(np.int64), columns["atom_name"].tolist()
    names, coordinates = columns["res_name"].tolist(), columns["coord"]
    starts = run_starts(number, columns["res_name"])
    weight = np.add.reduceat(np.asarray(columns["occupancy"], np.float64), starts)
    ends = np.append(starts[1:], len(number)).tolist()
    span_of: dict[int, tuple[int, int]] = {}
    for row in np.argsort(-weight, kind="stable").tolist():
        span_of.setdefault(int(number[starts[row]]), (int(starts[row]), ends[row]))
    for query, template in pairs[pairs[:, 0] != -1].tolist():
        if not 1 <= query <= len(restype):
            raise ValueError(f"a pair of residue {query} of {len(restype)}")
        if template not in span_of:
            continue
        low, high = span_of[template]
        name = names[low]
        atoms = {atom_names[row]: coordinates[row] for row in range(low, high)}
        backbone = (*_BACKBONE, "CA" if name == "GLY" else "CB")
        if name not in RESTYPE_3 and not all(atom in atoms for atom in backbone):
            continue
        code = RESTYPE_3.index(name) if name in RESTYPE_3 else len(RESTYPES)
        restype[query - 1] = code
        for column, atom in enumerate(backbone):
            position[query - 1, column] = atoms.get(atom, np.nan)
