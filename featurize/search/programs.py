"""Search programs on the PATH: their calls, and errors of calls that fail.

Thresholds are AF2's (SI 1.2.2), ColabFold's in `SearchConfig.colabfold`. A program that
crashes, hangs or writes half a result is a `SearchFailed` with the end of its output.
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

_MAX_OUTPUT: Final = 400  # characters of a program's output in a message
_DISK_FULL: Final = re.compile("no space left|disk quota|disk full", re.IGNORECASE)


def version(program: str) -> str:
    """Version that a program prints, for cache keys and provenance.

    Raises:
        InputError: it is not on the PATH.
    """
    path = _find(program)
    stat = Path(path).stat()
    return _version(program, path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _version(program: str, path: str, size: int, mtime_ns: int) -> str:
    arguments = [path, "version"] if program == "mmseqs" else [path, "-h"]
    process = subprocess.run(arguments, capture_output=True, check=False, timeout=60)
    lines = (process.stdout + process.stderr).decode("utf-8", "replace").splitlines()
    if program == "mmseqs":
        return f"mmseqs {lines[0].strip() if lines else '?'}"
    titles = (line.strip("# :").partition(" (")[0] for line in lines)
    title = next((line for line in titles if re.search(r"HH\w+ \d", line)), "?")
    return f"{program} ({title})"


class Scratch:
    """A temporary folder, and the programs that run in it: one that takes longer than the
    deadline is killed with everything that it started."""

    def __init__(self, deadline: float, parent: str = "") -> None:
        self.deadline = deadline
        self._folder = contextlib.ExitStack()
        self.path = self._folder.enter_context(scratch_folder("evofeed-search-", parent))

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.close()

    def query(self, *sequences: str) -> str:
        """Write a FASTA file of sequences, named `query` or by their numbers; returns its path."""
        names = ["query"] if len(sequences) == 1 else list(map(str, range(len(sequences))))
        records = (f">{name}\n{s}\n" for name, s in zip(names, sequences, strict=True))
        return self.file("query.fasta", "".join(records).encode("ascii"))

    def file(self, name: str, data: bytes) -> str:
        """Write a file; returns its path."""
        path = self.path / name
        try:
            path.write_bytes(data)
        except OSError as error:
            raise self._disk_full() if error.errno == errno.ENOSPC else error from None
        return str(path)

    def _disk_full(self) -> JobError:
        return JobError(
            "no space left for the programs' files: free some, or name another folder with "
            "--scratch, and run it again; finished work is kept",
            path=str(self.path.parent),
        )

    def run(self, program: str, *arguments: str) -> None:
        """Run a program.

        Raises:
            InputError: it is not on the PATH.
            SearchFailed: it failed or took too long.
            JobError: the disk is full.
        """
        command = [_find(program), *arguments]
        # In the same session, so that a signal to our process group kills the program, too.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.path,
        )
        try:
            output, _ = child.communicate(timeout=self.deadline)
        except subprocess.TimeoutExpired:
            _kill(child.pid)
            output, _ = child.communicate()
            raise SearchFailed(
                f"{program} took longer than {self.deadline:g} s{_tail(output)}"
            ) from None
        except BaseException:
            _kill(child.pid)
            raise
        if child.returncode == 0:
            return
        if _DISK_FULL.search(output.decode("utf-8", "replace")) or not _has_space(self.path):
            raise self._disk_full()
        code = child.returncode
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise SearchFailed(f"{program} {ended}{_tail(output)}")

    def result(self, name: str, program: str) -> bytes:
        """The content of a file that a program should have written.

        Raises:
            SearchFailed: the file is missing or empty.
            JobError: the disk is full.
        """
        path = self.path / name
        if path.is_file() and (data := path.read_bytes()):
            return data
        if not _has_space(self.path):
            raise self._disk_full()
        raise SearchFailed(f"{program} ended well but wrote nothing")


def hhblits(
    scratch: Scratch, sequence: str, dbs: Sequence[str], *, threads: int, options: Sequence[str]
) -> bytes:
    """A3M alignment of a sequence to databases of hh-suite, searched as one."""
    databases = [word for db in dbs for word in ("-d", db)]
    files = ["-i", scratch.query(sequence), *databases, "-oa3m", "out.a3m", "-o", "/dev/null"]
    scratch.run("hhblits", *files, "-cpu", str(threads), *options)
    return scratch.result("out.a3m", "hhblits")


def hhsearch(
    scratch: Scratch, a3m: bytes, db: str, *, threads: int, options: Sequence[str]
) -> bytes:
    """Template hits of an alignment in a database such as PDB70, as hhr."""
    files = ["-i", scratch.file("query.a3m", a3m), "-d", db, "-o", "out.hhr"]
    scratch.run("hhsearch", *files, "-cpu", str(threads), *options)
    return scratch.result("out.hhr", "hhsearch")


def _find(program: str) -> str:
    if path := shutil.which(program):
        return path
    raise InputError(f"this database needs {program}, which is not on the PATH")


def _tail(output: bytes) -> str:
    text = output.decode("utf-8", "replace").strip()[-_MAX_OUTPUT:]
    return f": {text}" if text else ", without any output"


def _has_space(folder: Path) -> bool:
    return shutil.disk_usage(folder).free > 1 << 20


def _kill(pid: int) -> None:
    """Kill a program and its descendants: mmseqs is shell scripts that start mmseqs."""
    for process in [*descendants(pid), pid]:
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Ids of the processes below a process."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended since
            stat = (process / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(stat[1]), []).append(int(process.name))
    result, parents = [], [pid]
    while parents:
        started = children.get(parents.pop(), [])
        result += started
        parents += started
    return result
