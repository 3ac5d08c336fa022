"""Structure files: format and entry by file name, and the files of a folder, which may be flat,
divided as in wwPDB mirrors, or nested."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import MmcifError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.reading import PACKED, entry_kind, plain
from evofeed.featurize.structures.structure import Structure

SUFFIXES: Final = (".cif", ".mmcif", ".pdb", ".ent")
"""Structure formats, in order of precedence."""
_ENDINGS: Final = tuple(suffix + packed for suffix in SUFFIXES for packed in ("", *PACKED))
_DIVIDED: Final = re.compile(r"[a-z0-9]{2}$")
"""Folders of a divided mirror: the middle letters of PDB ids."""
_WWPDB: Final = re.compile(r"pdb([0-9][a-z0-9]{3}|_[a-z0-9]{8})$", re.IGNORECASE)
"""Stems of legacy files in the wwPDB archive: `pdb4hhb.ent`."""
_AFDB: Final = re.compile(r"AF-([A-Z0-9]+)-F1-model_v\d+$")
_MIRRORS: Final = ("", *(f"{up}{kind}" for kind in ("mmCIF", "pdb")
                         for up in ("", "divided/", "all/")))  # fmt: skip
"""Folders with entries below any folder of a mirror that a user may name."""


def structure_files(root: Path, *, deep: bool = False, divided: bool = True) -> list[Path]:
    """The structure files of a folder, of each entry only those of its first format.

    Args:
        deep: those of all subfolders, too.
        divided: those in subfolders of a divided mirror, too.
    """
    best: dict[str, int] = {}
    files = list(_files(root, deep, divided))
    for entry, rank, _ in files:
        best[entry] = min(rank, best.get(entry, rank))
    return sorted(Path(path) for entry, rank, path in files if rank == best[entry])


def structures_by_entry(folders: Iterable[Path], *, deep: bool = False) -> dict[str, str]:
    """Path by entry or chain, of the first format, then of the first folder.

    Entries of AlphaFold's database are listed by UniProt accession too.
    """
    best: dict[str, tuple[int, str]] = {}
    for folder in folders:
        for entry, rank, path in _files(folder, deep):
            accession = _AFDB.match(entry)
            for name in (entry, accession[1]) if accession else (entry,):
                if name not in best or rank < best[name][0]:
                    best[name] = (rank, path)
    return {name: path for name, (_, path) in best.items()}


def _files(folder: Path, deep: bool, divided: bool = True) -> Iterator[tuple[str, int, str]]:
    """Entry, rank of the format, and path of each structure file."""
    subfolders = []
    for item in sorted(os.scandir(folder), key=lambda item: item.name):
        if entry_kind(item) == "dir":
            if (deep and not item.name.startswith(".")) or (divided and _DIVIDED.match(item.name)):
                subfolders.append(item)
        elif (rank := _rank(item.name)) is not None:
            yield entry_of(plain(item.name)), rank, item.path
    for item in subfolders:
        if not item.is_symlink():
            yield from _files(Path(item.path), deep)


def _rank(name: str) -> int | None:
    return next((rank for rank, end in enumerate(_ENDINGS) if name.lower().endswith(end)), None)


def entry_folders(pdb_id: str) -> Iterator[str]:
    """Subfolders of a mirror that may have an entry, the likeliest first."""
    for mirror in _MIRRORS:
        yield mirror
        yield f"{mirror}/{pdb_id[1:3]}" if mirror else pdb_id[1:3]


def entry_file_names(pdb_id: str, *, legacy: bool) -> Iterator[str]:
    """File names of an entry in order of precedence; `legacy`: other formats than mmCIF too."""
    stems = [f"{pdb_id}{suffix}" for suffix in (SUFFIXES if legacy else SUFFIXES[:1])]
    stems += [f"pdb{pdb_id}.ent"] if legacy else []
    for stem in stems:
        yield from (f"{stem}{packed}" for packed in ("", *PACKED))


def entry_of(name: str) -> str:
    """Entry of a structure file by its name without compression suffix: 4hhb of `pdb4hhb.ent`."""
    stem, _, suffix = name.rpartition(".")
    match = _WWPDB.match(stem) if suffix.lower() == "ent" else None
    return match[1] if match else stem


def parse_structure(
    data: bytes,
    name: str,
    *,
    path: str = "",
    config: FeaturizeConfig | None = None,
    is_distillation: bool = False,
) -> Structure:
    """The chains of a structure file.

    Args:
        name: file name without compression suffix; gives format and entry.
        is_distillation: B factors are confidences; residues below
            `confidence_threshold` lose their atoms.

    Raises:
        MmcifError: not that format, a table or item is missing or invalid, no protein in it,
            or anything that the configuration refuses as OpenFold does.
    """
    # Parsers are imported with their first file: numba takes half a second.
    stem, suffix = entry_of(name), name.rpartition(".")[2].lower()
    options: dict[str, Any] = {"path": path, "config": config, "is_distillation": is_distillation}
    if suffix in ("cif", "mmcif"):
        from evofeed.featurize.structures.mmcif import parse_mmcif

        return parse_mmcif(data, file_id=stem, **options)
    if suffix in ("pdb", "ent"):
        from evofeed.featurize.structures.pdb import parse_pdb

        return parse_pdb(data, file_id=stem, **options)
    message = f"{name!r} is not a structure file: expected one of {', '.join(SUFFIXES)}"
    raise MmcifError(message, path=path)
