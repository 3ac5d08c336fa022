"""Alignments and template hits of bare sequences: search embedded, cached by content.

A FASTA file and a sequence database are enough: pyhmmer is HMMER as a wheel.
Where `jackhmmer` is on the PATH it is used instead; a database of hhblits
(`<db>_cs219.ffdata`) or mmseqs (`<db>.dbtype`) needs its own program.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from evofeed.errors import InputError
from evofeed.featurize import external_search as external
from evofeed.featurize import hmmer
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.discovery import once
from evofeed.featurize.layouts import Beside, from_fasta
from evofeed.featurize.sources import ChainSource, is_alignment, role_of

_HASHED_WHOLE = 1 << 32
_EDGE = 1 << 20
_HITS = "hmm_output.sto"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """AF2's searches (SI 1.2.2, 1.2.3): jackhmmer for the MSA, hmmsearch for templates."""

    e_value: float = 1e-4
    """Sequences up to this E-value enter the alignment."""
    iterations: int = 1
    """Rounds of jackhmmer."""
    max_hits: int = 10_000
    """Alignment rows kept, the best first; the query comes on top."""
    template_e_value: float = 100.0
    """Template hits up to this E-value are listed; the prefilter comes later."""
    program: Literal["auto", "pyhmmer"] = "auto"
    """`auto` takes jackhmmer from the PATH where it is; `pyhmmer` never looks."""
    threads: int = 1
    """Threads of one search; give it what Ray gave the task."""

    def __post_init__(self) -> None:
        if self.threads < 1 or self.iterations < 1 or self.max_hits < 1:
            raise ValueError("threads, iterations and max_hits must be >= 1")

    @property
    def result_settings(self) -> dict[str, object]:
        """What the result depends on: everything but the number of threads."""
        settings = dataclasses.asdict(self)
        del settings["threads"]
        return settings


def search_fasta(
    fasta: str,
    out_dir: str,
    *,
    search_dbs: Iterable[str],
    template_db: str | None = None,
    template_mmcif_dir: str | None = None,
    cache_dir: str | None = None,
    config: SearchConfig | None = None,
    on_ray: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[ChainSource]:
    """Search every sequence of a FASTA file; its chains, ready to featurise.

    Args:
        fasta: the sequences.
        out_dir: becomes a data set that `discover` knows: `alignments/`, `fasta/`. A chain's
            folder holds the results of its last search and no other alignment.
        search_dbs: databases for the MSA, FASTA or those of hhblits and mmseqs.
        template_db: `pdb_seqres.fasta` for template hits.
        template_mmcif_dir: structures of those hits.
        cache_dir: results by content; `out_dir/.cache` if not given.
        config: thresholds and threads.
        on_ray: run as tasks of the Ray that is initialised, each holding as many CPUs
            as it has threads; folders and databases must be where the tasks run.
        progress: called with sequences done and sequences in all.

    Raises:
        InputError: a file is missing or wrong, or a search program failed.
    """
    faults: list[InputError] = []
    nothing = Beside({}, {}, {}, template_mmcif_dir, None, None, False, faults)
    sources = once(from_fasta(Path(fasta), nothing), faults, fasta)
    if faults:
        raise faults[0]
    if not sources:
        raise InputError("there is no sequence in it", path=fasta)
    config = config or SearchConfig()
    where: dict[str, Any] = {
        "out_dir": out_dir,
        "search_dbs": tuple(search_dbs),
        "template_db": template_db,
        "cache_dir": cache_dir,
        "config": config,
    }
    here = (search_chain(source, **where) for source in sources)
    results = _on_ray(sources, where, config.threads) if on_ray else here
    found = []
    for source in results:
        found.append(source)
        if progress is not None:
            progress(len(found), len(sources))
    return sorted(found, key=lambda source: source.chain_id)


def _on_ray(
    sources: list[ChainSource], where: dict[str, Any], threads: int
) -> Iterator[ChainSource]:
    """As tasks, in order of completion; Ray runs no more than it has CPUs for."""
    import ray

    remote: Any = ray.remote(num_cpus=threads, max_retries=0)
    task = remote(search_chain)
    open_tasks = [task.remote(source, **where) for source in sources]
    try:
        while open_tasks:
            (done, *_), open_tasks = ray.wait(open_tasks, num_returns=1)
            yield ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    finally:
        for waiting in open_tasks:
            ray.cancel(waiting)


def search_chain(
    source: ChainSource,
    out_dir: str,
    *,
    search_dbs: Iterable[str],
    template_db: str | None = None,
    cache_dir: str | None = None,
    config: SearchConfig | None = None,
) -> ChainSource:
    """One sequence searched; the source with its folder of alignments. Safe to repeat."""
    config = config or SearchConfig()
    cache = Path(cache_dir or Path(out_dir) / ".cache")
    folder = Path(out_dir) / "alignments" / source.chain_id
    fasta = Path(out_dir) / "fasta" / f"{source.chain_id}.fasta"
    _write(fasta, f">{source.description or source.chain_id}\n{source.sequence}\n".encode())
    alignments, names = [], _result_names(search_dbs, config)
    for name, db in names.items():
        suffix, run = _searcher(db, config)
        key = _key("msa", source.sequence, db, config)
        data = _cached(cache, key, suffix, partial(run, source.sequence, db))
        _write(folder / name, data)
        alignments.append(data)
    if template_db is not None:
        key = _key("templates:" + _digest(*alignments), source.sequence, template_db, config)
        data = _cached(
            cache, key, ".sto", lambda: _templates(source.sequence, alignments, template_db, config)
        )
        _write(folder / _HITS, data)
    kept = {*names, _HITS} if template_db is not None else {*names}
    for file in list(folder.iterdir()):
        if is_alignment(file.name) and file.name not in kept:
            file.unlink()  # of another search, perhaps for another sequence
    return ChainSource(
        source.chain_id,
        alignment_dir=str(folder),
        fasta=str(fasta),
        template_mmcif_dir=source.template_mmcif_dir,
    )


def _result_names(search_dbs: Iterable[str], config: SearchConfig) -> dict[str, str]:
    """The databases by the names of their results."""
    names: dict[str, str] = {}
    for db in search_dbs:
        suffix, _ = _searcher(db, config)
        name = f"{Path(db).name.partition('.')[0]}_hits{suffix}"
        if role_of(name, FeaturizeConfig()) not in ("a3m", "stockholm"):
            name = f"search_{name}"  # `pdb_hits` and `uniprot_hits` mean something else
        if name in names:
            raise InputError(
                f"its results would be called {name}, as those of {names[name]}: rename one of "
                "them, or give a link of another name",
                path=db,
            )
        names[name] = db
    return names


def _searcher(db: str, config: SearchConfig) -> tuple[str, Callable[[str, str], bytes]]:
    """Suffix of the result and the program for a database."""
    if Path(f"{db}_cs219.ffdata").exists():
        return ".a3m", lambda sequence, db: external.hhblits(sequence, db, config.threads)
    if Path(f"{db}.dbtype").exists():
        return ".a3m", lambda sequence, db: external.mmseqs(sequence, db, config.threads)
    if not Path(db).is_file():
        raise InputError("no such sequence database (FASTA, hhblits or mmseqs)", path=db)
    if config.program == "auto" and external.on_path("jackhmmer"):
        return ".sto", lambda sequence, db: external.jackhmmer(
            sequence, db, config.threads, config.e_value, config.iterations
        )
    return ".sto", lambda sequence, db: hmmer.jackhmmer(
        sequence,
        db,
        threads=config.threads,
        e_value=config.e_value,
        iterations=config.iterations,
        max_hits=config.max_hits,
    )


def _templates(
    sequence: str, alignments: list[bytes], template_db: str, config: SearchConfig
) -> bytes:
    from evofeed.featurize.a3m import parse_a3m
    from evofeed.featurize.stockholm import parse_stockholm

    first = alignments[0] if alignments else f">query\n{sequence}\n".encode()
    msa = parse_a3m(first) if first.lstrip()[:1] == b">" else parse_stockholm(first)
    return hmmer.hmmsearch(
        msa, template_db, threads=config.threads, e_value=config.template_e_value
    )


def _cached(cache: Path, key: str, suffix: str, make: Callable[[], bytes]) -> bytes:
    path = cache / key[:2] / f"{key}{suffix}"
    if path.is_file():
        return path.read_bytes()
    data = make()
    _write(path, data)
    return data


def _write(path: Path, data: bytes) -> None:
    """Written aside and renamed: a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(data)
    aside.replace(path)


def _key(kind: str, sequence: str, db: str, config: SearchConfig) -> str:
    programs = [hmmer.version(), external.on_path("jackhmmer") if config.program == "auto" else ""]
    parts = [kind, sequence, db_fingerprint(db), config.result_settings, programs]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest(*pieces: bytes) -> str:
    return hashlib.sha256(b"\0".join(pieces)).hexdigest()


def db_fingerprint(db: str) -> str:
    """Names a database by its content; of files beyond 4 GiB by size, ends and time."""
    beside = sorted(Path(db).parent.glob(f"{Path(db).name}*")) if not Path(db).is_file() else []
    files = [file for file in beside if not file.is_dir()] or [Path(db)]
    parts = [_file_fingerprint(str(file), *_stat(file)) for file in files]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _stat(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path)) from None
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=64)
def _file_fingerprint(path: str, size: int, changed: int) -> str:
    digest = hashlib.sha256()
    with Path(path).open("rb") as handle:
        if size <= _HASHED_WHOLE:
            while block := handle.read(1 << 22):
                digest.update(block)
        else:
            digest.update(f"{size}:{changed}".encode() + handle.read(_EDGE))
            handle.seek(-_EDGE, os.SEEK_END)
            digest.update(handle.read(_EDGE))
    return digest.hexdigest()
