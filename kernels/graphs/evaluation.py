"""Calls in evaluation mode that come again: at the ninth of a kind in a row they are recorded.

Denoising steps come two hundred times, chains of all lengths once or a few times. Arguments may be
in dictionaries and lists, as the batch of a whole denoising module is. A tensor that was the same
one in all those calls, unchanged, is read where it is, and the recording holds as long as it is
given again; others are copied. Whatever else is an argument counts as a constant. A tensor of
inference mode does not tell that it was written to: it is copied, or a step looks at its bits.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.kernels.graphs.constants import ChangedInPlace, Constants
from evofeed.kernels.graphs.recording import Homes, Recording, one_at_a_time, stream_number
from evofeed.kernels.runtime.backend import autocast_type
from evofeed.kernels.runtime.private_apis import tf32_allowed

MOST_RECORDINGS = 8  # of a module
EAGER_CALLS = 8  # of a kind in a row before a recording
MOST_BYTES = 1 << 27  # of a block's arguments: with more, the GPU takes longer than its host
MOST_BEGUN = 8  # times that a shorter row may begin; arguments that change then may always change

_EQUAL = (int, float, str, bytes, type(None), torch.dtype, torch.device)
"""Constants that are the same if they are equal; other objects must be the same ones."""

Leaves = list[Any]


class Arguments:
    """Of one call.

    Attributes:
        leaves: tensors and constants, out of the dictionaries, lists and tuples they are in.
        tensors: those of the leaves that are, by their number.
        on_device: those that are not on the CPU, if any are not.
    """

    def __init__(self, *containers: Any) -> None:
        self.leaves: Leaves = []
        self.shape = _taken_apart(containers, self.leaves)
        self.tensors = {n: leaf for n, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)}
        every = list(self.tensors.values())
        self.on_device = [t for t in every if not t.is_cpu] or every

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())

    @functools.cached_property
    def kind(self) -> Hashable:
        """What calls must have in common to share a recording."""
        device = self.on_device[0].device
        settings = autocast_type(device.type), tf32_allowed(), stream_number(device)
        return (self.shape, *map(_kind_of, self.leaves), *settings)


def _taken_apart(value: Any, leaves: Leaves) -> Hashable:
    """The shape of nested containers, and what is in them behind `leaves`."""
    if type(value) is dict:
        return dict, tuple((key, _taken_apart(inner, leaves)) for key, inner in value.items())
    if type(value) in (list, tuple):
        return type(value), tuple(_taken_apart(inner, leaves) for inner in value)
    leaves.append(value)
    return None


def _put_together(shape: Any, leaves: Iterator[Any]) -> Any:
    """The containers of a shape, from what is in them."""
    if shape is None:
        return next(leaves)
    kind, parts = shape
    if kind is dict:
        return {key: _put_together(inner, leaves) for key, inner in parts}
    return kind(_put_together(inner, leaves) for inner in parts)


def _kind_of(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    return type(leaf), leaf if isinstance(leaf, _EQUAL) else None


class _Same:
    """Tells whether a later argument is this one, unchanged."""

    def __init__(self, leaf: Any) -> None:
        try:
            self._leaf = weakref.ref(leaf)
        except TypeError:
            kind = type(leaf).__name__
            raise RuntimeError(f"an argument is a {kind}, no tensor and no constant") from None
        self._mark = _mark(leaf)

    def __call__(self, leaf: Any) -> bool:
        return self._leaf() is leaf and self._mark == _mark(leaf)


def _mark(leaf: Any) -> tuple[int, int]:
    if not isinstance(leaf, Tensor):
        return 0, 0
    return leaf.data_ptr(), 0 if leaf.is_inference() else leaf._version


class RecordedCall(NamedTuple):
    """A recording, the constants that it reads, and what must be as it was.

    Attributes:
        bits: sums over those of tensors of inference mode that must be given again.
        staying: arguments that must be given again.
        weights: where the parameters and buffers are.
        versions: what changes when their numbers do.
        results: the shape of what is returned.
    """

    recording: Recording
    read: Any
    bits: dict[int, Tensor]
    staying: dict[int, _Same]
    weights: Homes
    versions: list[int]
    results: Any

    def holds(self, leaves: Leaves) -> bool:
        """Whether arguments of its kind may be replayed."""
        unchanged = all(same(leaves[n]) for n, same in self.staying.items())
        return unchanged and self.versions == _versions(self.weights)

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
        return _put_together(self.results, iter(self.recording(copied)))


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
        self._staying: dict[int, _Same] = {}

    def find(self, call: Callable[..., Any], given: Arguments, homes: Homes) -> RecordedCall | None:
        """A recording of such a call; a new one if it comes often enough.

        Raises:
            RuntimeError: it cannot be recorded.
        """
        found = self.recordings.get(given.kind)
        if found is not None:
            rewritten = found.rewritten(given.leaves) if found.holds(given.leaves) else None
            if rewritten == set():
                return found
            self._rewritten |= rewritten or set()
            del self.recordings[given.kind]
            self._times = 0
        self._count(given)
        if self._times <= EAGER_CALLS:
            return None
        if len(self.recordings) >= MOST_RECORDINGS:
            del self.recordings[next(iter(self.recordings))]
        with one_at_a_time:
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
                n: _Same(leaf) for n, leaf in enumerate(given.leaves) if self._may_stay(n, leaf)
            }
        else:
            self._times, self._staying = self._times + 1, same

    def _may_stay(self, number: int, leaf: Any) -> bool:
        if isinstance(leaf, _EQUAL) or number in self._rewritten:
            return False
        return self._denoises or not isinstance(leaf, Tensor) or not leaf.is_inference()


def _bits(t: Tensor) -> Tensor:
    """The sum of a tensor's bits, as whole numbers of its own size."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(t.element_size(), torch.int64)
    return t.contiguous().view(-1).view(kind).sum(dtype=torch.int64)


def _record(
    call: Callable[..., Any], given: Arguments, homes: Homes, staying: dict[int, _Same]
) -> RecordedCall:
    tensors = given.tensors
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
        args, kwargs = _put_together(given.shape, iter(put.values()))
        results: Leaves = []
        with constants:
            shape = _taken_apart(call(*args, **kwargs), results)
        constants.settle(results)
        return results

    try:
        recording = Recording(forward, [tensors[n] for n in copied], homes)
    except ChangedInPlace as error:
        changed = list(fixed)[error.number]
        others = {n: same for n, same in staying.items() if n != changed}
        return _record(call, given, homes, others)
    read = constants.answers, constants.kept
    bits = {
        n: _bits(t)
        for m, (n, t) in enumerate(fixed.items())
        if t.is_inference() and m in constants.used
    }
    weights = [(home, name) for home, name in homes if not home[name].is_inference()]
    return RecordedCall(recording, read, bits, staying, weights, _versions(weights), shape)


def _versions(weights: Homes) -> list[int]:
    return [home[name]._version for home, name in weights]
