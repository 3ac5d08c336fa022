"""Structures and release dates of template hits, from a folder, cached once parsed."""

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
from evofeed.featurize.structures.structure_files import (
    entry_file_names,
    entry_folders,
    parse_structure,
)

_PDB_ID: Final = re.compile(r"[A-Za-z0-9]{1,32}$")
_CACHE_NBYTES: Final = 256 << 20
"""Bytes of structure files whose parsed entries stay in memory, where they take about as much: a
few hundred entries. Hits of one family recur."""


@dataclass(slots=True)
class FolderUse:
    """Files that were read or missing in a folder of structures.

    Attributes:
        files: size and time of each when read, by name below the folder; '' if it was gone.
        missing: ids of requested entries without a file.
    """

    files: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)

    def add(self, other: FolderUse) -> None:
        """Adds the files and ids of another use."""
        self.files.update(other.files)
        self.missing.update(other.missing)


class _CachedEntry(NamedTuple):
    """A parsed entry, or the error of parsing it; `nbytes` is its share of the cache."""

    entry: Structure | TemplateError
    nbytes: int
    name: str
    stamp: str


class TemplateLibrary:
    """Structures by PDB id from a folder of `<id>.cif`, packed or not, or of the wwPDB's mirror.

    That is `<id[1:3]>/<id>.cif` or `pdb<id>.ent`, or either below `mmCIF/` or `pdb/`.

    Structures are cached, the least recently used dropped first; so are errors of broken files.
    Folders are listed once.

    Attributes:
        use: files read and entries missing so far. A caller who wants those of one piece of work
            assigns an empty one before it.
    """

    def __init__(
        self,
        mmcif_dir: str,
        config: FeaturizeConfig,
        *,
        release_dates: Mapping[str, str] | None = None,
        obsolete: Mapping[str, str] | None = None,
        cache_nbytes: int = _CACHE_NBYTES,
    ) -> None:
        self.folder = mmcif_dir
        self.use = FolderUse()
        self._folder = Path(mmcif_dir)
        self._config = config
        self._cache_nbytes, self._nbytes = cache_nbytes, 0
        self._cache: OrderedDict[str, _CachedEntry] = OrderedDict()
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
            TemplateError: it has no file or cannot be parsed; says why.
        """
        if pdb_id in self._cache:
            self._cache.move_to_end(pdb_id)
        else:
            path = self.find(pdb_id)
            if path is None:  # not cached: thousands of missing ones would evict the others
                self.use.missing.add(pdb_id)
                missing = self._folder / f"{pdb_id}.cif"
                raise TemplateError("no structure file", path=str(missing))
            self._cache[pdb_id] = self._parse(pdb_id, path)
            self._nbytes += self._cache[pdb_id].nbytes
            while self._nbytes > self._cache_nbytes and len(self._cache) > 1:
                self._nbytes -= self._cache.popitem(last=False)[1].nbytes
        cached = self._cache[pdb_id]
        self.use.files[cached.name] = cached.stamp
        if isinstance(cached.entry, TemplateError):
            raise TemplateError(cached.entry.message, path=cached.entry.path)
        return cached.entry

    def _parse(self, pdb_id: str, path: Path) -> _CachedEntry:
        self.parsed += 1
        name, stamp = path.relative_to(self._folder).as_posix(), ""
        try:
            stat = path.stat()  # before reading, so that a change meanwhile is noticed later
            stamp = f"{stat.st_size} {stat.st_mtime_ns}"
            data = read_bytes(file_ref(path), self._config.caps)
            entry = parse_structure(data, plain(path.name), path=str(path), config=self._config)
        except (InputError, OSError) as error:
            reason = error.message if isinstance(error, InputError) else str(error.strerror)
            broken = TemplateError("broken structure file: " + reason, path=str(path))
            return _CachedEntry(broken, 0, name, stamp)
        return _CachedEntry(entry, len(data), name, stamp)

    def find(self, pdb_id: str) -> Path | None:
        """The file of an entry; None if its folder had none when it was listed."""
        if not _PDB_ID.match(pdb_id):  # a hit's name must not lead out of the folder
            return None
        names = list(entry_file_names(pdb_id, legacy=not self._config.all_pdb_residues))
        for subfolder in entry_folders(pdb_id):
            folder = self._folder / subfolder
            listed = self._names(str(folder))
            name = next((candidate for candidate in names if candidate in listed), None)
            if name is not None:
                return folder / name
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
        InputError: the file is not such a cache.
    """
    try:
        entries: dict[str, Any] = parse_json(read_bytes(file_ref(path)))
        return {name.lower(): entry["release_date"] for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"not a release date cache: {error!r}", path=path) from None


def read_obsolete(path: str) -> dict[str, str]:
    """Obsolete PDB id -> its final successor, from the PDB's `obsolete.dat`.

    Lines are `OBSLTE    31-JUL-94 116L     216L`; entries without a successor and loops of
    replacements are left out.
    """
    direct = {}
    for line in read_bytes(file_ref(path)).decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text.startswith("OBSLTE") and len(text) > 30:
            direct[text[20:24].lower()] = text[29:33].lower()
    final = {}
    for obsolete in direct:
        visited = {obsolete}
        successor = direct[obsolete]
        while successor in direct and successor not in visited:
            visited.add(successor)
            successor = direct[successor]
        if successor not in direct:
            final[obsolete] = successor
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
    """The library of a source's templates; None without a folder. The process caches four."""
    if source.template_mmcif_dir is None:
        return None
    return _library(source.template_mmcif_dir, source.release_dates, source.obsolete_pdbs, config)


def forget_libraries() -> None:
    """Drops this process's cached template libraries: files may have changed or been added."""
    _library.cache_clear()
