"""Sets of numbers, as where they begin and end, and which rows of a column have one of them.

Whatever a filter asks of one column, in however many terms, is one such set, so a column is looked
at once. A set is `f64`, ascending and distinct: a number is in it if an odd count of them is not
greater. An infinite first one says that it has no beginning. Integers below 2**53 and float32 are
exact.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from evofeed.service.work import require_thread

Spans = np.ndarray
Rows = slice | np.ndarray
"""Rows of an index: a span of it, or row numbers."""
Mask = Callable[[Rows], np.ndarray]
"""Which of some rows pass, in an array that is the caller's."""

NOTHING: Final[Spans] = np.zeros(0)
EVERYTHING: Final[Spans] = np.array([-np.inf])
_BUCKETS: Final = 1 << 16
_CELL_BITS: Final = 20
_STEPS: Final = np.array([1, -1] * 32, np.int8)
_INSIDE: Final = 2  # a bucket in which a set begins or ends


def spans(pairs: Iterable[tuple[float, float]]) -> Spans:
    """The numbers from each first to before its second; a pair may be empty."""
    return at_least(1, [_span(begin, end) for begin, end in pairs])


def _span(begin: float, end: float) -> Spans:
    return np.array([begin, end], np.float64) if begin < end else NOTHING


def inverted(one: Spans) -> Spans:
    """All other numbers."""
    return one[1:] if len(one) and one[0] == -np.inf else np.concatenate([EVERYTHING, one])


def at_least(count: int, sets: Sequence[Spans]) -> Spans:
    """The numbers in at least so many of the sets."""
    if len(sets) == 1 and count == 1:
        return sets[0]
    ends = np.concatenate([NOTHING, *sets])
    if not len(ends):
        return NOTHING
    steps = np.concatenate(
        [
            _STEPS[: len(one)] if len(one) <= len(_STEPS) else np.resize(_STEPS, len(one))
            for one in sets
        ]
    )
    order = np.argsort(ends, kind="stable")
    ends, inside = ends[order], np.cumsum(steps[order]) >= count
    last = np.ones(len(ends), bool)  # of those that are the same number
    np.not_equal(ends[1:], ends[:-1], out=last[:-1])
    ends, inside = ends[last], inside[last]
    turns = inside.copy()
    np.not_equal(inside[1:], inside[:-1], out=turns[1:])
    found: Spans = ends[turns]
    return found


def in_order(op: str, places: Sequence[tuple[int, int]], known: int) -> Spans:
    """Places of sorted texts that compare so with some.

    Args:
        op: comparison; `==` and `in` are the same here.
        places: where each of them begins, and where what is greater does.
        known: texts from this place on are known.
    """
    among = [(max(begin, known), max(end, known)) for begin, end in places]
    return spans(among) if op in ("==", "in") else compared(op, *among[0], known)


def compared(op: str, low: float, high: float, first: float = -np.inf) -> Spans:
    """Numbers from `first` on that compare so with what is from `low` to before `high`."""
    if op == "==":
        return _span(low, high)
    if op in ("<", "<="):
        return _span(first, low if op == "<" else high)
    if op in (">", ">="):
        return np.array([high if op == ">" else low], np.float64)
    if low == high:
        return np.array([first], np.float64)
    return np.array([first, low, high] if first < low else [high], np.float64)


def within(one: Spans, rows: Rows) -> np.ndarray:
    """Which of some row numbers are in a set."""
    if not isinstance(rows, slice):
        return (np.searchsorted(one, rows, "right") & 1).astype(bool)
    found = np.zeros(rows.stop - rows.start, bool)
    ends = np.clip(np.append(one, np.inf), rows.start, rows.stop).astype(np.int64) - rows.start
    for begin, end in zip(ends[0::2].tolist(), ends[1::2].tolist(), strict=False):
        found[begin:end] = True
    return found


class Numbers:
    """A column of numbers or booleans, made ready to be compared; safe to use from many threads.

    Args:
        values: of the rows.
        known: which of them are known; None: all.
    """

    def __init__(self, values: np.ndarray, known: np.ndarray | None) -> None:
        self.values, self.known = values, known
        self._line = values.view(np.uint8) if values.dtype == bool else values
        self._whole = self._line.dtype.kind in "iu"
        seen = self._line if known is None else self._line[known]
        self._least = seen.min().item() if len(seen) else 0
        self._most = seen.max().item() if len(seen) else 0
        self._buckets: _Buckets | None = None

    def passing(self, one: Spans, others: bool) -> Mask | bool:
        """Rows whose number is in a set, or whose number is not known if `others`.

        A boolean where it is the same for all.
        """
        ends = one.tolist()  # few, as a rule
        inside = bool(bisect.bisect_right(ends, self._least) & 1)
        ends = ends[bisect.bisect_right(ends, self._least) : bisect.bisect_right(ends, self._most)]
        known = self.known
        if not ends:
            if known is None or inside == others:
                return inside
            return (lambda rows: known[rows].copy()) if inside else lambda rows: ~known[rows]
        found = self._inside(inside, ends)
        if known is None:
            return found
        if others:
            return lambda rows: np.logical_or(found(rows), ~known[rows])
        return lambda rows: np.logical_and(found(rows), known[rows])

    def _inside(self, inside: bool, ends: list[float]) -> Mask:
        """For a set that begins or ends at `ends` only, and has what is less if `inside`."""
        values = self._line
        if len(ends) > 2:
            return self._bucketed().passing(inside, np.array(ends))
        limits = [int(end) if self._whole else values.dtype.type(end) for end in ends]
        first, last = limits[0], limits[-1]
        if len(limits) == 1:
            compare: Any = np.less if inside else np.greater_equal
            return lambda rows: compare(values[rows], first)
        if self._whole and last == first + 1:
            compare = np.not_equal if inside else np.equal
            return lambda rows: compare(values[rows], first)
        if inside:
            return lambda rows: (values[rows] < first) | (values[rows] >= last)
        return lambda rows: (values[rows] >= first) & (values[rows] < last)

    def prepare(self) -> None:
        """Make ready at once what a larger set needs."""
        if self._line is self.values and len(self.values):  # booleans need nothing
            self._bucketed()

    def _bucketed(self) -> _Buckets:
        if self._buckets is None:  # two threads may make them: they are the same
            require_thread()
            self._buckets = _Buckets(self._line, self._least, self._most)
        return self._buckets


class _Buckets:
    """A column's values in up to 65,536 buckets in their order: a set is a table of these.

    Values are laid on a grid of a million cells, and neighbouring cells put together until a bucket
    has its share of the rows. In buckets that a set begins or ends in, rows are looked at singly.

    Args:
        values: of the rows.
        least: of those that are known.
        most: of those that are known.
    """

    def __init__(self, values: np.ndarray, least: float, most: float) -> None:
        self._values, self._first = values, values.dtype.type(least)
        self._is_exact = values.dtype != np.float64
        known = np.fmin(np.fmax(values, self._first), values.dtype.type(most))
        places = self._places(known)
        span = int(places.max())
        self._shift, self._bucket = 0, np.arange(min(span + 1, _BUCKETS))
        if span < _BUCKETS:
            self._codes = places.astype(np.uint16)
            return
        self._shift = max(0, span.bit_length() - _CELL_BITS)
        cells = places >> self._shift
        rows = np.bincount(cells)
        share = -(-len(values) // (_BUCKETS - 1))
        self._bucket = ((np.cumsum(rows) - rows) // share).astype(np.uint16)
        self._codes = self._bucket[cells]

    def _places(self, values: np.ndarray) -> np.ndarray:
        """How far values are from the least one, `i64`, in their order; of float64 about."""
        places: np.ndarray
        if values.dtype.kind == "u":
            places = (values - self._first).astype(np.int64)
            return places
        if values.dtype.kind == "i":
            places = values.astype(np.int64) - int(self._first)
            return places
        both = np.append(values, self._first) + 0.0  # no zero is below another
        bits = both.view(np.dtype(f"i{values.itemsize}"))
        places = np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits).astype(np.int64)
        places >>= 0 if self._is_exact else 2  # a difference of float64 needs 65 bits
        places = places[:-1] - places[-1]
        return places

    def passing(self, inside: bool, ends: Spans) -> Mask:
        """As `Numbers._inside`."""
        places = self._places(ends.astype(self._values.dtype))
        buckets = self._bucket[places >> self._shift].astype(np.int64)
        first = np.searchsorted(self._bucket, buckets) << self._shift
        exact = (first == places) & self._is_exact
        turns = np.bincount(np.where(exact, buckets, buckets + 1), minlength=_BUCKETS + 1)
        table = ((np.cumsum(turns) + inside) & 1).astype(np.uint8)
        table[buckets[~exact]] = _INSIDE
        codes, values, all_exact = self._codes, self._values, bool(exact.all())

        def mask(rows: Rows) -> np.ndarray:
            found = table.take(codes[rows], mode="clip")
            if not all_exact:
                unsure = np.flatnonzero(found == _INSIDE)
                count = np.searchsorted(ends, values[rows][unsure], "right")
                found[unsure] = (count + inside) & 1
            passing: np.ndarray = found.view(bool)
            return passing

        return mask
