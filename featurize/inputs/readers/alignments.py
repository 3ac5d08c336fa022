"""Alignments of complexes and databases in the layouts of other programs.

<name>/msas/A/, <name>/msas/B/     AlphaFold-Multimer's output, a folder for each chain
#93,87<TAB>1,1 ...                 ColabFold's a3m of a complex
<db>.ffdata, <db>.ffindex          databases of hh-suite: concatenated alignments, and the index
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
    """The folders of the chains in a target's output; none for a monomer."""
    msas = target / "msas"
    if not msas.is_dir():
        return []
    paths = sorted(msas.iterdir())
    if any(path.is_file() and is_alignment(path.name) for path in paths):
        return []  # of a monomer
    has_map = (msas / _MAP).is_file()
    return [
        path
        for path in paths
        if (has_map or _LETTER.fullmatch(path.name))
        and path.is_dir()
        and any(is_alignment(file.name) for file in path.iterdir())
    ]


def from_target(target: Path, side_files: SideFiles) -> list[ChainSource]:
    """The chains of a target, `<name>_A` and so on; chains of one sequence have one folder.

    Their sequences are those of `chain_id_map.json`; without it, the alignments' queries.
    """
    folders = chain_folders(target)
    chain_map = _chain_id_map(target / "msas" / _MAP, side_files)
    name = target.absolute().name
    letters = ", ".join(chain_map or [folder.name for folder in folders])
    sources = []
    for folder in folders:
        sources += side_files.chain(
            f"{name}_{folder.name}",
            str(folder),
            alignment_dir=str(folder),
            **chain_map.get(folder.name, {}),
            notes=(f"one chain of the complex {name} ({letters}): how its rows pair is not kept",),
        )
    return sources


def _chain_id_map(path: Path, side_files: SideFiles) -> dict[str, dict[str, str]]:
    """Sequence and description of each chain; empty without the file."""
    if not path.is_file():
        return {}
    try:
        chains = parse_json(read_bytes(file_ref(path)))
        return {
            chain: {name: str(item[name]) for name in ("sequence", "description")}
            for chain, item in chains.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"not AlphaFold's map of chain ids: {error!r}; the queries are used as sequences"
        side_files.problems.append(InputError(message, path=str(path)))
        return {}


def from_complex(
    path: Path, assembly: Assembly, model: str | None, side_files: SideFiles
) -> list[ChainSource]:
    """The different chains of a complex, `<name>_A` and so on; a homomer's only one is `<name>`."""
    name = plain(path.name).removesuffix(".a3m")
    is_homomer = len(assembly.lengths) == 1
    listed = chains_in(Path(model)) if model else {}
    model_chains = list(listed) if isinstance(listed, dict) else []  # each chain raises the error
    sources = []
    for number, (letter, first) in enumerate(zip(assembly.letters, assembly.firsts, strict=True)):
        part = FileRef(plain(path.name), str(path), part=f"complex {number}")
        chains = side_files.chain(
            name if is_homomer else f"{name}_{letter}",
            str(path),
            alignments=(part,),
            notes=(f"one chain of a complex ({assembly}): how its rows pair is not kept",),
        )
        for source in chains:
            structure: dict[str, Any] = {}
            if source.structure is None and model is not None:
                chain = model_chains[first] if first < len(model_chains) else letter
                structure = {"structure": model, "structure_chain": chain, "is_distillation": True}
            sources.append(dataclasses.replace(source, **structure))
    return sources


def index_files(folder: Path) -> list[Path]:
    """The indices of alignment databases in a folder, without those of profiles and states."""
    other = ("_hhm.ffindex", "_cs219.ffindex")
    return sorted(path for path in folder.glob("*.ffindex") if not path.name.endswith(other))


def from_ffindex(index: Path, side_files: SideFiles) -> list[ChainSource]:
    """The entries of a database as chains, each with its alignment.

    Raises:
        InputError: the database is not next to its index, or has no alignments.
    """
    db = index.with_suffix(".ffdata")
    if index.stem.endswith("_ca3m"):
        raise InputError(
            "alignments in hh-suite's compressed form: write them as a3m with "
            "`a3m_database_extract` first",
            path=str(index),
        )
    if not db.is_file():
        raise InputError(f"its database {db.name} is not in its folder", path=str(index))
    if read_head(file_ref(db), 1)[:1] not in (b">", b"#"):
        raise InputError("not a database of a3m alignments", path=str(db))
    sources = []
    for name, ref in read_ffindex(index):
        sources += side_files.chain(name, str(index), alignments=(ref,))
    return sources
