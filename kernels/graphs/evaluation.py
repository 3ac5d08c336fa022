"""Calls in evaluation mode that come again: at the ninth of a kind in a row they are recorded.

Denoising steps come two hundred times, chains of all lengths once or a few times. Arguments may be
in dictionaries and lists, as the batch of a whole denoising module is. A tensor that was the same
one in all those calls, unchanged, is read where it is, and the recording holds as long as it is
given again; others are copied. Whatever else is an argument counts as a constant. A tensor of
inference mode does not tell that it was written to: it is copied, or a step looks at its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.kernels.graphs.arguments import (
    EQUAL,
    Arguments,
    Leaves,
    Same,
    kind_of,
    put_together,
    taken_apart,
)
from evofeed.kernels.graphs.constants import ChangedInPlace, Constants
from evofeed.kernels.graphs.recording import Homes, Recording

MOST_RECORDINGS = 8  # of a module
EAGER_CALLS = 8  # of a kind in a row before a recording
MOST_BYTES = 1 << 27  # of a block's arguments: with more, the GPU takes longer than its host
MOST_BEGUN = 8  # times that a shorter row may begin; arguments that change then may always change


class RecordedCall(NamedTuple):
    """A recording, the constants that it reads, and what must be as it was.

    Attributes:
        shape, settings: of the arguments.
        others: kinds of those that may be others, by number.
        staying: arguments that must be given again.
        bits: sums over those of tensors of inference mode among them.
        weights: where the parameters and buffers are.
        versions: what changes when their numbers do.
        results: the shape of what is returned.
    """

    recording: Recording
    read: Any
    shape: Hashable
    settings: Hashable
    others: dict[int, Hashable]
    staying: dict[int, Same]
    bits: dict[int, Tensor]
    weights: Homes
    versions: list[int]
    results: Any

    def holds(self, given: Arguments) -> bool:
        """Whether a call may be replayed."""
        return (
            given.shape == self.shape
            and all(kind_of(given.leaves[n]) == kind for n, kind in self.others.items())
            and all(same(given.leaves[n]) for n, same in self.staying.items())
            and given.settings == self.settings
            and self.versions == _versions(self.weights)
        )

    def rewritten(self, leaves: Leaves) -> set[int]:
        """The numbers of those whose bits are others; the host waits for that."""
        if not self.bits:
            return set()
        same = torch.stack([_bits(leaves[n]) == bits for n, bits in self.bits.items()])
        return {n for n, each in zip(self.bits, same.tolist(), strict=True) if not each}

    def __call__(self, leaves: Leaves) -> Any:
        """What the module's forward returns for these arguments."""
        copied = [
            leaf for n, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and n not in self.staying
        ]  # fmt: skip
        return put_together(self.results, iter(self.recording(copied)))


class Evaluation:
    """The recordings of one module in evaluation mode.

    Args:
        denoises: whether it is a whole step of sampling.
    """

    def __init__(self, denoises: bool) -> None:
        self._denoises = denoises
        self.recordings: dict[Hashable, RecordedCall] = {}
        self._rewritten = set[int]()
        self._latest: Hashable = None
        self._times = self._begun = 0
        self._staying: dict[int, Same] = {}

    def find(self, given: Arguments) -> RecordedCall | None:
        """A recording of such a call."""
        latest: list[RecordedCall] = [*self.recordings.values()][::-1]
        for found in latest:
            if found.holds(given):
                rewritten = found.rewritten(given.leaves)
                if not rewritten:
                    return found
                self._rewritten |= rewritten
                break
        return None

    def comes_again(self, given: Arguments) -> bool:
        """Whether a call that no recording holds for is to be recorded."""
        if self.recordings.pop(given.kind, None) is not None:  # of other tensors
            self._times = 0
        for kind, other in [*self.recordings.items()]:
            if any(same.gone() for same in other.staying.values()):  # nor would it be replayed
                self.recordings.pop(kind, None)
        self._count(given)
        return self._times > EAGER_CALLS

    def record(self, call: Callable[..., Any], given: Arguments, homes: Homes) -> RecordedCall:
        """A recording of such a call; the oldest makes room.

        Raises:
            RuntimeError: it cannot be recorded.
        """
        if len(self.recordings) >= MOST_RECORDINGS:
            del self.recordings[next(iter(self.recordings))]
        made = self.recordings[given.kind] = _record(call, given, homes, dict(self._staying))
        return made

    def _count(self, given: Arguments) -> None:
        """How often in a row calls of this kind came, and with which arguments that stayed.

        What changes from the first call to the second is what changes. Where anything else does
        later, another prediction has begun.
        """
        if given.kind != self._latest:
            self._latest, self._begun, self._times = given.kind, 0, 0
            self._rewritten = set()
        if self._times == 0:
            self._staying = {}
        same = {n: stays for n, stays in self._staying.items() if stays(given.leaves[n])}
        later = self._times > 1 and len(same) < len(self._staying) and self._begun < MOST_BEGUN
        if later or self._times == 0:
            self._times, self._begun = 1, self._begun + later
            self._staying = {
                n: Same(leaf) for n, leaf in enumerate(given.leaves) if self._may_stay(n, leaf)
            }
        else:
            self._times, self._staying = self._times + 1, same

    def _may_stay(self, number: int, leaf: Any) -> bool:
        if isinstance(leaf, EQUAL) or number in self._rewritten:
            return False
        return self._denoises or not isinstance(leaf, Tensor) or not leaf.is_inference()


def _bits(t: Tensor) -> Tensor:
    """The sum of a tensor's bits, as whole numbers of its own size."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(t.element_size(), torch.int64)
    return t.contiguous().view(-1).view(kind).sum(dtype=torch.int64)


def _record(
    call: Callable[..., Any], given: Arguments, homes: Homes, staying: dict[int, Same]
) -> RecordedCall:
    tensors = given.tensors
    for n, leaf in enumerate(given.leaves):
        if not (isinstance(leaf, (Tensor, *EQUAL)) or n in staying):
            raise RuntimeError(f"an argument is a {type(leaf).__name__}, no tensor and no constant")
    if tensors.keys() <= staying.keys():
        del staying[next(iter(tensors))]  # a recording is of some input
    copied = [n for n in tensors if n not in staying]
    if {tensors[n].device for n in copied} != {given.on_device[0].device}:
        raise RuntimeError("an argument that changes is not on the GPU")
    fixed = {n: t for n, t in tensors.items() if n in staying}
    constants = Constants(list(fixed.values()), [home[name] for home, name in homes])
    shape: Any = None

    def forward(inputs: Sequence[Tensor]) -> Leaves:
        nonlocal shape
        put = dict(enumerate(given.leaves)) | dict(zip(copied, inputs, strict=True))
        args, kwargs = put_together(given.shape, iter(put.values()))
        results: Leaves = []
        with constants:
            shape = taken_apart(call(*args, **kwargs), results)
        constants.settle(results)
        return results

    try:
        recording = Recording(forward, [tensors[n] for n in copied], homes)
    except ChangedInPlace as error:
        del staying[list(fixed)[error.number]]
        return _record(call, given, homes, staying)
    read = constants.answers, constants.kept
    bits = {
        n: _bits(t)
        for m, (n, t) in enumerate(fixed.items())
        if t.is_inference() and m in constants.used
    }
    weights = [(home, name) for home, name in homes if not home[name].is_inference()]
    others = {n: kind_of(leaf) for n, leaf in enumerate(given.leaves) if n not in staying}
    return RecordedCall(
        recording, read, given.shape, given.settings, others, staying, bits, weights,
        _versions(weights), shape,
    )  # fmt: skip


def _versions(weights: Homes) -> list[int]:
    return [home[name]._version for home, name in weights]
