"""OpenFold3's template caches: `<representative>.npz`, and in a folder beside arrays of atoms, or
the mmCIF files that it makes these of.

A cache has the hits of a query by `<pdb id>_<chain>`, each with its place in the alignment, its
date and the pairs of residues that face each other. Layout: OpenFold3 0.5.0,
`preprocessing/template.py` and `primitives/structure/template.py`.
"""

from __future__ import annotations

from collections import Counter
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
    """The cache of a representative's hits in a folder of them; None if there is none."""
    names = (f"{representative}.npz", f"{representative}/template.npz")
    use.files |= {name: stamp_of(Path(folder, name)) for name in names}
    return next((path for name in names if (path := Path(folder, name)).is_file()), None)


def cached_templates(
    path: Path, length: int, components: ComponentTable, use: FolderUse
) -> tuple[Templates, list[str]]:
    """Templates of a query of so many residues, by their place in the alignment, and what was
    passed over, in words. One without a structure keeps its place, as in OpenFold3. `use` is told
    what was read.

    Raises:
        InputError: the cache or an array is damaged, or they do not fit together.
    """
    table = Npz(read_bytes(file_ref(path)), str(path))
    lost: Counter[str] = Counter()
    found = []
    folder = path.parent if path.stem != "template" else path.parents[1]
    try:
        for name, about in sorted(table.items(), key=lambda one: int(one[1]["index"])):
            restype = np.full(length, GAP, np.uint8)
            position = np.full((length, 4, 3), np.nan, np.float32)
            file = structure_beside(str(folder), name)
            if file is None:
                use.missing.add(name)
                lost["no structure beside the cache"] += 1
            else:
                use.files[str(file)] = stamp_of(file)
                arrays = _arrays(file, name, components)
                _lay(arrays, np.asarray(about["idx_map"]), restype, position)
            found.append((name, str(about["release_date"])[:10], restype, position))
    except TABLE_ERRORS as error:
        raise InputError(f"no template cache of OpenFold3: {error!r}", path=str(path)) from None
    shape = (len(found), length)
    templates = Templates(
        name=tuple(one[0] for one in found),
        date=tuple(one[1] for one in found),
        restype=np.array([one[2] for one in found], np.uint8).reshape(shape),
        position=np.array([one[3] for one in found], np.float32).reshape(*shape, 4, 3),
    )
    notes = [f"{count} of {len(found)} templates passed over: {why}" for why, count in lost.items()]
    return templates, notes


def structure_beside(folder: str, name: str) -> Path | None:
    """Where a chain's atoms are: `<pdb id>/<pdb id>_<chain>.npz` or `.pkl` or `<pdb id>.cif`."""
    beside = Path(folder).parent
    entry = name.partition("_")[0]
    parts = [f"*template*/{entry}/{name}.{suffix}" for suffix in ("npz", "pkl")]
    parts += [f"*template*/{entry}.cif{packed}" for packed in ("", *PACKED)]
    return next((file for part in parts for file in sorted(beside.glob(part))), None)


def _arrays(file: Path, name: str, components: ComponentTable) -> Mapping[str, Any]:
    data = read_bytes(file_ref(file))
    if plain(file.name).endswith(".cif"):
        record = entry_record(data, path=str(file))
        atoms = template_chain(record, components, name.partition("_")[2])
        columns = ("res_id", "res_name", "occupancy")
        found = {column: getattr(atoms, column) for column in columns}
        return {**found, "atom_name": atoms.name, "coord": atoms.position}
    if file.suffix == ".npz":
        return Npz(data, str(file))
    array = vars(unpickle(data, str(file)))
    return {**array["_annot"], "coord": array["_coord"]}


def _lay(
    arrays: Mapping[str, Any], pairs: np.ndarray, restype: np.ndarray, position: np.ndarray
) -> None:
    """Residues and atoms onto the query's columns. Of a residue that stands twice the one of more
    occupancy; a modified one only if it has all four atoms."""
    number, atom = arrays["res_id"].astype(np.int64), arrays["atom_name"].tolist()
    names, place = arrays["res_name"].tolist(), arrays["coord"]
    starts = run_starts(number, arrays["res_name"])
    weight = np.add.reduceat(np.asarray(arrays["occupancy"], np.float64), starts)
    ends = np.append(starts[1:], len(number)).tolist()
    known: dict[int, tuple[int, int]] = {}
    for row in np.argsort(-weight, kind="stable").tolist():
        known.setdefault(int(number[starts[row]]), (int(starts[row]), ends[row]))
    for query, template in pairs[pairs[:, 0] != -1].tolist():
        if not 1 <= query <= len(restype):
            raise ValueError(f"a pair of residue {query} of {len(restype)}")
        if template not in known:
            continue
        low, high = known[template]
        name = names[low]
        own = {atom[row]: place[row] for row in range(low, high)}
        wanted = (*_BACKBONE, "CA" if name == "GLY" else "CB")
        if name not in RESTYPE_3 and not all(one in own for one in wanted):
            continue
        code = RESTYPE_3.index(name) if name in RESTYPE_3 else len(RESTYPES)
        restype[query - 1] = code
        for column, one in enumerate(wanted):
            position[query - 1, column] = own.get(one, np.nan)
