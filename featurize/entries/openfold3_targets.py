"""OpenFold3's prepared set -> records: cache, `<entry>/<entry>.npz`, molecules and alignments.

The cache is that of its preprocessing or a part for training, which has clusters and the
representatives whose alignments are used for a chain; its sequence is then the alignment's query.
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
    build_target,
    representative,
)
from evofeed.featurize.formats.packed_arrays import TABLE_ERRORS, Inert, unpickle
from evofeed.featurize.formats.reading import file_ref, read_bytes, read_head

_HEAD: Final = 1 << 16
_TYPES: Final = np.array([0, 2, 1, 3])
"""`RulesetSection.chain_type` of OpenFold3's protein, RNA, DNA and ligand."""


def openfold3_set(path: str, alignments: str) -> PreparedSet | None:
    """The set in a folder, or of one of its caches; None if there is none.

    Raises:
        InputError: the cache is damaged.
    """
    root = Path(path)
    caches = [root] if root.suffix == ".json" or _is_lmdb(root) else _caches(root)
    if not caches:
        return None
    root = caches[0].parent
    arrays = [*root.glob("*/*/*.npz"), *root.glob("*/*.npz")]
    structures = {file.parent.name: file for file in arrays if _is_structure(file)}
    folders = {
        file.parent.parent if file.stem == "alignment" else file.parent
        for file in arrays
        if not _is_structure(file) and (file.stem == "alignment" or file.parent.parent == root)
    }
    default = min(folders, key=lambda folder: ("template" in folder.name, folder), default="")
    alignments = alignments or str(default)
    groups = alignment_folders(alignments) if alignments else []
    by_representative = {representative(files[0]): files[0] for files in groups}
    items, left_out, molecules = [], [], {}
    try:
        cache = _cache(caches[0])
        for entry, metadata in cache["structure_data"].items():
            status = metadata.get("status", "success")
            if status != "success" or not (chains := metadata["chains"]):
                left_out.append((entry, f"OpenFold3 has not prepared it: {status}"))
                continue
            ids = {chain.get("alignment_representative_id") for chain in chains.values()}
            files = [by_representative[i] for i in sorted(ids & by_representative.keys(), key=str)]
            file = structures.get(entry, root / "structure_files" / entry / f"{entry}.npz")
            items.append((entry, str(file), json.dumps({**metadata, "id": entry}), *files))
        for name, metadata in cache.get("reference_molecule_data", {}).items():
            file = root / "reference_mols" / f"{name}.sdf"
            if metadata["conformer_gen_strategy"] == "use_fallback" and file.is_file():
                hidden = bool(metadata.get("set_fallback_to_nan"))
                molecules[name] = annotated_molecule(str(file), hidden=hidden)
    except TABLE_ERRORS as error:
        raise InputError(f"not a cache of OpenFold3: {error!r}", path=str(caches[0])) from None
    templates = (path for path in sorted(root.glob("*template*")) if any(path.glob("*.npz")))
    template_folder = str(next(templates, ""))
    return PreparedSet("openfold3", items, alignments, left_out, molecules, template_folder)


def _caches(root: Path) -> list[Path]:
    """OpenFold3's caches in a folder, those with clusters first, those in LMDB last."""
    heads = {path: read_head(file_ref(path), _HEAD) for path in sorted(root.glob("*.json"))}
    caches = [path for path, head in heads.items() if b'"structure_data"' in head]
    caches.sort(key=lambda path: b'"cluster_id"' not in heads[path])
    return caches + sorted(filter(_is_lmdb, root.glob("*")))


def _is_lmdb(path: Path) -> bool:
    return any(path.glob("data.mdb"))  # empty for a folder that cannot be listed


def _cache(path: Path) -> dict[str, Any]:
    """A cache in the form of its JSON.

    Raises:
        InputError: lmdb is needed but not installed, or the database is damaged.
    """
    if path.is_file():
        return dict(parse_json(read_bytes(file_ref(path))))
    try:
        lmdb = importlib.import_module("lmdb")
    except ImportError:
        reason = "a cache in LMDB needs lmdb: `pip install lmdb`, or name the JSON it was made of"
        raise InputError(reason, path=str(path)) from None
    cache: dict[str, Any] = {"structure_data": {}, "reference_molecule_data": {}}
    try:
        with lmdb.open(str(path), readonly=True, lock=False) as file, file.begin() as transaction:
            for key, value in transaction.cursor():
                table, _, name = bytes(key).decode().partition(":")
                if table in cache:
                    is_json = value[:1] == b"{"
                    record = parse_json(value) if is_json else unpickle(value, f"{path}: {name}")
                    cache[table][name] = _plain(record)
    except lmdb.Error as error:
        raise InputError(f"not a cache in LMDB: {error}", path=str(path)) from None
    return cache


def _plain(value: Any) -> Any:
    """Objects of OpenFold3's classes in the form of its JSON."""
    if isinstance(value, Inert):
        values = {key: item for key, item in vars(value).items() if key != "values"}
        return _plain(values) if values else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.isoformat()[:10] if isinstance(value, datetime.date) else value


def _is_structure(path: Path) -> bool:
    return path.stem in (path.parent.name, "structure")


def openfold3_target(
    metadata: dict[str, Any], arrays: Mapping[str, Any], queries: Mapping[Any, str]
) -> Target:
    """The target of a structure: its item in the cache, arrays, queries by representative."""
    position = arrays["coord"]
    section = array_section(
        "openfold3",
        arrays,
        arrays["bonds"],
        ~np.isnan(position).all(1),
        [pair.split("_") if isinstance(pair, str) else pair for pair in metadata["interfaces"]],
        chain_type=_TYPES[arrays["molecule_type_id"]],
        chain_entity=arrays["entity_id"],
    )
    chains = [metadata["chains"][name] for name in section.chain_name.tolist()]
    if "experimental_method" not in metadata and not metadata["resolution"]:
        # The only method without a resolution in a cache for training.
        metadata["method"] = "SOLUTION NMR"
    return build_target(
        section,
        metadata["id"],
        position,
        metadata,
        [
            (queries.get(chain.get("alignment_representative_id")), chain.get("cluster_id"))
            for chain in chains
        ],
        occupancy=arrays["occupancy"],
    )
