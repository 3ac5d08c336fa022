"""Which template files a unit was made of, and whether they are still those.

They are no part of a unit's name: which ones its chains need shows only when it is done, and
a folder of them holds the whole PDB. So a done unit keeps the names of those it read, one
digest over their contents, and the entries it would have read had they been there. Size and
time of the files are looked at when its job runs again, and only where those differ a file is
read; for the missing ones the folder is listed once.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from evofeed.base.errors import InputError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.reading import FileRef, file_ref, xxh3
from evofeed.featurize.inputs.roads.parts import read_part
from evofeed.featurize.job.inputs import KnownInputs, Stamp, input_key, stamp_of
from evofeed.featurize.records.template_library import FolderUse, TemplateLibrary

TemplateUse = dict[str, FolderUse]
"""What was needed of each folder."""


def template_key(ref: FileRef) -> str:
    """Its place among the ledger's inputs: not that of the same file as a chain's structure,
    whose name there is part of a unit's."""
    return f"template {input_key(ref)}"


def stamps(use: TemplateUse) -> dict[str, Stamp]:
    """The files as the ledger's inputs, by `template_key`; without those that were gone."""
    return {
        template_key(_ref(folder, name)): Stamp(
            f"{file.nbytes} {file.mtime_ns}", file.nbytes, file.mtime_ns, file.content
        )
        for folder, needed in use.items()
        for name, file in needed.files.items()
        if file.content
    }


def remembered(use: TemplateUse, known: KnownInputs) -> list[dict[str, str]]:
    """What a unit keeps of them: a name costs ten bytes, where a digest for each cost seventy."""
    return [
        {
            "folder": known.place(folder),
            "names": " ".join(sorted(needed.files)),
            "sha256": _digest({name: file.content for name, file in needed.files.items()}),
            "missing": " ".join(sorted(needed.missing)),
        }
        for folder, needed in sorted(use.items())
        if needed.files or needed.missing
    ]


def look_again(
    done: Iterable[Mapping[str, Any]], known: KnownInputs, config: FeaturizeConfig
) -> tuple[list[str], dict[str, Stamp]]:
    """Units to be done again, and the files as they are now, by `template_key`.

    Args:
        done: units, as rows of the ledger.
        known: how the files were when they were read last, and where.
        config: with the caps for reading a file.
    """
    now: dict[str, Stamp] = {}

    def content(ref: FileRef) -> str:
        key = template_key(ref)
        stamp = stamp_of(ref, config, known.stamps.get(key), known.check_content, xxh3)
        if stamp is None:
            return ""
        if not stamp.sha256:  # it was elsewhere, or had another size
            try:
                stamp = dataclasses.replace(stamp, sha256=xxh3(read_part(ref, config.caps)))
            except InputError:
                return ""
        now[key] = stamp
        return stamp.sha256

    found: dict[tuple[str, str], str] = {}

    def outdated(place: Mapping[str, str]) -> bool:
        """Whether files are not what they were."""
        folder, names = str(Path(known.root, place["folder"])), place["names"].split()
        for name in names:
            if (folder, name) not in found:
                found[folder, name] = content(_ref(folder, name))
        return place["sha256"] != _digest({name: found[folder, name] for name in names})

    libraries: dict[str, Callable[[str], Path | None]] = {}

    def wanting(place: Mapping[str, str]) -> bool:
        """Whether an entry that was missing is there now."""
        folder = str(Path(known.root, place["folder"]))
        if folder not in libraries:
            libraries[folder] = cache(TemplateLibrary(folder, config).find)
        return any(map(libraries[folder], place.get("missing", "").split()))

    stale = [
        unit["unit_id"]
        for unit in done
        if any(
            outdated(place) or wanting(place)
            for place in (unit["shard"] or {}).get("templates", ())
        )
    ]
    return stale, now


def _ref(folder: str, name: str) -> FileRef:
    return file_ref(f"{folder}/{name}")


def _digest(contents: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {contents[name]}" for name in sorted(contents))
    return hashlib.sha256(text.encode()).hexdigest()
