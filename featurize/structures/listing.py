"""Protein chains of many structure files, which several processes parse."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from evofeed.base.errors import InputError
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.structures.structure_files import parse_structure

Listed = dict[str, str] | InputError
"""Sequences by chain id, in the order of the file, or the error of reading it."""

_SERIAL_FILES: Final = 500
"""Up to so many files are read in this process: a worker takes longer to start."""
_MAX_BATCH: Final = 2000
"""Files of one worker: if it is killed, they are read again."""
_WORKER: Final = "from evofeed.featurize.structures.listing import serve; serve()"


def list_chains(
    paths: Sequence[Path], *, workers: int | None = None, serial_files: int = _SERIAL_FILES
) -> Iterator[Listed]:
    """The protein chains of each file, in the order of the files."""
    workers = workers or len(os.sched_getaffinity(0))
    if workers == 1 or len(paths) <= serial_files:
        yield from map(chains_in, paths)
        return
    size = min(_MAX_BATCH, -(-len(paths) // workers))
    batches = (paths[start : start + size] for start in range(0, len(paths), size))
    pool = ThreadPoolExecutor(workers)  # each thread waits for a process
    try:
        for listed in pool.map(_list_in_process, batches):
            yield from listed
    finally:
        pool.shutdown(cancel_futures=True)


def chains_in(path: Path) -> Listed:
    """The protein chains of one file."""
    ref = file_ref(path)
    try:
        return dict(parse_structure(read_bytes(ref), ref.plain_name, path=str(path)).sequences)
    except InputError as error:
        return error


def _list_in_process(paths: Sequence[Path]) -> list[Listed]:
    """Chains listed by a new interpreter: a fork of a process with threads may deadlock."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, "-c", _WORKER],
        input=pickle.dumps(paths),
        stdout=subprocess.PIPE,
        env=environment,
        check=False,
    )
    if process.returncode:  # killed, or out of memory: this process then raises the reason
        return list(map(chains_in, paths))
    listed: list[Listed] = pickle.loads(process.stdout)
    return listed


def serve() -> None:
    """Lists the files whose pickled paths are on standard input."""
    listed = list(map(chains_in, pickle.load(sys.stdin.buffer)))
    sys.stdout.buffer.write(pickle.dumps(listed))
