"""One process per GPU, started by torchrun, and the few things they say to each other.

Gradients live in one flat buffer, so averaging them is a single all-reduce after
the backward pass: 373 MB for the full model. No rank ever waits for a parameter
that another rank did not touch, which is how bucketed DDP hangs.
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

_PATIENCE: Final = timedelta(minutes=20)
"""How long a rank waits for another: a loader waits 15 for a storage that does not answer."""
GONE: Final = "another rank has ended or does not answer"
_ABSENT: Final = (dist.DistNetworkError, dist.DistStoreError)
_SIGNS: Final = ("gloo/transport", "ncclRemoteError")
"""In what gloo and NCCL say when a connection to another rank breaks or stays silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who takes part, and which of them this process is."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    axis: Axis | None = None
    """The ranks that share this one's samples; None: it has its own."""

    @property
    def readers(self) -> int:
        """How many different samples the ranks have at a time."""
        return self.size // (self.axis.size if self.axis else 1)

    @property
    def reader(self) -> int:
        """Which of them is this rank's."""
        return self.rank // (self.axis.size if self.axis else 1)

    @property
    def is_first(self) -> bool:
        """Whether this rank writes logs and checkpoints."""
        return self.rank == 0

    def broadcast(self, tensor: Tensor) -> None:
        """Give every rank the first rank's values, in place."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)

    def mean(self, tensor: Tensor) -> None:
        """Average over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
            tensor.div_(self.size)

    def mean_of_sample(self, tensor: Tensor) -> None:
        """Average over the ranks that share this one's samples, in place."""
        if self.axis:
            dist.all_reduce(tensor, group=self.axis.group)
            tensor.div_(self.axis.size)

    def share(self, value: Any) -> Any:
        """The first rank's value, for everybody; any object that pickles."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def collect(self, value: Any) -> list[Any]:
        """Everybody's value, in order of ranks, for everybody."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait for everybody."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def join_world(device: str | None = None, axial: int | None = 1) -> Iterator[World]:
    """This process's place among those torchrun started; alone where it started none.

    `nccl` on GPUs, `gloo` elsewhere. Leaves the group at the end. Without a device it is this
    rank's GPU if there is one. So many neighbours share a sample (`axial`; None: all).

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
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place == torch.device("cuda"):  # this rank's own, not everybody's first
        place = _own_gpu()
    if size == 1 or dist.is_initialized():
        yield _world(place, axial) if dist.is_initialized() else World(device=place)
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise TrainerError(
            f"WORLD_SIZE is {size} but {', '.join(missing)} is not set: use torchrun"
        )
    if place.type == "cuda":
        torch.cuda.set_device(place)
    with _peers_named():
        dist.init_process_group(
            "nccl" if place.type == "cuda" else "gloo",
            timeout=_PATIENCE,
            # Named, or NCCL guesses a device at the first barrier and warns.
            device_id=place if place.type == "cuda" else None,
        )
        try:
            yield _world(place, axial)
        finally:
            dist.destroy_process_group()


@contextmanager
def _peers_named() -> Iterator[None]:
    """Says of an exchange that failed because another rank is gone what to do.

    Raises:
        TrainerError: one is.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not isinstance(error, _ABSENT) and not any(sign in text for sign in _SIGNS):
            raise
        why = text.partition("\n")[0]
        why = why[why.startswith("[") and why.find("] ") + 2 :].partition(". ")[0]  # no source line
        rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
        raise TrainerError(
            f"rank {rank} of {size}: {GONE} ({why[:200]}); its own output says why. Start all of "
            "them again; a training run goes on from its newest checkpoint with --resume"
        ) from error


def _world(device: torch.device, axial: int) -> World:
    rank, size = dist.get_rank(), dist.get_world_size()
    axis = axial_group(size, axial, device) if axial > 1 else None
    return World(rank=rank, size=size, device=device, axis=axis)


def _own_gpu() -> torch.device:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        raise TrainerError(
            f"local rank {local} has no GPU of its own: {torch.cuda.device_count()} there; "
            "start torchrun with --nproc-per-node no larger than that"
        )
    return torch.device("cuda", local)
