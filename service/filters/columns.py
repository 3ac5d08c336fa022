"""The columns of a snapshot's index, made ready once: for pages as JSON, and for filters.

A page of 100 rows is written by column (one call each) and joined by rows: a fifth of the time
that dicts of Python values take. A filter compares arrays of numbers, and of text the ranks of its
words, where they are.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import threading
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import orjson
import pyarrow as pa

from evofeed.service.filters.spans import Numbers, Rows, Spans, in_order, spans
from evofeed.service.work import require_thread
from evofeed.store.inner import column_kinds, is_known

ANY_CASE: Final = ("method",)
"""Columns that are compared as mmCIF files write them, or in lower case."""


class Columns:
    """What describes the chains of an index; safe to use from many threads.

    Args:
        index: of a snapshot. A column is copied when it is first asked for.
        ordered: its rows are sorted by id, none twice.

    Attributes:
        kinds: the columns that describe a chain, with their kind.
        table: they alone.
        nbytes: of memory, about, once all are ready.
    """

    def __init__(self, index: pa.Table, *, ordered: bool = False) -> None:
        self._index, self.ordered = index, ordered
        self.kinds = column_kinds(index.schema)
        self.table = index.select(list(self.kinds))
        self.nbytes = self.table.nbytes + 2 * index.num_rows * len(self.kinds)  # with buckets
        self._ready: dict[str, _Kind] = {}
        self._comparable: dict[str, Numbers | Ranks | None] = {}
        self._owned: dict[str, pa.ChunkedArray] = {}
        self._ids: _Texts | None = None
        self._lock = threading.Lock()
        self._preparing = threading.Lock()  # whoever gets it prepares; it is never let go

    def prepare(self) -> None:
        """Make ready all that filters may compare, once, in a thread of its own."""
        if self._preparing.acquire(blocking=False):
            threading.Thread(target=self._prepare, name="evofeed-columns", daemon=True).start()

    def _prepare(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):  # whoever asks next is told
            for name in self.kinds:
                ready = self.comparable(name)
                line = ready.line if isinstance(ready, Ranks) else ready
                if line is not None:
                    line.prepare()
            if self.ordered:
                self._texts()

    def json(self, names: list[str], rows: Rows) -> bytes:
        """Rows as a JSON array of objects: dates as text, no NaN, float32 in its own digits."""
        parts = [self._column(name).cells(rows) for name in names]
        if not parts or not parts[0]:
            return b"[]"
        row: list[bytes] = []
        for name in names:
            row += [b",%b:" % orjson.dumps(name), b""]
        row[0] = b"},{" + row[0][1:]
        pieces = row * len(parts[0])
        for place, part in enumerate(parts):
            pieces[2 * place + 1 :: len(row)] = part
        return b"[%b}]" % b"".join(pieces)[2:]

    def find(self, chain_id: str) -> int:
        """Row of a chain in an index that is sorted by id; -1 if it is not there."""
        return self._texts().find(chain_id.encode())

    def place(self, chain_id: str) -> tuple[int, int]:
        """Rows of an index that is sorted by id before that of a chain, and up to it."""
        return self._texts().place(chain_id.encode())

    def _texts(self) -> _Texts:
        if self._ids is None:
            require_thread()
            with self._lock:
                self._ids = self._ids or _Texts(self._own("chain_id"))
        return self._ids

    def comparable(self, name: str) -> Numbers | Ranks | None:
        """A column as arrays that filters compare; None where Arrow has to do it."""
        if name not in self._comparable:
            require_thread()
            with self._lock:
                self._comparable[name] = self._made_comparable(name)
        return self._comparable[name]

    def _made_comparable(self, name: str) -> Numbers | Ranks | None:
        column, kind = self._index[name], self.kinds[name]
        if pa.types.is_dictionary(column.type) or kind == "date":
            return Ranks.of(column, fold=name in ANY_CASE)
        if column.null_count or kind not in ("integer", "number", "boolean"):
            return None
        known = is_known(column, name, kind).to_numpy()
        return Numbers(_as_one(self._own(name)), None if known.all() else known)

    def _column(self, name: str) -> _Kind:
        found = self._ready.get(name)
        if found is None:
            require_thread()
            with self._lock:
                found = self._ready[name] = self._made_ready(name)
        return found

    def _made_ready(self, name: str) -> _Kind:
        column = self._index[name]
        if pa.types.is_dictionary(column.type) or self.kinds.get(name) == "date":
            return _Words(_encoded(self._own(name)))
        if pa.types.is_boolean(column.type) and not column.null_count:
            return _Bits(column)
        if not column.null_count and (
            pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        ):
            return _Numbers(self._own(name))
        return _Values(self._own(name))

    def _own(self, name: str) -> pa.ChunkedArray:
        """A column in memory of this process: a file that is mapped waits for its disk."""
        if name not in self._owned:
            chunks = self._index[name].chunks
            if chunks:
                chunks = [pa.concat_arrays([*chunks, chunks[0].slice(0, 0)])]
            self._owned[name] = pa.chunked_array(chunks, self._index[name].type)
        return self._owned[name]


class _Kind(Protocol):
    """A column as JSON, one text a row."""

    def cells(self, rows: Rows) -> list[bytes]: ...


class _Bits:
    def __init__(self, column: pa.ChunkedArray) -> None:
        self._values = _as_one(column)

    def cells(self, rows: Rows) -> list[bytes]:
        return [b"true" if value else b"false" for value in self._values[rows].tolist()]


class _Numbers:
    def __init__(self, column: pa.ChunkedArray) -> None:
        self._values = _as_one(column)

    def cells(self, rows: Rows) -> list[bytes]:
        values = np.ascontiguousarray(self._values[rows])
        array = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
        return array[1:-1].split(b",") if len(values) else []


class _Words:
    """A dictionary column: each word is encoded once."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        words, self._codes = _words_of(column)
        self._cells = [orjson.dumps(word) for word in [*words, None]]

    def cells(self, rows: Rows) -> list[bytes]:
        return [self._cells[code] for code in self._codes[rows].tolist()]


class _Values:
    """Ranks, booleans, and numbers some of which are not there."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def cells(self, rows: Rows) -> list[bytes]:
        if isinstance(rows, slice):
            part = self._column.slice(rows.start, rows.stop - rows.start)
        else:
            part = self._column.take(pa.array(rows))
        if pa.types.is_float32(part.type):  # in its own digits
            values: Any = [None if v is None else np.float32(v) for v in part.to_pylist()]
            return [orjson.dumps(v, option=orjson.OPT_SERIALIZE_NUMPY) for v in values]
        if not pa.types.is_string(part.type):
            return [orjson.dumps(value) for value in part.to_pylist()]
        # A line a text: none has a line feed in its JSON.
        lines = orjson.dumps(part.to_pylist(), option=orjson.OPT_INDENT_2)
        return lines[4:-2].split(b",\n  ") if len(part) else []


@dataclass(frozen=True, slots=True)
class Ranks:
    """A column of text as places in the sorted list of its words; -1 where there is none.

    Attributes:
        words: in order; in lower case where case does not matter.
        line: the place of each row's word.
        known: words from here on are known: the empty one is not.
    """

    words: list[str]
    line: Numbers
    known: int

    def numbers(self, op: str, value: Any) -> Spans:
        """The places of the words that pass a comparison; `value` is a list for `in`."""
        if op == "known":
            return spans([(self.known, math.inf)])
        places = []
        for word in value if op == "in" else [value]:
            place = bisect.bisect_left(self.words, word)
            places.append((place, place + (self.words[place : place + 1] == [word])))
        return in_order(op, places, self.known)

    @classmethod
    def of(cls, column: pa.ChunkedArray, *, fold: bool) -> Ranks | None:
        """None where dates are no text."""
        found, codes = _words_of(_encoded(column))
        if not all(isinstance(word, str) for word in found):
            return None
        texts = [word.lower() for word in found] if fold else found
        words = sorted(set(texts))
        place = {word: i for i, word in enumerate(words)}
        ranks = np.array([*(place[text] for text in texts), -1], np.int32)
        return cls(words, Numbers(ranks[codes], None), 1 if words[:1] == [""] else 0)


def _encoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def _words_of(column: pa.ChunkedArray) -> tuple[list[Any], np.ndarray]:
    """Words of a dictionary column, and for each row which it is: behind the last if none."""
    column = column.unify_dictionaries()
    words = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    codes = [chunk.indices.fill_null(len(words)).to_numpy() for chunk in column.chunks]
    return words, codes[0] if len(codes) == 1 else np.concatenate([np.zeros(0, int), *codes])


def _as_one(column: pa.ChunkedArray) -> np.ndarray:
    whole = column.chunk(0) if column.num_chunks == 1 else column
    is_bit = pa.types.is_boolean(column.type)
    values: np.ndarray = (
        whole.to_numpy(zero_copy_only=False) if is_bit and whole is not column else whole.to_numpy()
    )
    return values


class _Texts:
    """Sorted texts, compared as the bytes that they are in the index."""

    _WIDTH: Final[dict[Any, np.dtype[Any]]] = {
        pa.string(): np.dtype(np.int32),
        pa.large_string(): np.dtype(np.int64),
    }

    def __init__(self, column: pa.ChunkedArray) -> None:
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        _, ends, data = array.buffers()
        width = self._WIDTH[array.type]
        # Read through memoryviews: to take a number out of an array costs ten times as much.
        found = np.frombuffer(ends, width, len(array) + 1, width.itemsize * array.offset)
        self._ends = found.data
        self._data = memoryview(data if data is not None else b"").cast("B")

    def find(self, wanted: bytes) -> int:
        low, high = self.place(wanted)
        return low if low < high else -1

    def place(self, wanted: bytes) -> tuple[int, int]:
        """How many of the texts are smaller, and how many are not greater."""
        ends, data = self._ends, self._data
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high) // 2
            if data[ends[middle] : ends[middle + 1]].tobytes() < wanted:
                low = middle + 1
            else:
                high = middle
        there = low < len(ends) - 1 and data[ends[low] : ends[low + 1]] == wanted
        return low, low + there
