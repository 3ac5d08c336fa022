"""AlphaFold-Multimer's output: `<name>/msas/A/`, `<name>/msas/B/`, a folder for each chain."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from evofeed.base.errors import InputError
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.inputs.side_files import SideFiles
from evofeed.featurize.inputs.sources import ChainSource, is_alignment

_MAP: Final = "chain_id_map.json"
_LETTER: Final = re.compile("[A-Z]{1,2}")


def chain_folders(target: Path) -> list[Path]:
    """The chains' folders of a target's output, none if it is no complex's."""
    below = target / "msas"
    if not below.is_dir():
        return []
    inside = sorted(below.iterdir())
    if any(path.is_file() and is_alignment(path.name) for path in inside):
        return []  # a monomer's
    mapped = (below / _MAP).is_file()
    return [
        path
        for path in inside
        if (mapped or _LETTER.fullmatch(path.name))
        and path.is_dir()
        and any(is_alignment(file.name) for file in path.iterdir())
    ]


def from_target(target: Path, beside: SideFiles) -> list[ChainSource]:
    """The chains of a target, `<name>_A` and so on; chains of one sequence have one folder.

    Their sequences are those of `chain_id_map.json`, without it the alignments' queries.
    """
    folders = chain_folders(target)
    known = _chain_id_map(target / "msas" / _MAP, beside)
    name = target.absolute().name
    letters = ", ".join(known or [folder.name for folder in folders])
    sources = []
    for folder in folders:
        source = beside.source(
            f"{name}_{folder.name}",
            str(folder),
            alignment_dir=str(folder),
            **known.get(folder.name, {}),
            notes=(f"one chain of the complex {name} ({letters}): how its rows pair is not kept",),
        )
        sources += [source] if source is not None else []
    return sources


def _chain_id_map(path: Path, beside: SideFiles) -> dict[str, dict[str, str]]:
    """Sequence and description of each chain; empty without the file."""
    if not path.is_file():
        return {}
    try:
        chains = json.loads(read_bytes(file_ref(path)))
        return {
            chain: {"sequence": str(of["sequence"]), "description": str(of["description"])}
            for chain, of in chains.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"not AlphaFold's map of chain ids: {error!r}; the queries are taken for sequences"
        beside.faults.append(InputError(why, path=str(path)))
        return {}
