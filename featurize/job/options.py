"""How a job runs: everything that decides when and where, nothing that decides the bytes; and how
paths of a job are written."""

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
class Workplace(Config):
    """Where units run: the same for jobs and for searches."""

    executor: str = "auto"
    """`local` (processes of this machine), `ray` (a cluster, the Ray that runs on this machine, or
    one started for the job) or `auto`: `ray` where there is an address or this process has joined
    a Ray, else `local`."""
    workers: int = 0
    """Units worked on at once; 0 is one per usable core, or per so many as one takes."""
    ray_address: str = ""
    """`host:port` of a running Ray cluster; if empty, what RAY_ADDRESS says."""
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
        """Workers asked for, or as many as this process may use cores for."""
        return self.workers or max(1, len(os.sched_getaffinity(0)) // self.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(Workplace):
    """Limits and places of a job. What a chain's bytes are does not depend on any of them."""

    ledger: str = ""
    """SQLAlchemy URL or path of the ledger; empty puts `jobs/ledger.sqlite` into the dataset."""
    ref: str = "main"
    """The name that points at the snapshot afterwards."""
    replace_ref: bool = False
    """Let the ref point at this input's chains though it holds others of another input."""
    clusters: str = ""
    """Sequence clusters, one a line or mmseqs' `_cluster.tsv`, for `cluster_size` in the index."""
    memory: int = 8 << 30
    """Bytes one chain may add to its worker."""
    max_broken: float | None = None
    """Broken share of the chains above which nothing is published; None is 0.05 from 20 chains
    on, and no limit for fewer, of which each one is more than that."""

    def __post_init__(self) -> None:
        Workplace.__post_init__(self)
        check_numbers(self, "memory", least=1 << 20)
        check_numbers(self, "max_broken", least=0, most=1)
        check_name(self.ref, "ref")

    def too_many(self, broken: int, total: int) -> str:
        """The share that so many broken chains exceed, in words; empty if they do not."""
        share = self.max_broken
        if share is None:
            share = _MAX_BROKEN if total >= _FEW else 1.0
        return f"{share:g}" if broken > share * total else ""


def ray_of_this_process() -> str:
    """The address of the Ray that a program of the user's own has joined, if it has."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().gcs_address)


def ledger_url(given: str, dataset_uri: str) -> str:
    """The ledger that was asked for, or `jobs/ledger.sqlite` in a dataset on disk.

    A dataset elsewhere gets its ledger in `~/.local/state/evofeed/`, named after it.
    """
    if given:
        return given
    if "://" in dataset_uri and not dataset_uri.startswith("file://"):
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        name = dataset_uri.replace("://", "-").replace("/", "-").replace(":", "-")
        return str(state / "evofeed" / f"{name}.sqlite")
    return str(Path(dataset_uri.removeprefix("file://")) / "jobs" / "ledger.sqlite")


def report_path(url: str, dataset_uri: str, job_id: str) -> str:
    """Where the end report goes: beside the ledger, or where the ledger would be on disk."""
    database = url if url.startswith("sqlite:///") else ledger_url("", dataset_uri)
    folder = Path(database.removeprefix("sqlite:///")).parent
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / f"{job_id[:16]}.report.json")


def absolute(uri: str) -> str:
    """A folder or file by its whole path, however it was written; other URIs as they are.

    Raises:
        InputError: a name in it is no text, so that no ledger can keep it.
    """
    path = uri.removeprefix("file://")
    if "://" not in path:
        given = Path(path)
        path = str(given.resolve() if given.name == ".." else given.absolute())
    if not is_text(path):
        raise InputError("not UTF-8: rename it", path=path.encode(errors="replace").decode())
    return path


def refuse_same(input_uri: str, dataset_uri: str) -> None:
    """Raise where shards would go among the files that they are made of (InputError)."""
    if Path(input_uri).resolve() == Path(dataset_uri).resolve():
        raise InputError("input and DATASET are one folder: name another one", path=dataset_uri)


def relative(path: str | None, input_uri: str) -> str | None:
    """A path inside the input as seen from it; others as they are."""
    return path and path.removeprefix(f"{input_uri}/")
