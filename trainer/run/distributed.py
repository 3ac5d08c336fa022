"""Data parallelism: one process per GPU, started by torchrun, and their collectives.

Gradients are in one flat buffer, so averaging them is a single all-reduce after
the backward pass: 373 MB for the full model. No rank waits for the gradient of a
parameter that another rank did not use, which makes bucketed DDP hang.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.trainer.parallel.axis import Axis, axial_group, check_divides

_TIMEOUT: Final = timedelta(minutes=20)
"""Timeout of collectives: above the 15 minutes a loader waits for an unresponsive storage."""
GONE: Final = "another rank has ended or does not answer"
_ABSENT: Final = (dist.DistNetworkError, dist.DistStoreError)
_SIGNS: Final = ("gloo/transport", "ncclRemoteError")
"""Parts of the messages of gloo and NCCL about a broken connection to another rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The ranks of a run, and this process's rank among them."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    axis: Axis | None = None
    """The ranks that share this one's samples; None: none do."""

    @property
    def readers(self) -> int:
        """Number of ranks, or groups of ranks, that read different samples."""
        return self.size // (self.axis.size if self.axis else 1)

    @property
    def reader(self) -> int:
        """Index of this rank's samples among the `readers`."""
        return self.rank // (self.axis.size if self.axis else 1)

    @property
    def is_first(self) -> bool:
        """True on the rank that writes logs and checkpoints."""
        return self.rank == 0

    def broadcast(self, tensor: Tensor) -> None:
        """Copies the first rank's values to every rank, in place."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)

    def mean(self, tensor: Tensor) -> None:
        """Averages over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
            tensor.div_(self.size)

    def mean_of_sample(self, tensor: Tensor) -> None:
        """Averages over the ranks that share this one's samples, in place."""
        if self.axis:
            dist.all_reduce(tensor, group=self.axis.group)
            tensor.div_(self.axis.size)

    def share(self, value: Any) -> Any:
        """The first rank's value, on every rank; any object that pickles."""
        if self.size == 1:
            return value
        objects = [value]
        dist.broadcast_object_list(objects, src=0)
        return objects[0]

    def collect(self, value: Any) -> list[Any]:
        """All ranks' values, in order of ranks, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def join_world(device: str | None = None, axial: int | None = 1) -> Iterator[World]:
    """The world of the processes that torchrun started; without torchrun, of this process only.

    `nccl` on GPUs, `gloo` elsewhere; the process group is destroyed at the end. `device` defaults
    to this rank's GPU if there is one. `axial` consecutive ranks share a sample; None: all.

    Raises:
        TrainerError: torchrun's variables are broken, there are more ranks than GPUs, `axial`
            does not divide the ranks, or another rank is gone.
    """
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT"):
        if not (text := os.environ.get(name, "1")).isdecimal():
            raise TrainerError(f"{name} is {text!r} and must be a whole number: use torchrun")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    axial = size if axial is None else axial
    check_divides(size, axial)
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if target == torch.device("cuda"):  # without an index it would be GPU 0 on every rank
        target = _local_gpu()
    if size == 1 or dist.is_initialized():
        yield _world(target, axial) if dist.is_initialized() else World(device=target)
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise TrainerError(
            f"WORLD_SIZE is {size} but {', '.join(missing)} is not set: use torchrun"
        )
    if target.type == "cuda":
        torch.cuda.set_device(target)
    with _lost_peers_reported():
        dist.init_process_group(
            "nccl" if target.type == "cuda" else "gloo",
            timeout=_TIMEOUT,
            # Given, or NCCL guesses a device at the first barrier and warns.
            device_id=target if target.type == "cuda" else None,
        )
        try:
            yield _world(target, axial)
        finally:
            dist.destroy_process_group()


@contextmanager
def _lost_peers_reported() -> Iterator[None]:
    """A context that turns errors of collectives about a lost rank into a TrainerError."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not isinstance(error, _ABSENT) and not any(sign in text for sign in _SIGNS):
            raise
        cause = text.partition("\n")[0]
        source_end = cause.startswith("[") and cause.find("] ") + 2  # a C++ file and line
        cause = cause[source_end:].partition(". ")[0]
        rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
        raise TrainerError(
            f"rank {rank} of {size}: {GONE} ({cause[:200]}); the output of that rank has the reason"
            ". Start all ranks again; training continues from its newest checkpoint with --resume"
        ) from error


def _world(device: torch.device, axial: int) -> World:
    rank, size = dist.get_rank(), dist.get_world_size()
    axis = axial_group(size, axial, device) if axial > 1 else None
    return World(rank=rank, size=size, device=device, axis=axis)


def _local_gpu() -> torch.device:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        raise TrainerError(
            f"local rank {local} has no GPU: this host has {torch.cuda.device_count()}; "
            "start torchrun with --nproc-per-node no larger than that"
        )
    return torch.device("cuda", local)
