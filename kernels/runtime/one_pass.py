"""What the operators of one pass through a model share.

Under autocast an operator joins its weights and casts them to 16 bits where it uses them, two
small kernels or more each time; and every block makes the same terms of the same masks. Inside
`with pass_:` the joined weights are kept and all refreshed together when the next pass begins,
and what depends on a mask alone is made once. Values are the same, bit for bit.
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

Made = TypeVar("Made")


class _Kept(NamedTuple):
    """Weights, and the tensor that holds them one below the other in another type."""

    sources: list[nn.Parameter]
    joined: Tensor
    parts: list[Tensor]

    @classmethod
    def of(cls, sources: list[nn.Parameter], dtype: torch.dtype, rows: int) -> _Kept:
        sizes = [weight.shape[0] for weight in sources]
        shape = (max(rows, sum(sizes)), *sources[0].shape[1:])
        joined = torch.zeros(shape, dtype=dtype, device=sources[0].device)
        return cls(sources, joined, list(torch.split(joined[: sum(sizes)], sizes)))


class OnePass:
    """A pass through a model, again and again: `with one_pass: model(batch)`.

    The weights must not change inside, nor between a forward pass and its backward, which reads
    what the forward pass kept.

    Args:
        masks: how many dropout masks of a size are drawn at once: a mask alone takes the card
            longer to begin than to draw. 1 where the backward pass runs parts of the model again,
            which must draw what they drew.
    """

    def __init__(self, masks: int = 1) -> None:
        self.masks = masks
        self._casts: dict[Any, Casts] = defaultdict(Casts)
        self._kept: dict[tuple[Any, ...], _Kept] = {}
        self._found: dict[tuple[Any, ...], tuple[tuple[Tensor, ...], Any]] = {}
        self._drawn: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)

    def __enter__(self) -> OnePass:
        global _current
        # a module may have moved to another GPU
        self._kept = {k: v for k, v in self._kept.items() if v.joined.device == v.sources[0].device}
        with torch.no_grad():
            for key, group in _alike(self._kept.values()).items():
                parts = [part for kept in group for part in kept.parts]
                sources = [weight for kept in group for weight in kept.sources]
                if key[-1].type == "cuda":
                    self._casts[key].run(parts, sources)
                    increment_version([kept.joined for kept in group])
                else:
                    copy_all(parts, sources)
        self._outer, _current = _current, self
        return self

    def __exit__(self, *failure: object) -> None:
        global _current
        _current = self._outer
        self._found.clear()
        self._drawn.clear()

    def weights(self, sources: Sequence[Tensor], dtype: torch.dtype, rows: int) -> Tensor | None:
        """The parameters joined in `dtype`, or None if they are not all parameters."""
        key = (dtype, rows, *map(id, sources))
        found = self._kept.get(key)
        if found is None:
            own = [weight for weight in sources if isinstance(weight, nn.Parameter)]
            if len(own) < len(sources):
                return None
            with torch.inference_mode(False), torch.no_grad():  # a later pass may need gradients
                found = self._kept[key] = _Kept.of(own, dtype, rows)
                copy_all(found.parts, own)
        return found.joined

    def made(self, key: tuple[Any, ...], given: tuple[Tensor, ...], make: Any) -> Any:
        """What `make` makes of these tensors, made now or earlier in this pass."""
        key += (torch.is_inference_mode_enabled(),)
        key += tuple((t.data_ptr(), t.shape, t.stride(), t.dtype, t._version) for t in given)
        if key not in self._found:  # the tensors are held: no other is at their address
            self._found[key] = given, make(*given)
        return self._found[key][1]

    def draw_ahead(self, key: tuple[Any, ...], draw: Callable[[int], Sequence[Tensor]]) -> Tensor:
        """The next of what `draw` draws, so many at once; each is handed out once."""
        left = self._drawn[key, torch.is_inference_mode_enabled()]
        if not left:
            left += draw(self.masks)
        return left.pop()


_current: OnePass | None = None


def under_way() -> bool:
    """Whether a pass is under way, which hands out what it keeps."""
    return _current is not None


def draw_ahead(key: tuple[Any, ...], draw: Callable[[int], Sequence[Tensor]]) -> Tensor:
    """One of the masks that `draw` draws, of which the pass under way may have many drawn at once.

    Args:
        key: what they are: sizes, type, rate.
        draw: draws a number of them.
    """
    return draw(1)[0] if _current is None else _current.draw_ahead(key, draw)


def kept(sources: Sequence[Tensor], dtype: torch.dtype, rows: int) -> Tensor | None:
    """Weights joined in `dtype` that the pass under way keeps; None where it cannot."""
    if _current is None:
        return None
    if has_torch_function(sources):  # a trace, which asks again whenever it is repeated
        return handle_torch_function(kept, sources, sources, dtype, rows)
    return _current.weights(sources, dtype, rows)


def once(key: tuple[Any, ...], given: tuple[Tensor, ...], make: Callable[..., Made]) -> Made:
    """`make(*given)`, only once a pass for the same tensors.

    Args:
        key: what is made, and what else than the tensors it depends on.
        given: the tensors that it depends on.
        make: makes it of nothing else; nobody may change it.
    """
    if _current is None or any(t.requires_grad or t.is_inference() for t in given):
        return make(*given)
    if has_torch_function(given):
        traced: Made = handle_torch_function(once, given, key, given, make)  # type: ignore[arg-type]
        return traced
    found: Made = _current.made(key, given, make)
    return found


@contextmanager
def apart() -> Iterator[None]:
    """What happens inside shares nothing: it will be repeated in other passes, or in none."""
    global _current
    before, _current = _current, None
    try:
        yield
    finally:
        _current = before


def _alike(all_kept: Any) -> dict[Any, list[_Kept]]:
    """Grouped by types and devices: a launch copies many of one kind."""
    groups: dict[Any, list[_Kept]] = {}
    for each in all_kept:
        source = each.sources[0]
        groups.setdefault((each.joined.dtype, source.dtype, source.device), []).append(each)
    return groups
