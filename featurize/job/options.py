"""Options of a job: where and when it runs, never the bytes it writes; and its paths."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evofeed.base.configs import Config, check_choice, check_numbers
from evofeed.base.errors import InputError
from evofeed.featurize.formats.reading import is_text
from evofeed.store.inner import check_name

_MAX_BROKEN: Final = 0.05
_FEW: Final = 20
"""Chains below which a share says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions(Config):
    """Options of the executor of units, shared by jobs and searches."""

    executor: str = "auto"
    """`local` (processes of this machine), `ray` (a cluster, the Ray that runs on this machine, or
    one started for the job) or `auto`: `ray` where there is an address or this process has joined
    a Ray, else `local`."""
    workers: int = 0
    """Units worked on at once; 0: usable cores divided by the cores of a unit."""
    ray_address: str = ""
    """`host:port` of a running Ray cluster; if empty, the value of RAY_ADDRESS."""
    deadline: float = 600.0
    """Seconds one chain, or one call of a program, may take."""

    def __post_init__(self) -> None:
        check_choice(self, "executor", ("auto", "ray", "local"))
        check_numbers(self, "workers", least=0)
        check_numbers(self, "deadline", above=0)
        if self.ray_address and self.executor == "local":
            raise ValueError("ray_address needs executor='ray'")

    @property
    def cores(self) -> int:
        """Cores that a unit takes."""
        return 1

    @property
    def cluster(self) -> str:
        """Address of the Ray on which units run; empty if they run in processes of this machine."""
        if self.executor == "local":
            return ""
        address = self.ray_address or os.environ.get("RAY_ADDRESS", "")
        address = "" if address == "local" else address  # Ray's word for one that it starts
        return address or ray_of_this_process() or ("auto" if self.executor == "ray" else "")

    @property
    def num_workers(self) -> int:
        """The option `workers`, or as many as the usable cores suffice for."""
        return self.workers or max(1, len(os.sched_getaffinity(0)) // self.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(ExecutorOptions):
    """Limits and locations of a job. The bytes of a chain do not depend on any of them."""

    ledger: str = ""
    """SQLAlchemy URL or path of the ledger; empty puts `jobs/ledger.sqlite` into the dataset."""
    ref: str = "main"
    """The ref that is moved to the snapshot."""
    replace_ref: bool = False
    """Move the ref even if it points at chains of another input."""
    clusters: str = ""
    """Sequence clusters, one a line or mmseqs' `_cluster.tsv`, for `cluster_size` in the index."""
    memory: int = 8 << 30
    """Bytes one chain may add to its worker."""
    max_broken: float | None = None
    """Broken share of the chains above which nothing is published; None: 0.05 from 20 chains
    on, and no limit for fewer, each of which is a larger share."""

    def __post_init__(self) -> None:
        ExecutorOptions.__post_init__(self)
        check_numbers(self, "memory", least=1 << 20)
        check_numbers(self, "max_broken", least=0, most=1)
        check_name(self.ref, "ref")

    def exceeded_share(self, broken: int, total: int) -> str:
        """The permitted share as text if `broken` chains exceed it; empty if they do not."""
        share = self.max_broken
        if share is None:
            share = _MAX_BROKEN if total >= _FEW else 1.0
        return f"{share:g}" if broken > share * total else ""


def ray_of_this_process() -> str:
    """The address of the Ray that the calling program has joined; empty if it has not."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().gcs_address)


def ledger_url(ledger: str, dataset_uri: str) -> str:
    """`ledger` if it is not empty, else `jobs/ledger.sqlite` in a dataset on disk.

    A remote dataset gets its ledger in `~/.local/state/evofeed/`, named after the dataset.
    """
    if ledger:
        return ledger
    if "://" in dataset_uri and not dataset_uri.startswith("file://"):
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        name = dataset_uri.replace("://", "-").replace("/", "-").replace(":", "-")
        return str(state / "evofeed" / f"{name}.sqlite")
    return str(Path(dataset_uri.removeprefix("file://")) / "jobs" / "ledger.sqlite")


def report_path(url: str, dataset_uri: str, job_id: str) -> str:
    """Path of the final report: in the ledger's folder, or where the ledger would be on disk."""
    database = url if url.startswith("sqlite:///") else ledger_url("", dataset_uri)
    folder = Path(database.removeprefix("sqlite:///")).parent
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / f"{job_id[:16]}.report.json")


def absolute(uri: str) -> str:
    """The absolute path of a folder or file; other URIs unchanged.

    Raises:
        InputError: the path is not valid text, so that no ledger can store it.
    """
    path = uri.removeprefix("file://")
    if "://" not in path:
        local = Path(path)
        path = str(local.resolve() if local.name == ".." else local.absolute())
    if not is_text(path):
        raise InputError("not UTF-8: rename it", path=path.encode(errors="replace").decode())
    return path


def check_separate(input_uri: str, dataset_uri: str) -> None:
    """Raise InputError if shards would be written among the files that they are made of."""
    if Path(input_uri).resolve() == Path(dataset_uri).resolve():
        raise InputError("input and DATASET are one folder: name another one", path=dataset_uri)


def relative(path: str | None, input_uri: str) -> str | None:
    """A path inside the input relative to it; other paths unchanged."""
    return path and path.removeprefix(f"{input_uri}/")
