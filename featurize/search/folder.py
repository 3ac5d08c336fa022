"""What a search leaves in its folder: its index for `discover`, and what has no result."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import InputError, JobError
from evofeed.base.files import write_atomic
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.inputs.sources import ChainSource, role_of
from evofeed.featurize.search.cache import CachedResult
from evofeed.featurize.search.config import Database
from evofeed.featurize.search.searchers import suffix_of
from evofeed.featurize.search.work import DatabaseInfo

INDEX: Final = "search.index"


def result_name(database: Database, info: DatabaseInfo) -> str:
    """What the result of a database is called, as an alignment_db has it."""
    suffix = suffix_of(info.kind, database.is_template)
    if database.is_template and info.kind == "fasta":
        return f"hmmsearch_output{suffix}"
    if database.pairs:
        return f"uniprot_hits{suffix}"
    name = f"{database.name}_hits{suffix}"
    # `pdb_hits.sto` and `uniprot_hits.sto` mean something else.
    is_plain = role_of(name, FeaturizeConfig()) in ("a3m", "stockholm", "hhr")
    return name if is_plain else f"search_{name}"


def unusable(problem: InputError) -> dict[str, Any]:
    """A record that is no chain, as an entry of the report."""
    what = {"type": type(problem).__name__, "message": str(problem)}
    return {"chain_id": problem.item or problem.path or "?", "database": "", **what}


def by_chain(
    chains: Iterable[ChainSource], broken: dict[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Why chains have no results, by chain."""
    for chain in chains:
        if (why := broken.get(chain.sequence.upper())) is not None:
            yield {"chain_id": chain.chain_id, **why}


def write_index(
    path: Path,
    chains: Iterable[ChainSource],
    databases: Sequence[Database],
    infos: Sequence[DatabaseInfo],
    found: dict[tuple[str, int], CachedResult],
    broken: dict[str, dict[str, Any]],
) -> None:
    """The chains with all their results, as spans of the cache's packs."""
    index: dict[str, Any] = {}
    for chain in chains:
        sequence = chain.sequence.upper()
        if sequence in broken:
            continue
        files = []
        for number, database in enumerate(databases):
            ref = found[sequence, number].ref
            name = f"{result_name(database, infos[number])}.zst"
            files.append([name, ref.offset, ref.size, _beside(path, Path(ref.path).resolve())])
        index[chain.chain_id] = {
            "sequence": sequence,
            "description": chain.description,
            "files": files,
        }
    write_atomic(path, json.dumps(index).encode())


def _beside(index: Path, pack: Path) -> str:
    """A pack by the name of a link beside the index: an index names nothing that is elsewhere."""
    link = index.parent / pack.name
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(pack, index.parent.resolve()))
    return link.name


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """One search at a time writes a folder; the death of its process opens the lock."""
    with (out / ".lock").open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise JobError("another search is writing here: wait for it", path=str(out)) from None
        yield
