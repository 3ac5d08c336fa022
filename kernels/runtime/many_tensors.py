# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Thousands of tensors copied or added to their places by one launch.

A model's gradients come from autograd as 5,000 tensors, most of a few hundred numbers, and its
weights are as many. PyTorch takes 64 of them a launch, and a large one among them by a handful
of programs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from evofeed.kernels.runtime.backend import tl, triton, usable
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.private_apis import add_all, copy_all

BLOCK = 4096  # numbers of a program


@triton.jit
def move_many_kernel(TO, FROM, ADDRESSES, SHARES, T, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """A share of one tensor copied, with ADD added, to its place.

    TO and FROM say the types. ADDRESSES `[2, T]`: of places and of tensors, 0 for none.
    SHARES `[programs, 3]`: which tensor, the first of the share's numbers, how many.
    """
    SHARES += tl.program_id(0) * 3
    n = tl.load(SHARES)
    there = tl.load(ADDRESSES + T + n)
    if there != 0:
        first = tl.multiple_of(tl.load(SHARES + 1), 16)
        count = tl.load(SHARES + 2)
        to = tl.multiple_of(tl.load(ADDRESSES + n).to(TO.dtype), 16) + first
        source = tl.multiple_of(there.to(FROM.dtype), 16) + first
        whole = count // 16 * 16  # of these the compiler knows that 16 bytes can be taken at once
        _move(to, source, tl.arange(0, BLOCK), whole, ADD)
        if whole < count:
            _move(to, source, whole + tl.arange(0, 16), count, ADD)


@triton.jit
def _move(to, source, at, count, ADD: tl.constexpr):
    there = at < count
    x = tl.load(source + at, mask=there, other=0.0)
    if ADD:
        x += tl.load(to + at, mask=there, other=0.0)
    tl.store(to + at, x.to(to.dtype.element_ty), mask=there)


def _shares(places: Sequence[Tensor]) -> Tensor:
    rows = [
        (n, first, min(BLOCK, place.numel() - first))
        for n, place in enumerate(places)
        for first in range(0, place.numel(), BLOCK)
    ]
    return torch.tensor(rows, dtype=torch.int64, device=places[0].device)


def _even(x: Tensor) -> bool:
    return x.is_contiguous() and x.data_ptr() % 16 == 0


def _move_many(to: Tensor, source: Tensor, addresses: Tensor, shares: Tensor, add: bool) -> None:
    launch(
        move_many_kernel, (shares.shape[0],), (to, source, addresses, shares, addresses.shape[1]),
        {"ADD": add, "BLOCK": BLOCK, "num_warps": 8},
    )  # fmt: skip


def _recording(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


class AddMany:
    """Adds tensors to places that stay, float32 and on one device.

    Args:
        places: contiguous, each from an address that is a multiple of 16 bytes.
        plain: by PyTorch, also where a kernel could run.
    """

    def __init__(self, places: Sequence[Tensor], plain: bool = False) -> None:
        self._places, self._plain = [place.view(-1) for place in places], plain
        # PyTorch takes 64 tensors a launch: beside large ones, small ones leave the card idle.
        self._by_size = sorted(range(len(places)), key=lambda n: -places[n].numel())
        self._shares = None if plain else _shares(self._places)
        self._spare: Tensor | None = None  # no memory is pinned while a graph is recorded
        self._recorded: list[Tensor] = []  # a graph reads them whenever it is replayed

    def __call__(self, tensors: Sequence[Tensor | None]) -> None:
        """Adds each to its place; None where there is nothing to add."""
        flat = [None if t is None else t.detach().reshape(-1) for t in tensors]
        addresses = None
        if not self._plain and usable(self._places[0], *flat):
            flat = [t if t is None or _takes(t) else t.to(torch.float32, copy=True) for t in flat]
            addresses = self._addresses(flat)
        if addresses is None or self._shares is None:
            there = [(self._places[n], t) for n in self._by_size if (t := flat[n]) is not None]
            add_all([place for place, _ in there], [t for _, t in there])
        else:
            _move_many(self._places[0], self._places[0], addresses, self._shares, add=True)

    def _addresses(self, flat: list[Tensor | None]) -> Tensor | None:
        """Of `move_many_kernel`, on the device; None where they cannot be brought there now."""
        found = torch.tensor([
            [place.data_ptr() for place in self._places],
            [0 if t is None else t.data_ptr() for t in flat],
        ])  # fmt: skip
        device = self._places[0].device
        if device.type != "cuda":
            return found
        if not _recording(self._places[0]):
            if self._spare is None:
                self._spare = torch.empty_like(found).pin_memory()
            return found.pin_memory().to(device, non_blocking=True)
        if self._spare is None:
            return None
        self._recorded.append(self._spare.copy_(found))
        self._spare = None
        return self._recorded[-1].to(device, non_blocking=True)


def _takes(x: Tensor) -> bool:
    return x.dtype is torch.float32 and _even(x)


class CopyMany:
    """Copies tensors to places, of one type each, whose addresses seldom change."""

    def __init__(self) -> None:
        self._known: list[list[int]] = []
        self._tables: tuple[Tensor, Tensor] | None = None
        self._recorded: list[tuple[Tensor, Tensor]] = []  # a graph reads them at every replay

    def prepare(self, places: Sequence[Tensor], tensors: Sequence[Tensor]) -> bool:
        """Brings addresses to the device, where they are new; whether they are there."""
        known = [[t.data_ptr() for t in each] for each in (places, tensors)]
        if known != self._known and not _recording(places[0]):
            self._known, self._tables = known, None
            if usable(*places, *tensors) and all(map(_even, (*places, *tensors))):
                addresses = torch.tensor(known, device=places[0].device)
                self._tables = addresses, _shares(places)
        return known == self._known and self._tables is not None

    def __call__(self, places: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """Copies each tensor to its place, of the same shape."""
        if not self.prepare(places, tensors):
            copy_all(places, tensors)
            return
        assert self._tables is not None
        if _recording(places[0]):
            self._recorded.append(self._tables)
        _move_many(places[0], tensors[0], *self._tables, add=False)
        increment_version(places)  # autograd must see that they changed
