"""How a job runs: everything that decides when and where, nothing that decides the bytes."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from typing import Any

from evofeed.store.inner import check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
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
        if self.executor not in ("auto", "ray", "local"):
            raise ValueError(f"executor is {self.executor!r}, must be 'auto', 'ray' or 'local'")
        if self.workers < 0 or self.deadline <= 0 or self.memory < 1 << 20:
            raise ValueError(
                f"workers={self.workers} deadline={self.deadline} memory={self.memory}: "
                "want >= 0, > 0 seconds and at least 1 MiB"
            )
        if self.shard_nbytes < 0:
            raise ValueError(f"shard_nbytes is {self.shard_nbytes}, must not be negative")
        if not 0 <= self.max_broken <= 1:
            raise ValueError(f"max_broken is {self.max_broken}, must be a fraction")
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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return dataclasses.asdict(self)


def ray_of_this_process() -> str:
    """The address of the Ray that a program of the user's own has joined, if it has."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().gcs_address)
