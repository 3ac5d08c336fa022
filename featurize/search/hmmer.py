"""HMMER's jackhmmer, hmmsearch and nhmmer inside the process (pyhmmer).

Rows and scores are those of the programs with the options of AF2's and AF3's pipelines;
`tests/featurize/search` compares both (`test_programs`, `test_recipes`).
"""

from __future__ import annotations

import io
from functools import lru_cache
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, Final

from evofeed.base.errors import InputError

_IN_MEMORY: Final = 2 << 30
"""FASTA bytes up to which a database is read once per process; larger ones are streamed."""
_MSA_FILTERS: Final[dict[str, Any]] = {"F1": 0.0005, "F2": 0.00005, "F3": 0.0000005}
_TEMPLATE_FILTERS: Final[dict[str, Any]] = {"F1": 0.1, "F2": 0.1, "F3": 0.1}
"""AF2's settings: fewer false hits for alignments, almost no filter for templates."""
_RNA_F3, _RNA_SHORT, _RNA_SHORT_F3 = 1e-5, 50, 0.02
"""AF3's settings: a weaker filter for RNA of fewer than 50 bases."""


def version() -> str:
    """pyhmmer's version, for cache keys and provenance."""
    return f"pyhmmer {metadata.version('pyhmmer')}"


def jackhmmer(sequence: str, db: str, *, threads: int, e_value: float, iterations: int) -> bytes:
    """Stockholm alignment of a sequence, first, to its hits in a FASTA database up to the E-value.

    Raises:
        InputError: the database is not a FASTA file.
    """
    from pyhmmer import easel, hmmer

    amino = easel.Alphabet.amino()
    query: Any = easel.TextSequence(name=b"query", sequence=sequence).digitize(amino)
    limits: dict[str, Any] = {"E": e_value, "incE": e_value, **_MSA_FILTERS}
    targets = _targets(amino, db)
    rounds: Any = hmmer.jackhmmer(query, targets, max_iterations=iterations, cpus=threads, **limits)
    result = next(iter(rounds))
    if len(result.hits) == 0:
        return f"# STOCKHOLM 1.0\nquery {sequence}\n//\n".encode()
    return _to_text(result.msa, "stockholm")  # before `rounds` frees the alignment


def hmmsearch(profile: bytes, db: str, *, threads: int, e_value: float) -> bytes:
    """Hits of a profile in a FASTA database of PDB sequences, as Stockholm.

    Args:
        profile: Stockholm alignment whose reference columns become the match states, so
            that the hits' columns are the query's positions (`hmmbuild --hand`).
        e_value: limit for hits and domains.

    Raises:
        InputError: the database is not a FASTA file.
    """
    from pyhmmer import easel, hmmer, plan7

    amino = easel.Alphabet.amino()
    with easel.MSAFile(io.BytesIO(profile), "stockholm", digital=True, alphabet=amino) as file:
        aligned: Any = file.read()
    builder = plan7.Builder(amino, architecture="hand")
    model, _, _ = builder.build_msa(aligned, plan7.Background(amino))
    limits: dict[str, Any] = dict.fromkeys(("E", "domE", "incE", "incdomE"), e_value)
    search: Any = hmmer.hmmsearch(
        model, _targets(amino, db), cpus=threads, **limits, **_TEMPLATE_FILTERS
    )
    hits = next(iter(search))
    if not any(domain.included for hit in hits for domain in hit.domains):
        return b"# STOCKHOLM 1.0\n//\n"
    return _to_text(hits.to_msa(amino, all_consensus_cols=True), "stockholm")


def nhmmer(sequence: str, db: str, *, threads: int, e_value: float, max_hits: int) -> bytes:
    """A3M alignment of an RNA to its hits in a FASTA database, as AlphaFold 3 makes it.

    Hits are usually shorter than the query, so each is aligned again, with hmmalign, to a profile
    of the query alone. Hits up to the E-value are reported; those up to nhmmer's 0.01 are rows.

    Raises:
        InputError: the database is not a FASTA file.
    """
    from pyhmmer import easel, hmmer, plan7

    rna = easel.Alphabet.rna()
    text = f">query\n{sequence}\n".encode()
    query: Any = easel.TextSequence(name=b"query", sequence=sequence).digitize(rna)
    limit = _RNA_SHORT_F3 if len(sequence) < _RNA_SHORT else _RNA_F3
    search: Any = hmmer.nhmmer(query, _targets(rna, db), cpus=threads, E=e_value, F3=limit)
    hits = next(iter(search))
    if not any(domain.included for hit in hits for domain in hit.domains):
        return text
    sequences = hits.to_msa(rna).digitize(rna).sequences  # without gaps
    rows = easel.DigitalSequenceBlock(rna, islice(sequences, max_hits - 1))
    query_msa = easel.DigitalMSA(alphabet=rna, name=b"query", sequences=[query])
    model, _, _ = plan7.Builder(rna).build_msa(query_msa, plan7.Background(rna))
    aligned: Any = hmmer.hmmalign(model, rows)
    return text + _to_text(aligned, "a2m")


def _to_text(msa: Any, text_format: str) -> bytes:
    out = io.BytesIO()
    msa.write(out, text_format)
    return out.getvalue()


def _targets(alphabet: Any, db: str) -> Any:
    """The sequences of a database: in memory if it is small, else streamed."""
    try:
        stat = Path(db).stat()
        if stat.st_size <= _IN_MEMORY:
            return _read_block(db, alphabet.is_rna(), stat.st_size, stat.st_mtime_ns)
        return _open(db, alphabet)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"not a FASTA database: {error}", path=db) from None


def _open(db: str, alphabet: Any) -> Any:
    from pyhmmer import easel

    return easel.SequenceFile(db, format="fasta", digital=True, alphabet=alphabet)


@lru_cache(maxsize=1)
def _read_block(db: str, is_rna: bool, nbytes: int, mtime_ns: int) -> Any:
    """The sequences of a database, kept in memory until another one is read."""
    from pyhmmer import easel

    alphabet = easel.Alphabet.rna() if is_rna else easel.Alphabet.amino()
    with _open(db, alphabet) as handle:
        return easel.DigitalSequenceBlock(alphabet, handle.read_block())
