"""Alignments of complexes and of databases as other programs lay them out.

<name>/msas/A/, <name>/msas/B/     AlphaFold-Multimer's output, a folder for each chain
#93,87<TAB>1,1 ...                 ColabFold's a3m of a complex
<db>.ffdata, <db>.ffindex          databases of hh-suite: alignments glued together, and the index
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import InputError
from evofeed.base.files import parse_json
from evofeed.featurize.formats.alignment_db import read_ffindex
from evofeed.featurize.formats.colabfold_a3m import Assembly
from evofeed.featurize.formats.reading import FileRef, file_ref, plain, read_bytes, read_head
from evofeed.featurize.inputs.side_files import SideFiles
from evofeed.featurize.inputs.sources import ChainSource, is_alignment
from evofeed.featurize.structures.listing import chains_in

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
        sources += beside.chain(
            f"{name}_{folder.name}",
            str(folder),
            alignment_dir=str(folder),
            **known.get(folder.name, {}),
            notes=(f"one chain of the complex {name} ({letters}): how its rows pair is not kept",),
        )
    return sources


def _chain_id_map(path: Path, beside: SideFiles) -> dict[str, dict[str, str]]:
    """Sequence and description of each chain; empty without the file."""
    if not path.is_file():
        return {}
    try:
        chains = parse_json(read_bytes(file_ref(path)))
        return {
            chain: {"sequence": str(of["sequence"]), "description": str(of["description"])}
            for chain, of in chains.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"not AlphaFold's map of chain ids: {error!r}; the queries are taken for sequences"
        beside.faults.append(InputError(why, path=str(path)))
        return {}


def from_complex(
    path: Path, assembly: Assembly, model: str | None, beside: SideFiles
) -> list[ChainSource]:
    """The different chains of a complex, `<name>_A` and so on; a homomer's only one is `<name>`."""
    name = plain(path.name).removesuffix(".a3m")
    lone = len(assembly.lengths) == 1
    listed = chains_in(Path(model)) if model else {}
    inside = list(listed) if isinstance(listed, dict) else []  # a fault is said by each chain
    sources = []
    for number, (letter, first) in enumerate(zip(assembly.letters, assembly.firsts, strict=True)):
        part = FileRef(plain(path.name), str(path), part=f"complex {number}")
        found = beside.chain(
            name if lone else f"{name}_{letter}",
            str(path),
            alignments=(part,),
            notes=(f"one chain of a complex ({assembly}): how its rows pair is not kept",),
        )
        for source in found:
            own: dict[str, Any] = {}
            if source.structure is None and model is not None:
                chain = inside[first] if first < len(inside) else letter
                own = {"structure": model, "structure_chain": chain, "is_distillation": True}
            sources.append(dataclasses.replace(source, **own))
    return sources


def index_files(folder: Path) -> list[Path]:
    """The indices of databases of alignments in a folder; profiles and column states are none."""
    other = ("_hhm.ffindex", "_cs219.ffindex")
    return sorted(path for path in folder.glob("*.ffindex") if not path.name.endswith(other))


def from_ffindex(index: Path, beside: SideFiles) -> list[ChainSource]:
    """The entries of a database as chains, each with its alignment.

    Raises:
        InputError: the database is not beside its index, or holds no alignments.
    """
    db = index.with_suffix(".ffdata")
    if index.stem.endswith("_ca3m"):
        raise InputError(
            "alignments in hh-suite's compressed form: write them as a3m with "
            "`a3m_database_extract` first",
            path=str(index),
        )
    if not db.is_file():
        raise InputError(f"its database {db.name} is not beside it", path=str(index))
    if read_head(file_ref(db), 1)[:1] not in (b">", b"#"):
        raise InputError("no database of a3m alignments", path=str(db))
    sources = []
    for name, ref in read_ffindex(index):
        sources += beside.chain(name, str(index), alignments=(ref,))
    return sources
