"""A run's folder: its lock, and the datasets that the run in it reads."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from evofeed.base.errors import TrainerError
from evofeed.base.files import parse_json
from evofeed.base.run_files import RUN
from evofeed.trainer.run.distributed import World

_LOCK = ".lock"


@contextmanager
def sole_writer(out: Path, world: World) -> Iterator[None]:
    """Makes a run's folder and holds its lock.

    Raises:
        TrainerError: it cannot be made, or another process is training into it.
    """
    lock = _lock(out) if world.is_first else None
    if world.share(world.is_first and lock is None):
        raise TrainerError(
            "another process is training into this folder; wait for it, or choose another --out",
            path=str(out),
        )
    with closing(lock) if lock else nullcontext():
        yield


def _lock(out: Path) -> IO[str] | None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / _LOCK).open("a")
    except OSError as error:
        raise TrainerError(
            f"cannot write into this folder ({error.strerror}); choose another --out", path=str(out)
        ) from error
    try:  # a POSIX lock: unlike flock's it is not inherited by the loader's reader process
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        lock.close()
        return None
    except OSError:  # a file system without locks: runs are not locked there
        pass
    return lock


def at_run_snapshot(dataset: Any, out: Path, world: World) -> Any:
    """Datasets given by URI, each at the snapshot that the run in `out` reads.

    A ref may point to a newer snapshot since the run began. A run continues with its old one,
    or its order of chains would change.
    """
    from evofeed.store import Dataset, address_and_ref

    datasets = list(dataset) if isinstance(dataset, list | tuple) else [dataset]
    digests = world.share((_facts(out) or {}).get("dataset") if world.is_first else None)
    if not digests or len(digests) != len(datasets):
        return dataset
    return [
        Dataset.open(address_and_ref(entry)[0], digest) if isinstance(entry, str) else entry
        for entry, digest in zip(datasets, digests, strict=True)
    ]


def source_of(out: Path) -> dict[str, list[str]]:
    """URIs of the `dataset` and the `validation` of the run in a folder.

    Raises:
        TrainerError: there is no run, or its datasets were not given by URI.
    """
    facts = _facts(out)
    source = facts.get("source") or {} if facts else {}
    if not source.get("dataset"):
        fault = "no run to continue" if facts is None else "it has no URI of its dataset"
        raise TrainerError(f"{fault}: give --dataset", path=str(out / RUN))
    return dict(source)


def _facts(out: Path) -> dict[str, Any] | None:
    try:
        facts = parse_json((out / RUN).read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None
