"""OpenFold3's prepared set -> records: its cache, `<entry>/<entry>.npz`, reference molecules, rows.

The cache is the one of its preprocessing or one cut for training, which has clusters and the
representatives whose alignments stand for a chain's. A chain with one has its query as sequence.
Layout: OpenFold3 0.5.0, `preprocessing/structure.py` and `primitives/caches/{format,lmdb}.py`.
"""

from __future__ import annotations

import datetime
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from evofeed.base.errors import InputError
from evofeed.base.files import parse_json
from evofeed.featurize.entries.alignments import alignment_folders
from evofeed.featurize.entries.molecules import annotated_molecule
from evofeed.featurize.entries.targets import (
    PreparedSet,
    Target,
    array_section,
    representative,
    target_of,
)
from evofeed.featurize.formats.packed_arrays import TABLE_ERRORS, Inert, unpickle
from evofeed.featurize.formats.reading import file_ref, read_bytes, read_head

_HEAD: Final = 1 << 16
_TYPES: Final = np.array([0, 2, 1, 3])
"""`RulesetSection.chain_type` of OpenFold3's protein, RNA, DNA and ligand."""


def openfold3_set(place: str, alignments: str) -> PreparedSet | None:
    """The set in a folder, or of one of its caches; None if there is none.

    Raises:
        InputError: the cache is none.
    """
    root = Path(place)
    caches = [root] if root.suffix == ".json" or _is_lmdb(root) else _caches(root)
    if not caches:
        return None
    root = caches[0].parent
    arrays = [*root.glob("*/*/*.npz"), *root.glob("*/*.npz")]
    structures = {one.parent.name: one for one in arrays if _is_structure(one)}
    rows = [
        one
        for one in arrays
        if not _is_structure(one) and (one.stem == "alignment" or one.parent.parent == root)
    ]
    homes = {file.parent.parent if file.stem == "alignment" else file.parent for file in rows}
    where = alignments or str(min(homes, key=lambda one: ("template" in one.name, one), default=""))
    named = (
        {representative(files[0]): files[0] for files in alignment_folders(where)} if where else {}
    )
    items, left_out, molecules = [], [], {}
    try:
        read = _cache(caches[0])
        for entry, about in read["structure_data"].items():
            if about.get("status", "success") != "success" or not about["chains"]:
                left_out.append((entry, f"OpenFold3 has not prepared it: {about.get('status')}"))
                continue
            names = {one.get("alignment_representative_id") for one in about["chains"].values()}
            path = str(structures.get(entry, root / "structure_files" / entry / f"{entry}.npz"))
            files = [named[name] for name in sorted(names & named.keys(), key=str)]
            items.append((entry, path, json.dumps({**about, "id": entry}), *files))
        for name, about in read.get("reference_molecule_data", {}).items():
            file = root / "reference_mols" / f"{name}.sdf"
            if about["conformer_gen_strategy"] == "use_fallback" and file.is_file():
                hidden = bool(about.get("set_fallback_to_nan"))
                molecules[name] = annotated_molecule(str(file), hidden=hidden)
    except TABLE_ERRORS as error:
        raise InputError(f"no cache of OpenFold3: {error!r}", path=str(caches[0])) from None
    rows_of = (one for one in sorted(root.glob("*template*")) if any(one.glob("*.npz")))
    templates = str(next(rows_of, ""))
    return PreparedSet("openfold3", items, where, left_out, molecules, templates)


def _caches(root: Path) -> list[Path]:
    """Lists of entries that OpenFold3 wrote, those with clusters first, those in LMDB last."""
    heads = {path: read_head(file_ref(path), _HEAD) for path in sorted(root.glob("*.json"))}
    found = [path for path, head in heads.items() if b'"structure_data"' in head]
    found.sort(key=lambda path: b'"cluster_id"' not in heads[path])
    return found + sorted(filter(_is_lmdb, root.glob("*")))


def _is_lmdb(path: Path) -> bool:
    return any(path.glob("data.mdb"))  # none where it cannot be listed


def _cache(path: Path) -> dict[str, Any]:
    """A cache as its JSON has it.

    Raises:
        InputError: the package lmdb is needed and not there, or the database is none.
    """
    if path.is_file():
        return dict(parse_json(read_bytes(file_ref(path))))
    try:
        lmdb = importlib.import_module("lmdb")
    except ImportError:
        why = "a cache in LMDB needs lmdb: `pip install lmdb`, or name the JSON it was made of"
        raise InputError(why, path=str(path)) from None
    found: dict[str, Any] = {"structure_data": {}, "reference_molecule_data": {}}
    try:
        with lmdb.open(str(path), readonly=True, lock=False) as file, file.begin() as reading:
            for key, value in reading.cursor():
                part, _, name = bytes(key).decode().partition(":")
                if part in found:
                    is_json = value[:1] == b"{"
                    one = parse_json(value) if is_json else unpickle(value, f"{path}: {name}")
                    found[part][name] = _plain(one)
    except lmdb.Error as error:
        raise InputError(f"no cache in LMDB: {error}", path=str(path)) from None
    return found


def _plain(value: Any) -> Any:
    """Objects of OpenFold3's classes as its JSON has them."""
    if isinstance(value, Inert):
        values = {key: one for key, one in vars(value).items() if key != "values"}
        return _plain(values) if values else None
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.isoformat()[:10] if isinstance(value, datetime.date) else value


def _is_structure(path: Path) -> bool:
    return path.stem in (path.parent.name, "structure")


def openfold3_target(
    about: dict[str, Any], arrays: Mapping[str, Any], queries: Mapping[Any, str]
) -> Target:
    """A structure, what the cache says of it, and queries of its representatives."""
    position = arrays["coord"]
    section = array_section(
        "openfold3",
        arrays,
        arrays["bonds"],
        ~np.isnan(position).all(1),
        [pair.split("_") if isinstance(pair, str) else pair for pair in about["interfaces"]],
        chain_type=_TYPES[arrays["molecule_type_id"]],
        chain_entity=arrays["entity_id"],
    )
    own = [about["chains"][name] for name in section.chain_name.tolist()]
    if "experimental_method" not in about and not about["resolution"]:
        about["method"] = "SOLUTION NMR"  # a cache for training has no others without a resolution
    return target_of(
        section,
        about["id"],
        position,
        about,
        [
            (queries.get(one.get("alignment_representative_id")), one.get("cluster_id"))
            for one in own
        ],
        occupancy=arrays["occupancy"],
    )
