"""Structures of template hits: found, parsed once and kept, with their dates."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from evofeed.base.errors import InputError, TemplateError
from evofeed.base.files import parse_json
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.reading import file_ref, plain, read_bytes
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.structures.structure import Structure
from evofeed.featurize.structures.structure_places import (
    homes_of_entry,
    names_of_entry,
    parse_structure,
)

_PDB_ID: Final = re.compile(r"[A-Za-z0-9]{1,32}$")
_KEPT_NBYTES: Final = 256 << 20
"""Bytes of structure files kept parsed in memory, where they take about as much: some hundred
entries. Hits of one family come again and again."""


@dataclass(slots=True)
class FolderUse:
    """What was needed of a folder of structures.

    Attributes:
        files: size and time of each when it was read, by name below the folder; '' if it was gone.
        missing: ids of entries that were asked for and have no file.
    """

    files: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)

    def add(self, other: FolderUse) -> None:
        """Take in what was needed for something else."""
        self.files.update(other.files)
        self.missing.update(other.missing)


class _Known(NamedTuple):
    """A parsed entry, or why there is none; `nbytes` is what it counts for in memory."""

    entry: Structure | TemplateError
    nbytes: int
    name: str
    stamp: str


class TemplateLibrary:
    """Structures by PDB id from a folder of `<id>.cif`, packed or not, or of the wwPDB's mirror.

    That is `<id[1:3]>/<id>.cif` or `pdb<id>.ent`, or either below `mmCIF/` or `pdb/`.

    A structure is read and parsed at most once while it is among the last used;
    one that is broken is remembered as such. Folders are listed once.

    Attributes:
        use: what answered requests, and what did not. It only grows; whoever wants to know
            what a piece of work needs puts an empty one there before.
    """

    def __init__(
        self,
        mmcif_dir: str,
        config: FeaturizeConfig,
        *,
        release_dates: Mapping[str, str] | None = None,
        obsolete: Mapping[str, str] | None = None,
        kept_nbytes: int = _KEPT_NBYTES,
    ) -> None:
        self.folder = mmcif_dir
        self.use = FolderUse()
        self._folder = Path(mmcif_dir)
        self._config = config
        self._kept_nbytes, self._nbytes = kept_nbytes, 0
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._listed: dict[str, frozenset[str]] = {}
        self.release_dates = dict(release_dates or {})
        self.obsolete = dict(obsolete or {})
        self.parsed = 0

    def current_id(self, pdb_id: str) -> str:
        """The entry that replaced an obsolete one, or the id itself."""
        if pdb_id in self.release_dates:
            return pdb_id
        return self.obsolete.get(pdb_id, pdb_id)

    def structure(self, pdb_id: str) -> Structure:
        """The parsed entry.

        Raises:
            TemplateError: it is not there, or cannot be parsed; says why.
        """
        if pdb_id in self._known:
            self._known.move_to_end(pdb_id)
        else:
            path = self.find(pdb_id)
            if path is None:  # not kept: thousands of them would push the others out
                self.use.missing.add(pdb_id)
                missing = self._folder / f"{pdb_id}.cif"
                raise TemplateError("no structure file", path=str(missing))
            self._known[pdb_id] = self._parse(pdb_id, path)
            self._nbytes += self._known[pdb_id].nbytes
            while self._nbytes > self._kept_nbytes and len(self._known) > 1:
                self._nbytes -= self._known.popitem(last=False)[1].nbytes
        known = self._known[pdb_id]
        self.use.files[known.name] = known.stamp
        if isinstance(known.entry, TemplateError):
            raise TemplateError(known.entry.message, path=known.entry.path)
        return known.entry

    def _parse(self, pdb_id: str, path: Path) -> _Known:
        self.parsed += 1
        name, stamp = path.relative_to(self._folder).as_posix(), ""
        try:
            stat = path.stat()  # before it is read: what changes meanwhile is noticed later
            stamp = f"{stat.st_size} {stat.st_mtime_ns}"
            data = read_bytes(file_ref(path), self._config.caps)
            entry = parse_structure(data, plain(path.name), path=str(path), config=self._config)
        except (InputError, OSError) as error:
            what = error.message if isinstance(error, InputError) else str(error.strerror)
            broken = TemplateError("broken structure file: " + what, path=str(path))
            return _Known(broken, 0, name, stamp)
        return _Known(entry, len(data), name, stamp)

    def find(self, pdb_id: str) -> Path | None:
        """The file of an entry, None if there was none when its folder was listed."""
        if not _PDB_ID.match(pdb_id):  # a hit's name must not lead out of the folder
            return None
        names = list(names_of_entry(pdb_id, legacy=not self._config.all_pdb_residues))
        for home in homes_of_entry(pdb_id):
            folder = self._folder / home
            here = self._names(str(folder))
            found = next((name for name in names if name in here), None)
            if found is not None:
                return folder / found
        return None

    def _names(self, folder: str) -> frozenset[str]:
        # Most hits of a search have no file here: one listing beats thousands of stats.
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(entry.name for entry in os.scandir(folder))
            except OSError:
                self._listed[folder] = frozenset()
        return self._listed[folder]


def read_release_dates(path: str) -> dict[str, str]:
    """PDB id (lower case) -> ISO date of an `mmcif_cache.json`.

    Raises:
        InputError: not that file.
    """
    try:
        entries: dict[str, Any] = parse_json(read_bytes(file_ref(path)))
        return {name.lower(): entry["release_date"] for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"not a release date cache: {error!r}", path=path) from None


def read_obsolete(path: str) -> dict[str, str]:
    """Obsolete PDB id -> the id that replaced it at last, of the PDB's `obsolete.dat`.

    Lines are `OBSLTE    31-JUL-94 116L     216L`; entries without successor are
    left out, chains of replacements are followed, loops among them dropped.
    """
    direct = {}
    for line in read_bytes(file_ref(path)).decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text.startswith("OBSLTE") and len(text) > 30:
            direct[text[20:24].lower()] = text[29:33].lower()
    final = {}
    for old in direct:
        seen = {old}
        new = direct[old]
        while new in direct and new not in seen:
            seen.add(new)
            new = direct[new]
        if new not in direct:
            final[old] = new
    return final


@lru_cache(maxsize=4)
def _library(
    mmcif_dir: str, release_dates: str | None, obsolete: str | None, config: FeaturizeConfig
) -> TemplateLibrary:
    return TemplateLibrary(
        mmcif_dir,
        config,
        release_dates=read_release_dates(release_dates) if release_dates else None,
        obsolete=read_obsolete(obsolete) if obsolete else None,
    )


def template_library(source: ChainSource, config: FeaturizeConfig) -> TemplateLibrary | None:
    """The library a source's templates come from, one per folder and process."""
    if source.template_mmcif_dir is None:
        return None
    return _library(source.template_mmcif_dir, source.release_dates, source.obsolete_pdbs, config)


def forget_libraries() -> None:
    """Let go of what this process knows of template folders: files may have changed or come."""
    _library.cache_clear()
