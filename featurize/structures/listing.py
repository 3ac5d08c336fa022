"""Which protein chains structure files hold. They must be parsed: many files by many processes."""

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
from evofeed.featurize.structures.structure_places import parse_structure

Listed = dict[str, str] | InputError
"""Chain ids of a file in its order with their sequences, or what is wrong with it."""

_FEW: Final = 500
"""Files that are read before a process that could help has started."""
_PART: Final = 2000
"""Files of one process at most: what a worker that is killed has done is done again."""
_MAIN: Final = "from evofeed.featurize.structures.listing import serve; serve()"


def list_chains(
    paths: Sequence[Path], *, workers: int | None = None, few: int = _FEW
) -> Iterator[Listed]:
    """The protein chains of each file, in the order of the files."""
    workers = workers or len(os.sched_getaffinity(0))
    if workers == 1 or len(paths) <= few:
        yield from map(chains_in, paths)
        return
    each = min(_PART, -(-len(paths) // workers))
    pool = ThreadPoolExecutor(workers)  # each waits for a process
    try:
        for listed in pool.map(
            _by_a_process, (paths[n : n + each] for n in range(0, len(paths), each))
        ):
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


def _by_a_process(part: Sequence[Path]) -> list[Listed]:
    """Listed by a fresh interpreter: a fork of a process with threads may wait forever."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", _MAIN],
        input=pickle.dumps(part),
        stdout=subprocess.PIPE,
        env=environment,
        check=False,
    )
    if done.returncode:  # killed, or out of memory: here the reason is seen
        return list(map(chains_in, part))
    listed: list[Listed] = pickle.loads(done.stdout)
    return listed


def serve() -> None:
    """List the files whose pickled paths are on standard input."""
    listed = list(map(chains_in, pickle.load(sys.stdin.buffer)))
    sys.stdout.buffer.write(pickle.dumps(listed))
