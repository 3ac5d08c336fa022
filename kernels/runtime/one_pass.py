"""Casts and mask terms shared by the operators of one pass through a model.

Under autocast an operator joins its weights and casts them to 16 bits at each use, in two or more
small kernels, and every block computes the same terms from the same masks. Inside `with pass_:`
the joined weights are kept, and refreshed together when the next pass begins; what depends only
on a mask is computed once. Values are the same, bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.overrides import handle_torch_function, has_torch_function

from evofeed.kernels.runtime.casts import Casts
from evofeed.kernels.runtime.private_apis import copy_all

Value = TypeVar("Value")


class _JoinedWeights(NamedTuple):
    """Weights, and their cast, joined along the first axis."""

    sources: list[nn.Parameter]
    joined: Tensor
    parts: list[Tensor]

    @classmethod
    def of(cls, sources: list[nn.Parameter], dtype: torch.dtype, rows: int) -> _JoinedWeights:
        sizes = [weight.shape[0] for weight in sources]
        shape = (max(rows, sum(sizes)), *sources[0].shape[1:])
        joined = torch.zeros(shape, dtype=dtype, device=sources[0].device)
        return cls(sources, joined, list(torch.split(joined[: sum(sizes)], sizes)))


class OnePass:
    """A context for each pass through a model: `with one_pass: model(batch)`.

    The weights must not change inside, nor between a forward pass and its backward pass, which
    reads the weights that the forward pass kept.

    Args:
        masks: number of dropout masks of a size drawn at once: launching one takes longer than
            drawing it. 1 where the backward pass recomputes parts of the model, which must draw
            the same masks again.
    """

    def __init__(self, masks: int = 1) -> None:
        self.masks = masks
        self._casts: dict[Any, Casts] = defaultdict(Casts)
        self._weights: dict[tuple[Any, ...], _JoinedWeights] = {}
        self._values: dict[tuple[Any, ...], tuple[tuple[Tensor, ...], Any]] = {}
        self._drawn: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)

    def __enter__(self) -> OnePass:
        global _current
        # a module may have moved to another GPU
        entries = self._weights.items()
        self._weights = {k: v for k, v in entries if v.joined.device == v.sources[0].device}
        with torch.no_grad():
            for key, group in _by_type(self._weights.values()).items():
                parts = [part for entry in group for part in entry.parts]
                sources = [weight for entry in group for weight in entry.sources]
                if key[-1].type == "cuda":
                    self._casts[key].run(parts, sources)
                    increment_version([entry.joined for entry in group])
                else:
                    copy_all(parts, sources)
        self._outer, _current = _current, self
        return self

    def __exit__(self, *failure: object) -> None:
        global _current
        _current = self._outer
        self._values.clear()
        self._drawn.clear()

    def weights(self, sources: Sequence[Tensor], dtype: torch.dtype, rows: int) -> Tensor | None:
        """The weights joined in `dtype`, or None if they are not all parameters."""
        key = (dtype, rows, *map(id, sources))
        entry = self._weights.get(key)
        if entry is None:
            parameters = [weight for weight in sources if isinstance(weight, nn.Parameter)]
            if len(parameters) < len(sources):
                return None
            with torch.inference_mode(False), torch.no_grad():  # for later passes with gradients
                entry = self._weights[key] = _JoinedWeights.of(parameters, dtype, rows)
                copy_all(entry.parts, parameters)
        return entry.joined

    def computed_once(self, key: tuple[Any, ...], tensors: tuple[Tensor, ...], compute: Any) -> Any:
        """`compute(*tensors)`, computed now or earlier in this pass."""
        key += (torch.is_inference_mode_enabled(),)
        key += tuple((t.data_ptr(), t.shape, t.stride(), t.dtype, t._version) for t in tensors)
        if key not in self._values:  # stored with its tensors, so that no address is reused
            self._values[key] = tensors, compute(*tensors)
        return self._values[key][1]

    def draw_ahead(self, key: tuple[Any, ...], draw: Callable[[int], Sequence[Tensor]]) -> Tensor:
        """The next of the masks that `draw` draws, several at once; each is returned once."""
        masks = self._drawn[key, torch.is_inference_mode_enabled()]
        if not masks:
            masks += draw(self.masks)
        return masks.pop()


_current: OnePass | None = None


def in_pass() -> bool:
    """True inside a pass."""
    return _current is not None


def draw_ahead(key: tuple[Any, ...], draw: Callable[[int], Sequence[Tensor]]) -> Tensor:
    """A mask of `draw`, which the current pass may call for many masks at once.

    Args:
        key: properties of the masks: sizes, type, rate.
        draw: returns the requested number of masks.
    """
    return draw(1)[0] if _current is None else _current.draw_ahead(key, draw)


def joined_weights(sources: Sequence[Tensor], dtype: torch.dtype, rows: int) -> Tensor | None:
    """Weights joined in `dtype`, kept by the current pass; None where it cannot."""
    if _current is None:
        return None
    if has_torch_function(sources):  # a trace, which calls this at every replay
        return handle_torch_function(joined_weights, sources, sources, dtype, rows)
    return _current.weights(sources, dtype, rows)


def computed_once(
    key: tuple[Any, ...], tensors: tuple[Tensor, ...], compute: Callable[..., Value]
) -> Value:
    """`compute(*tensors)`, computed once a pass for the same tensors.

    Args:
        key: names the value, with all it depends on besides the tensors.
        tensors: the tensors it depends on.
        compute: depends on nothing else; callers must not change the value.
    """
    if _current is None or any(t.requires_grad or t.is_inference() for t in tensors):
        return compute(*tensors)
    if has_torch_function(tensors):
        traced: Value = handle_torch_function(computed_once, tensors, key, tensors, compute)  # type: ignore[arg-type]
        return traced
    value: Value = _current.computed_once(key, tensors, compute)
    return value


@contextmanager
def unshared() -> Iterator[None]:
    """A context outside of the pass, for calls that are repeated in other passes or in none."""
    global _current
    previous, _current = _current, None
    try:
        yield
    finally:
        _current = previous


def _by_type(entries: Any) -> dict[Any, list[_JoinedWeights]]:
    """Entries by types and device: a launch copies many of the same."""
    groups: dict[Any, list[_JoinedWeights]] = {}
    for entry in entries:
        source = entry.sources[0]
        groups.setdefault((entry.joined.dtype, source.dtype, source.device), []).append(entry)
    return groups
