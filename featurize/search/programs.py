"""Search programs of the PATH: what they are called with, and what becomes of a bad call.

Thresholds are AF2's (SI 1.2.2), ColabFold's in `SearchConfig.colabfold`. A program that
crashes, hangs or writes half is a `SearchFailed` with the end of what it said.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from evofeed.base.errors import InputError, JobError, SearchFailed
from evofeed.base.files import scratch_folder

_SAID: Final = 400
_FULL: Final = re.compile("no space left|disk quota|disk full", re.IGNORECASE)


def version(program: str) -> str:
    """What a program says of itself, for cache keys and provenance.

    Raises:
        InputError: it is not on the PATH.
    """
    where = _find(program)
    seen = Path(where).stat()
    return _version(program, where, seen.st_size, seen.st_mtime_ns)


@lru_cache(maxsize=64)
def _version(program: str, where: str, size: int, changed: int) -> str:
    arguments = [where, "version"] if program == "mmseqs" else [where, "-h"]
    done = subprocess.run(arguments, capture_output=True, check=False, timeout=60)
    said = (done.stdout + done.stderr).decode("utf-8", "replace").splitlines()
    if program == "mmseqs":
        return f"mmseqs {said[0].strip() if said else '?'}"
    named = (line.strip("# :").partition(" (")[0] for line in said)
    number = next((line for line in named if re.search(r"HH\w+ \d", line)), "?")
    return f"{program} ({number})"


class Scratch:
    """A folder for one call's files, gone afterwards, and the programs that run in it.
    One that takes longer than the deadline is killed with all that it started.
    """

    def __init__(self, deadline: float, parent: str = "") -> None:
        self.deadline = deadline
        self._folder = contextlib.ExitStack()
        self.path = self._folder.enter_context(scratch_folder("evofeed-search-", parent))

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.close()

    def query(self, *sequences: str) -> str:
        """A FASTA file of sequences, several of them named by their numbers."""
        names = ["query"] if len(sequences) == 1 else list(map(str, range(len(sequences))))
        named = (f">{name}\n{s}\n" for name, s in zip(names, sequences, strict=True))
        return self.file("query.fasta", "".join(named).encode("ascii"))

    def file(self, name: str, data: bytes) -> str:
        """A file with this content."""
        path = self.path / name
        try:
            path.write_bytes(data)
        except OSError as error:
            raise self._full() if error.errno == errno.ENOSPC else error from None
        return str(path)

    def _full(self) -> JobError:
        return JobError(
            "no space left for the programs' files: free some, or name another folder with "
            "--scratch, and run it again; what is done is kept",
            path=str(self.path.parent),
        )

    def run(self, program: str, *arguments: str) -> None:
        """Run a program to its good end.

        Raises:
            InputError: it is not on the PATH.
            SearchFailed: it failed or took too long.
            JobError: the disk is full.
        """
        command = [_find(program), *arguments]
        # Not a session of its own: who kills our process group kills the program with it.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.path,
        )
        try:
            said, _ = child.communicate(timeout=self.deadline)
        except subprocess.TimeoutExpired:
            _kill(child.pid)
            said, _ = child.communicate()
            raise SearchFailed(
                f"{program} took longer than {self.deadline:g} s{_tail(said)}"
            ) from None
        except BaseException:
            _kill(child.pid)
            raise
        if child.returncode == 0:
            return
        if _FULL.search(said.decode("utf-8", "replace")) or not _room(self.path):
            raise self._full()
        code = child.returncode
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise SearchFailed(f"{program} {ended}{_tail(said)}")

    def result(self, name: str, program: str) -> bytes:
        """A file that a program was to write.

        Raises:
            SearchFailed: it did not.
            JobError: the disk is full.
        """
        path = self.path / name
        if path.is_file() and (data := path.read_bytes()):
            return data
        if not _room(self.path):
            raise self._full()
        raise SearchFailed(f"{program} ended well but wrote nothing")


def hhblits(
    scratch: Scratch, sequence: str, dbs: Sequence[str], *, threads: int, options: Sequence[str]
) -> bytes:
    """A3M alignment of a sequence to databases of hh-suite, searched as one."""
    databases = [word for db in dbs for word in ("-d", db)]
    where = ["-i", scratch.query(sequence), *databases, "-oa3m", "out.a3m", "-o", "/dev/null"]
    scratch.run("hhblits", *where, "-cpu", str(threads), *options)
    return scratch.result("out.a3m", "hhblits")


def hhsearch(
    scratch: Scratch, a3m: bytes, db: str, *, threads: int, options: Sequence[str]
) -> bytes:
    """Template hits of an alignment in a database such as PDB70, as hhr."""
    where = ["-i", scratch.file("query.a3m", a3m), "-d", db, "-o", "out.hhr"]
    scratch.run("hhsearch", *where, "-cpu", str(threads), *options)
    return scratch.result("out.hhr", "hhsearch")


def _find(program: str) -> str:
    if found := shutil.which(program):
        return found
    raise InputError(f"this database needs {program}, which is not on the PATH")


def _tail(said: bytes) -> str:
    text = said.decode("utf-8", "replace").strip()[-_SAID:]
    return f": {text}" if text else ", and said nothing"


def _room(folder: Path) -> bool:
    return shutil.disk_usage(folder).free > 1 << 20


def _kill(pid: int) -> None:
    """Kill a program and what it started: mmseqs is shell scripts that start mmseqs."""
    for one in [*descendants(pid), pid]:
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that these have."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile
            stat = (process / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(stat[1]), []).append(int(process.name))
    found, look = [], [pid]
    while look:
        below = children.get(look.pop(), [])
        found += below
        look += below
    return found
