"""Recordings of repeated calls in evaluation mode: the ninth equal call in a row is recorded.

Denoising steps are repeated two hundred times, chains of any one length a few times. Arguments may
be in dictionaries and lists, like the batch of a denoising module. A tensor that was the same,
unchanged object in all those calls is read in place, and the recording is valid as long as calls
have it; others are copied. Arguments that are not tensors count as constants. Inference tensors
have no version counter: they are copied, or a step compares their bits.
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
    SameArgument,
    flatten,
    leaf_signature,
    unflatten,
)
from evofeed.kernels.graphs.constants import ChangedInPlace, Constants
from evofeed.kernels.graphs.recording import Recording, Slots

MAX_RECORDINGS = 8  # of a module
EAGER_CALLS = 8  # with equal signatures, in a row, before a recording
MAX_BYTES = 1 << 27  # of a block's arguments: with more, the GPU takes longer than its host
MAX_RESTARTS = 8  # of the count; arguments that change after that may change at any call


class RecordedCall(NamedTuple):
    """A recording, the constants that it reads, and the conditions for a replay.

    Attributes:
        structure, settings: of the arguments.
        signatures: of the arguments that may change, by index.
        stable: arguments that must be the same objects, by index.
        bits: sums of the bits of inference tensors among the stable arguments.
        weights: slots of the parameters and buffers.
        versions: of the parameters and buffers.
        results: the structure of the results.
    """

    recording: Recording
    constants: Any
    structure: Hashable
    settings: Hashable
    signatures: dict[int, Hashable]
    stable: dict[int, SameArgument]
    bits: dict[int, Tensor]
    weights: Slots
    versions: list[int]
    results: Any

    def holds(self, args: Arguments) -> bool:
        """True if a call may be replayed."""
        return (
            args.structure == self.structure
            and all(leaf_signature(args.leaves[n]) == key for n, key in self.signatures.items())
            and all(same(args.leaves[n]) for n, same in self.stable.items())
            and args.settings == self.settings
            and self.versions == _versions(self.weights)
        )

    def rewritten(self, leaves: Leaves) -> set[int]:
        """Indices of stable arguments whose bits changed; the host waits for the device."""
        if not self.bits:
            return set()
        same_bits = torch.stack([_bits(leaves[n]) == bits for n, bits in self.bits.items()])
        return {n for n, same in zip(self.bits, same_bits.tolist(), strict=True) if not same}

    def __call__(self, leaves: Leaves) -> Any:
        """The results of the module's forward for these arguments."""
        copied = [
            leaf for n, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and n not in self.stable
        ]  # fmt: skip
        return unflatten(self.results, iter(self.recording(copied)))


class Evaluation:
    """The recordings of one module in evaluation mode.

    Args:
        denoises: True if the module is a complete denoising step.
    """

    def __init__(self, denoises: bool) -> None:
        self._denoises = denoises
        self.recordings: dict[Hashable, RecordedCall] = {}
        self._rewritten = set[int]()
        self._latest: Hashable = None
        self._repeats = self._restarts = 0
        self._stable: dict[int, SameArgument] = {}

    def find(self, args: Arguments) -> RecordedCall | None:
        """A valid recording of such a call, or None."""
        for recording in [*self.recordings.values()][::-1]:  # a copy: other threads may record
            if recording.holds(args):
                rewritten = recording.rewritten(args.leaves)
                if not rewritten:
                    return recording
                self._rewritten |= rewritten
                break
        return None

    def should_record(self, args: Arguments) -> bool:
        """True if a call without a valid recording is to be recorded."""
        if self.recordings.pop(args.signature, None) is not None:  # of other tensors
            self._repeats = 0
        for kind, recording in [*self.recordings.items()]:
            if any(same.gone() for same in recording.stable.values()):  # can never be replayed
                self.recordings.pop(kind, None)
        self._count(args)
        return self._repeats > EAGER_CALLS

    def record(self, call: Callable[..., Any], args: Arguments, slots: Slots) -> RecordedCall:
        """Records such a call; drops the oldest recording over the limit.

        Raises:
            RuntimeError: it cannot be recorded.
        """
        if len(self.recordings) >= MAX_RECORDINGS:
            del self.recordings[next(iter(self.recordings))]
        recorded = self.recordings[args.signature] = _record(call, args, slots, dict(self._stable))
        return recorded

    def _count(self, args: Arguments) -> None:
        """Counts calls in a row with this signature, and finds the arguments that are stable.

        Arguments that change between the first two calls are not stable. If another one changes
        later, a new prediction has begun, and the count restarts.
        """
        if args.signature != self._latest:
            self._latest, self._restarts, self._repeats = args.signature, 0, 0
            self._rewritten = set()
        if self._repeats == 0:
            self._stable = {}
        unchanged = {n: same for n, same in self._stable.items() if same(args.leaves[n])}
        restart = self._repeats > 1 and len(unchanged) < len(self._stable)
        restart = restart and self._restarts < MAX_RESTARTS
        if restart or self._repeats == 0:
            self._repeats, self._restarts = 1, self._restarts + restart
            candidates = enumerate(args.leaves)
            self._stable = {n: SameArgument(t) for n, t in candidates if self._may_be_stable(n, t)}
        else:
            self._repeats, self._stable = self._repeats + 1, unchanged

    def _may_be_stable(self, number: int, leaf: Any) -> bool:
        if isinstance(leaf, EQUAL) or number in self._rewritten:
            return False
        return self._denoises or not isinstance(leaf, Tensor) or not leaf.is_inference()


def _bits(t: Tensor) -> Tensor:
    """The sum of a tensor's bits, read as integers of its element size."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(t.element_size(), torch.int64)
    return t.contiguous().view(-1).view(kind).sum(dtype=torch.int64)


def _record(
    call: Callable[..., Any], args: Arguments, slots: Slots, stable: dict[int, SameArgument]
) -> RecordedCall:
    tensors = args.tensors
    for n, leaf in enumerate(args.leaves):
        if not (isinstance(leaf, (Tensor, *EQUAL)) or n in stable):
            kind = type(leaf).__name__
            raise RuntimeError(f"an argument is a {kind}, not a tensor or a constant")
    if tensors.keys() <= stable.keys():
        del stable[next(iter(tensors))]  # a recording needs an input
    copied = [n for n in tensors if n not in stable]
    if {tensors[n].device for n in copied} != {args.on_device[0].device}:
        raise RuntimeError("an argument that changes is not on the GPU")
    fixed = {n: t for n, t in tensors.items() if n in stable}
    constants = Constants(list(fixed.values()), [owner[name] for owner, name in slots])
    structure: Any = None

    def forward(inputs: Sequence[Tensor]) -> Leaves:
        nonlocal structure
        leaves = dict(enumerate(args.leaves)) | dict(zip(copied, inputs, strict=True))
        positional, named = unflatten(args.structure, iter(leaves.values()))
        results: Leaves = []
        with constants:
            structure = flatten(call(*positional, **named), results)
        constants.end_run(results)
        return results

    try:
        recording = Recording(forward, [tensors[n] for n in copied], slots)
    except ChangedInPlace as error:
        del stable[list(fixed)[error.number]]
        return _record(call, args, slots, stable)
    captured = constants.host_values, constants.saved
    bits = {
        n: _bits(t)
        for m, (n, t) in enumerate(fixed.items())
        if t.is_inference() and m in constants.used
    }
    weights = [(owner, name) for owner, name in slots if not owner[name].is_inference()]
    signatures = {n: leaf_signature(leaf) for n, leaf in enumerate(args.leaves) if n not in stable}
    return RecordedCall(
        recording, captured, args.structure, args.settings, signatures, stable, bits, weights,
        _versions(weights), structure,
    )  # fmt: skip


def _versions(weights: Slots) -> list[int]:
    return [owner[name]._version for owner, name in weights]
