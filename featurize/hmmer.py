"""HMMER inside the process, through pyhmmer: jackhmmer and hmmsearch, results as Stockholm."""

from __future__ import annotations

import io
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from evofeed.errors import InputError
from evofeed.featurize.msa import Msa

_IN_MEMORY: Final = 2 << 30
"""FASTA bytes up to which a database is read once; larger ones are streamed."""
_MODEL_ROWS: Final = 10_000
"""Rows a template model is built from (AF2's cap on UniRef90 hits)."""
_MSA_FILTERS: Final[dict[str, Any]] = {"F1": 0.0005, "F2": 0.00005, "F3": 0.0000005}
_TEMPLATE_FILTERS: Final[dict[str, Any]] = {"F1": 0.1, "F2": 0.1, "F3": 0.1}
"""AF2's settings: fewer false hits for alignments, hardly a filter for templates."""


def version() -> str:
    """pyhmmer's version, for cache keys."""
    return f"pyhmmer {metadata.version('pyhmmer')}"


def jackhmmer(
    sequence: str, db: str, *, threads: int, e_value: float, iterations: int, max_hits: int
) -> bytes:
    """Alignment of a sequence to its hits in a FASTA database, query first, as Stockholm.

    Raises:
        InputError: the database is no FASTA file.
    """
    from pyhmmer import easel, hmmer

    amino = easel.Alphabet.amino()
    query: Any = easel.TextSequence(name=b"query", sequence=sequence).digitize(amino)
    keep: dict[str, Any] = {"E": e_value, "incE": e_value, **_MSA_FILTERS}
    targets = _targets(db, amino)
    rounds: Any = hmmer.jackhmmer(query, targets, max_iterations=iterations, cpus=threads, **keep)
    result = next(iter(rounds))
    if len(result.hits) == 0:
        return f"# STOCKHOLM 1.0\nquery {sequence}\n//\n".encode()
    msa = result.msa
    if len(msa.sequences) > max_hits + 1:
        msa = msa.select(sequences=range(max_hits + 1))
    return _stockholm(msa)


def hmmsearch(msa: Msa, db: str, *, threads: int, e_value: float) -> bytes:
    """Hits of an alignment's profile in a FASTA database of PDB sequences, as Stockholm.

    Every column of the query is a match state, so that the hits' columns are
    the query's positions.

    Raises:
        InputError: the database is no FASTA file.
    """
    from pyhmmer import easel, hmmer, plan7

    amino = easel.Alphabet.amino()
    rows = msa.sequences()[:_MODEL_ROWS]
    named = [easel.TextSequence(name=f"s{i}".encode(), sequence=row) for i, row in enumerate(rows)]
    builder = plan7.Builder(amino, architecture="fast", symfrac=0.0)
    aligned = easel.TextMSA(name=b"query", sequences=named).digitize(amino)
    model, _, _ = builder.build_msa(aligned, plan7.Background(amino))
    every: dict[str, Any] = {"E": e_value, "domE": e_value, "incE": e_value, "incdomE": e_value}
    search: Any = hmmer.hmmsearch(
        model, _targets(db, amino), cpus=threads, **every, **_TEMPLATE_FILTERS
    )
    hits = next(iter(search))
    if not any(domain.included for hit in hits for domain in hit.domains):
        return b"# STOCKHOLM 1.0\n//\n"
    return _stockholm(hits.to_msa(amino, all_consensus_cols=True))


def _stockholm(msa: Any) -> bytes:
    out = io.BytesIO()
    msa.write(out, "stockholm")
    return out.getvalue()


def _targets(db: str, amino: Any) -> Any:
    """The sequences of a database: in memory if it is small, else streamed."""
    from pyhmmer import easel

    try:
        size = Path(db).stat().st_size
        handle = easel.SequenceFile(db, format="fasta", digital=True, alphabet=amino)
        if size > _IN_MEMORY:
            return handle
        with handle:
            return handle.read_block()
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"not a FASTA database: {error}", path=db) from None
