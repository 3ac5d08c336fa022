"""Structure files: how their names tell the format, and those of a folder, flat, divided as the
wwPDB mirrors them, or nested in any way."""

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
"""Structure formats, in the order in which they are looked for."""
_KINDS: Final = tuple(suffix + packed for suffix in SUFFIXES for packed in ("", *PACKED))
_DIVIDED: Final = re.compile(r"[a-z0-9]{2}$")
"""Folders of a divided mirror: the middle letters of its entries' ids."""
_WWPDB: Final = re.compile(r"pdb([0-9][a-z0-9]{3}|_[a-z0-9]{8})$", re.IGNORECASE)
"""The wwPDB's own names of legacy files: `pdb4hhb.ent`."""
_AFDB: Final = re.compile(r"AF-([A-Z0-9]+)-F1-model_v\d+$")
_MIRRORS: Final = ("", *(f"{up}{kind}" for kind in ("mmCIF", "pdb")
                         for up in ("", "divided/", "all/")))  # fmt: skip
"""Where entries lie below the folder of a mirror that a user may name."""


def structure_files(root: Path, *, deep: bool = False, divided: bool = True) -> list[Path]:
    """The structure files of a folder, of each entry those of the first kind it has; those of a
    divided mirror are looked into, `deep` all below.
    """
    best: dict[str, int] = {}
    found = list(_files(root, deep, divided))
    for entry, kind, _ in found:
        best[entry] = min(kind, best.get(entry, kind))
    return sorted(Path(path) for entry, kind, path in found if kind == best[entry])


def structures_by_entry(places: Iterable[Path], *, deep: bool = False) -> dict[str, str]:
    """File by entry or chain; the first kind counts, then the first folder.

    Entries of AlphaFold's database are there by UniProt accession too.
    """
    found: dict[str, tuple[int, str]] = {}
    for place in places:
        for entry, kind, path in _files(place, deep):
            accession = _AFDB.match(entry)
            for name in (entry, accession[1]) if accession else (entry,):
                if name not in found or kind < found[name][0]:
                    found[name] = (kind, path)
    return {name: path for name, (_, path) in found.items()}


def _files(folder: Path, deep: bool, divided: bool = True) -> Iterator[tuple[str, int, str]]:
    """Entry, rank of its kind, and path of each structure file."""
    below = []
    for item in sorted(os.scandir(folder), key=lambda item: item.name):
        if entry_kind(item) == "dir":
            if (deep and not item.name.startswith(".")) or (divided and _DIVIDED.match(item.name)):
                below.append(item)
        elif (kind := _kind(item.name)) is not None:
            yield entry_of(plain(item.name)), kind, item.path
    for item in below:
        if not item.is_symlink():
            yield from _files(Path(item.path), deep)


def _kind(name: str) -> int | None:
    return next((rank for rank, kind in enumerate(_KINDS) if name.lower().endswith(kind)), None)


def homes_of_entry(pdb_id: str) -> Iterator[str]:
    """Folders below that of a mirror in which an entry may lie, the likeliest first."""
    for mirror in _MIRRORS:
        yield mirror
        yield f"{mirror}/{pdb_id[1:3]}" if mirror else pdb_id[1:3]


def names_of_entry(pdb_id: str, *, legacy: bool) -> Iterator[str]:
    """File names an entry may have, the first counts; `legacy`: other formats than mmCIF too."""
    stems = [f"{pdb_id}{suffix}" for suffix in (SUFFIXES if legacy else SUFFIXES[:1])]
    stems += [f"pdb{pdb_id}.ent"] if legacy else []
    for stem in stems:
        yield from (f"{stem}{packed}" for packed in ("", *PACKED))


def entry_of(name: str) -> str:
    """Entry of a structure file by its name without compression suffix: 4hhb of `pdb4hhb.ent`."""
    stem, _, suffix = name.rpartition(".")
    found = _WWPDB.match(stem) if suffix.lower() == "ent" else None
    return found[1] if found else stem


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
        MmcifError: not that format, a table or item is missing or nonsense, no protein in it,
            or something that the configuration refuses as OpenFold does.
    """
    # Parsers are imported with their first file: numba takes half a second.
    stem, suffix = entry_of(name), name.rpartition(".")[2].lower()
    about: dict[str, Any] = {"path": path, "config": config, "is_distillation": is_distillation}
    if suffix in ("cif", "mmcif"):
        from evofeed.featurize.structures.mmcif import parse_mmcif

        return parse_mmcif(data, file_id=stem, **about)
    if suffix in ("pdb", "ent"):
        from evofeed.featurize.structures.pdb import parse_pdb

        return parse_pdb(data, file_id=stem, **about)
    raise MmcifError(
        f"{name!r} is not a structure file: expected one of {', '.join(SUFFIXES)}", path=path
    )
