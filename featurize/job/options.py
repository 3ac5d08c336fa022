"""How a job runs: everything that decides when and where, nothing that decides the bytes."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from evofeed.configs import Config, check_choice, check_numbers
from evofeed.store.inner import check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(Config):
    """Limits and places of a job. What a chain's bytes are does not depend on any of them."""

    executor: str = "auto"
    """`local` (processes of this machine), `ray` (a cluster, or a private Ray on this machine) or
    `auto`: `ray` where there is an address or this process has joined a Ray, else `local`."""
    workers: int = 0
    """Chains worked on at once; 0 is one per usable core."""
    ray_address: str = ""
    """`host:port` of a running Ray cluster; if empty, what RAY_ADDRESS says."""
    ledger: str = ""
    """SQLAlchemy URL or path of the ledger; empty puts `jobs/ledger.sqlite` into the dataset."""
    ref: str = "main"
    """The name that points at the snapshot afterwards."""
    clusters: str = ""
    """Sequence clusters, one a line or mmseqs' `_cluster.tsv`, for `cluster_size` in the index."""
    shard_nbytes: int = 128 << 20
    """Shards of units are joined to about this size when they are published; 0 leaves them."""
    check_content: bool = False
    """Read all inputs known from earlier runs again to see whether they changed, whatever
    their size and time say."""

    deadline: float = 600.0
    """Seconds one chain may take; then its worker is killed and the chain blamed."""
    memory: int = 8 << 30
    """Bytes one chain may add to its worker."""
    max_broken: float = 0.05
    """Broken share of the chains above which nothing is published."""

    def __post_init__(self) -> None:
        check_choice(self, "executor", ("auto", "ray", "local"))
        check_numbers(self, "workers", "shard_nbytes", least=0)
        check_numbers(self, "deadline", above=0)
        check_numbers(self, "memory", least=1 << 20)
        check_numbers(self, "max_broken", least=0, most=1)
        check_name(self.ref, "ref")
        if self.ray_address and self.executor == "local":
            raise ValueError("ray_address needs executor='ray'")

    @property
    def cluster(self) -> str:
        """Address of the Ray to join; empty if there is none."""
        address = self.ray_address or os.environ.get("RAY_ADDRESS", "")
        if self.executor == "local" or address == "local":  # Ray's word for one of its own
            return ""
        return address or ray_of_this_process()

    @property
    def on_ray(self) -> bool:
        """Whether units run on Ray, here and now."""
        return self.executor == "ray" or bool(self.cluster)

    @property
    def num_workers(self) -> int:
        """Workers asked for, or one per core this process may use."""
        return self.workers or len(os.sched_getaffinity(0))


def ray_of_this_process() -> str:
    """The address of the Ray that a program of the user's own has joined, if it has."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().gcs_address)
