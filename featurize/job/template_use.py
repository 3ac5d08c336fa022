"""Which template files a unit was made of, and whether they are still those.

They are no part of a unit's name: which ones its chains need shows only when it is done, and
a folder of them holds the whole PDB. So a done unit keeps the names of those it read, one
digest over their sizes and times, and the entries it would have read had they been there.
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
from evofeed.featurize.structures.structure_places import SUFFIXES, entry_of

TemplateUse = dict[str, FolderUse]
"""What was needed of each folder."""


def remembered(use: TemplateUse) -> list[dict[str, Any]]:
    """What a unit keeps of them: a name costs ten bytes, where a stamp for each cost thirty."""
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


def outdated(
    done: Iterable[Mapping[str, Any]],
    config: FeaturizeConfig,
    elsewhere: Callable[[str, str], Path | None] = lambda *_: None,
) -> dict[str, str]:
    """Units whose template files changed or came since, also before those that were read, each with
    a folder where one did; `elsewhere` finds by folder and id what lies beside a folder."""
    stamp = cache(stamp_of)
    libraries: dict[str, Callable[[str], Path | None]] = {}

    def changed(place: Mapping[str, Any]) -> bool:
        folder = place["folder"]
        now = {name: stamp(Path(folder, name)) for name in place["names"]}
        if place.get("stamps") != _digest(now):
            return True
        if folder not in libraries:
            libraries[folder] = cache(TemplateLibrary(folder, config).find)
        find = libraries[folder]

        def first(name: str) -> Path | None:
            entry = entry_of(plain(Path(name).name))
            if Path(name).is_absolute():
                return elsewhere(folder, entry)
            return find(entry) if plain(name).endswith(SUFFIXES) else None

        return any(find(name) or elsewhere(folder, name) for name in place["missing"]) or any(
            first(name) not in (None, Path(folder, name)) for name in place["names"]
        )

    found = {}
    for unit in done:
        places = (unit["shard"] or {}).get("templates", ())
        if place := next(filter(changed, places), None):
            found[unit["unit_id"]] = str(place["folder"])
    return found


def _digest(stamps: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {stamps[name]}" for name in sorted(stamps))
    return hashlib.sha256(text.encode()).hexdigest()
