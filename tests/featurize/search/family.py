"""A random protein family, and databases of it for jackhmmer, hhblits and mmseqs."""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import once_a_run

from evofeed.featurize import ChainSource, discover, run_search
from evofeed.featurize.search import Database, read_sequences

PROGRAMS = ("jackhmmer", "hmmbuild", "hmmsearch", "hhblits", "hhsearch", "mmseqs", "kalign")
_LETTERS = "ARNDCQEGHILKMFPSTWYV"


def require_programs() -> None:
    """Skip where a search program is absent; fail where `EVOFEED_REQUIRE` names `search`."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing and "search" in os.environ.get("EVOFEED_REQUIRE", "").split(","):
        pytest.fail(f"search programs are required, but {', '.join(missing)} are not on the PATH")
    if missing:
        pytest.skip(f"not on the PATH: {', '.join(missing)}; install hmmer hhsuite mmseqs2 kalign")
    _search_by_short_words()


@functools.cache
def _search_by_short_words() -> None:
    """Make mmseqs search with k-mers of five letters: a table of six takes most of the time."""

    def write_wrapper(folder: Path) -> None:
        short = 'case "$1" in search|easy-search) set -- "$@" -k 5;; esac'
        (folder / "mmseqs").write_text(f'#!/bin/sh\n{short}\nexec {mmseqs} "$@"\n')
        (folder / "mmseqs").chmod(0o755)

    mmseqs = shutil.which("mmseqs")
    os.environ["PATH"] = f"{once_a_run('programs', write_wrapper)}{os.pathsep}{os.environ['PATH']}"


def search_fasta(
    query: str,
    out: str,
    databases: Sequence[str],
    template_db: str | None = None,
    template_mmcif_dir: str | None = None,
    **settings: Any,
) -> list[ChainSource]:
    """The chains of a FASTA file with their search results, all of which must be there."""
    parsed = [Database.parse(text) for text in databases]
    parsed += [Database.parse(template_db, is_template=True)] if template_db else []
    report = run_search(read_sequences(query), out, parsed, **settings)
    assert not report.broken, report.broken
    return discover(out, template_mmcif_dir=template_mmcif_dir)


def family(seed: int, size: int = 20, length: int = 120) -> list[str]:
    """A random sequence and descendants of it, at increasing distances."""
    rng = random.Random(seed)
    ancestor = "".join(rng.choices(_LETTERS, k=length))
    return [ancestor, *(mutated(ancestor, 0.05 + 0.02 * n, rng) for n in range(1, size))]


def mutated(sequence: str, share: float, rng: random.Random, alphabet: str = _LETTERS) -> str:
    """A sequence with a share of its residues changed, one deletion and one insertion."""
    letters = [rng.choice(alphabet) if rng.random() < share else c for c in sequence]
    del letters[len(letters) // 3]
    letters.insert(2 * len(letters) // 3, rng.choice(alphabet))
    return "".join(letters)


def fasta(path: Path, records: Iterable[tuple[str, str]]) -> str:
    """Write a FASTA file; returns its path."""
    path.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in records))
    return str(path)


def mmseqs_db(path: Path, records: Iterable[tuple[str, str]]) -> str:
    """Create a database of mmseqs; returns its prefix."""
    text = fasta(path.with_name(f"{path.name}_records.fa"), records)
    call("mmseqs", "createdb", text, str(path), cwd=path.parent)
    return str(path)


def cluster_db(path: Path, records: Iterable[tuple[str, str]]) -> str:
    """Create a database like ColabFold's: clusters, members (`_seq`) and alignments (`_aln`)."""
    text = fasta(path.with_name(f"{path.name}_records.fa"), records)
    members, clusters = f"{path}_seq", f"{path}_clu"
    threads = ["--threads", "1"]
    for step in (
        ["createdb", text, members],
        ["linclust", members, clusters, f"{path}_tmp", "--min-seq-id", "0.6", *threads],
        ["align", members, members, clusters, f"{path}_aln", "-a", *threads],
        ["createsubdb", clusters, members, str(path), "--subdb-mode", "0"],
        ["createsubdb", clusters, f"{members}_h", f"{path}_h", "--subdb-mode", "0"],
    ):
        call("mmseqs", *step, cwd=path.parent)
    return str(path)


def add_taxa(prefix: str, taxa: dict[str, int]) -> None:
    """Add a taxonomy to a database of mmseqs: species with these ids, all below the root."""
    folder = Path(f"{prefix}_dump")
    folder.mkdir()
    ids = sorted(set(taxa.values()))
    species = [
        (f"{i}\t|\t1\t|\tspecies\t|", f"{i}\t|\ts{i}\t|\t\t|\tscientific name\t|") for i in ids
    ]
    root = ("1\t|\t1\t|\tno rank\t|", "1\t|\troot\t|\t\t|\tscientific name\t|")
    for name, lines in zip(("nodes", "names"), zip(root, *species, strict=True), strict=True):
        (folder / f"{name}.dmp").write_text("".join(f"{line}\n" for line in lines))
    for name in ("merged", "delnodes"):
        (folder / f"{name}.dmp").touch()
    table = folder / "table.tsv"
    table.write_text("".join(f"{name}\t{taxon}\n" for name, taxon in taxa.items()))
    options = ["--ncbi-tax-dump", str(folder), "--tax-mapping-file", str(table)]
    call("mmseqs", "createtaxdb", prefix, f"{prefix}_tmp", *options, cwd=folder)


def hh_db(path: Path, entries: dict[str, list[tuple[str, str]]]) -> str:
    """Create a database of hh-suite with these alignments; returns its prefix."""
    a3m, hhm = (path.parent / f"{path.name}.{kind}" for kind in ("a3m", "hhm"))
    a3m.mkdir()
    hhm.mkdir()
    for name, rows in entries.items():
        fasta(a3m / name, rows)
        call("hhmake", "-v", "0", "-i", str(a3m / name), "-o", str(hhm / name), cwd=path.parent)
    for kind, folder in (("a3m", a3m), ("hhm", hhm)):
        files = f"{path}_{kind}.ffdata", f"{path}_{kind}.ffindex"
        call("ffindex_build", "-s", *files, str(folder), cwd=path.parent)
    build = ["-f", "-x", "0.3", "-c", "4", "-I", "a3m", "-i", f"{path}_a3m", "-o", f"{path}_cs219"]
    call(_cstranslate(), *build, cwd=path.parent)
    return str(path)


def _cstranslate() -> str:
    """Path of cstranslate, of which Debian has one for each kind of processor."""
    variants: Iterator[str] = map(str, Path("/usr/libexec/hhsuite").glob("cstranslate-sse[0-9]"))
    program = shutil.which("cstranslate") or next(variants, None)
    assert program, "hhsuite is here without cstranslate"
    return program


def call(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr[-500:])
