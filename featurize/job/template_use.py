"""The template files that a unit has read, and whether they have changed since.

They are not part of a unit's id: the files that its chains need are known only when it is done,
and a template folder holds the whole PDB. So the ledger stores, for a done unit, the names of the
files read, one digest over their sizes and times, and the entries that were missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.reading import plain
from evofeed.featurize.job.units import stamp_of
from evofeed.featurize.records.template_library import FolderUse, TemplateLibrary
from evofeed.featurize.structures.structure_files import SUFFIXES, entry_of

TemplateUse = dict[str, FolderUse]
"""Template files and entries needed, by folder."""


def stored_templates(use: TemplateUse) -> list[dict[str, Any]]:
    """Template use for the ledger: one digest, since a stamp for each file takes 30 bytes more."""
    return [
        {
            "folder": folder,
            "names": sorted(needed.files),
            "stamps": _digest(needed.files),
            "missing": sorted(needed.missing),
        }
        for folder, needed in sorted(use.items())
        if needed.files or needed.missing
    ]


def outdated_units(
    done_units: Iterable[Mapping[str, Any]],
    config: FeaturizeConfig,
    find_outside: Callable[[str, str], Path | None] = lambda *_: None,
) -> dict[str, str]:
    """Units whose template files changed, or would be read from others now, each with one folder
    of these; `find_outside` finds a file next to a folder, by the folder and the entry's id."""
    stamp = cache(stamp_of)
    libraries: dict[str, Callable[[str], Path | None]] = {}

    def has_changed(use: Mapping[str, Any]) -> bool:
        folder = use["folder"]
        stamps = {name: stamp(Path(folder, name)) for name in use["names"]}
        if use.get("stamps") != _digest(stamps):
            return True
        if folder not in libraries:
            libraries[folder] = cache(TemplateLibrary(folder, config).find)
        find = libraries[folder]

        def preferred(name: str) -> Path | None:
            entry = entry_of(plain(Path(name).name))
            if Path(name).is_absolute():
                return find_outside(folder, entry)
            return find(entry) if plain(name).endswith(SUFFIXES) else None

        return any(find(name) or find_outside(folder, name) for name in use["missing"]) or any(
            preferred(name) not in (None, Path(folder, name)) for name in use["names"]
        )

    outdated = {}
    for unit in done_units:
        uses = (unit["shard"] or {}).get("templates", ())
        if use := next(filter(has_changed, uses), None):
            outdated[unit["unit_id"]] = str(use["folder"])
    return outdated


def _digest(stamps: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {stamps[name]}" for name in sorted(stamps))
    return hashlib.sha256(text.encode()).hexdigest()
