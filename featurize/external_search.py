"""Search programs of the PATH: what jackhmmer, hhblits and mmseqs are called with.

Thresholds are AF2's (SI 1.2.2) and ColabFold's. A program that fails is an
`InputError` with the end of what it said.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from evofeed.errors import InputError

_SAID: Final = 400
_JACKHMMER: Final = "--noali --F1 0.0005 --F2 5e-05 --F3 5e-07".split()
_HHBLITS: Final = (
    "-n 3 -e 0.001 -maxseq 1000000 -realign_max 100000 -maxfilt 100000 -min_prefilter_hits 1000"
).split()
_MMSEQS: Final = "--num-iterations 3 -a 1 -e 0.1 --max-seqs 10000".split()


def on_path(program: str) -> str:
    """Where a program is, '' if it is not."""
    return shutil.which(program) or ""


def jackhmmer(sequence: str, db: str, threads: int, e_value: float, iterations: int) -> bytes:
    """Stockholm alignment of a sequence to a FASTA database."""
    with tempfile.TemporaryDirectory() as folder:
        query, out = _query(folder, sequence), Path(folder) / "out.sto"
        limits = ["-E", str(e_value), "--incE", str(e_value), "-N", str(iterations)]
        where = ["-o", f"{folder}/log", "-A", str(out), "--cpu", str(threads)]
        _run("jackhmmer", *where, *limits, *_JACKHMMER, query, db)
        return _result(out, "jackhmmer")


def hhblits(sequence: str, db: str, threads: int) -> bytes:
    """A3M alignment of a sequence to an hhblits database."""
    with tempfile.TemporaryDirectory() as folder:
        query, out = _query(folder, sequence), Path(folder) / "out.a3m"
        where = ["-i", query, "-d", db, "-oa3m", str(out), "-o", f"{folder}/log"]
        _run("hhblits", *where, "-cpu", str(threads), *_HHBLITS)
        return _result(out, "hhblits")


def mmseqs(sequence: str, db: str, threads: int) -> bytes:
    """A3M alignment of a sequence to an mmseqs database."""
    with tempfile.TemporaryDirectory() as folder:
        query, out = _query(folder, sequence), Path(folder) / "out.a3m"
        mine, hits = f"{folder}/query_db", f"{folder}/hits_db"
        many = ["--threads", str(threads)]
        _run("mmseqs", "createdb", query, mine)
        _run("mmseqs", "search", mine, db, hits, f"{folder}/tmp", *_MMSEQS, *many)
        _run("mmseqs", "result2msa", mine, db, hits, str(out), "--msa-format-mode", "5", *many)
        return _result(out, "mmseqs").replace(b"\0", b"")  # ends of entries in its dbs


def _query(folder: str, sequence: str) -> str:
    path = Path(folder) / "query.fasta"
    path.write_text(f">query\n{sequence}\n", encoding="ascii")
    return str(path)


def _run(program: str, *arguments: str) -> None:
    found = on_path(program)
    if not found:
        raise InputError(f"this database needs {program}, which is not on the PATH")
    done = subprocess.run([found, *arguments], capture_output=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-_SAID:]
        raise InputError(f"{program} ended with {done.returncode}: {said}")


def _result(path: Path, program: str) -> bytes:
    if not path.is_file():
        raise InputError(f"{program} ended well but wrote nothing")
    return path.read_bytes()
