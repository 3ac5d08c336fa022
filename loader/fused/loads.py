# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Loads shared by all kernels: words, stored integers, random bits, packed codes."""

import triton
import triton.language as tl

from evofeed.loader import counter_rng
from evofeed.loader.fused.sample_words import RANGE, UINT8, UINT16, WORDS, Recycle

_STEP = tl.constexpr(counter_rng.STEP)
_MIX_1 = tl.constexpr(counter_rng.MIX_1)
_MIX_2 = tl.constexpr(counter_rng.MIX_2)
_RANGE = tl.constexpr(RANGE)
_UINT8 = tl.constexpr(UINT8)
_UINT16 = tl.constexpr(UINT16)


def sample_offsets(names):
    """Offsets of a sample's words by name, as Triton constants."""
    return tuple(tl.constexpr(WORDS.index(name)) for name in names.split())


def recycle_offsets(names):
    """Offsets of a recycle's words by name, as Triton constants."""
    return tuple(tl.constexpr(Recycle._fields.index(name)) for name in names.split())


_RECYCLES_AT, _RECYCLE_WORDS = sample_offsets("recycles_at recycle_words")


@triton.jit
def word(words, number: tl.constexpr):
    """A word as i32, for all words but random keys and byte offsets."""
    return tl.load(words + number).to(tl.int32)


@triton.jit
def column_start(words, number: tl.constexpr):
    """Byte offset of a column in the slot, i64: a deep alignment may be larger than 2 GiB."""
    return tl.load(words + number)


@triton.jit
def recycle(words, number):
    """Pointer to the words of a recycle."""
    return words + word(words, _RECYCLES_AT) + number * word(words, _RECYCLE_WORDS)


@triton.jit
def bits(key, index):
    """`u64` draw number `index` of a stream (splitmix64)."""
    z = key + (index.to(tl.uint64) + 1) * _STEP
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    return z ^ (z >> 31)


@triton.jit
def load_int(data, words, column: tl.constexpr, index, live):
    """Values `index` of a stored column; word `column` is its offset, the next word its kind."""
    ptr = data + column_start(words, column)
    kind = word(words, column + 1)
    if kind == _UINT8:
        value = tl.load(ptr + index, mask=live, other=0).to(tl.int32)
    elif kind == _UINT16:
        value = tl.load(ptr.to(tl.pointer_type(tl.uint16)) + index, mask=live, other=0).to(tl.int32)
    elif kind == _RANGE:
        value = tl.load(ptr.to(tl.pointer_type(tl.int32))) + index
    else:
        value = tl.load(ptr.to(tl.pointer_type(tl.int32)) + index, mask=live, other=0)
    return value


@triton.jit
def packed_code(row, column, pitch, live):
    """Code `column` of the row that begins at `row`: five bits, or a byte if `pitch` is 0."""
    offset = tl.where(pitch > 0, (column * 5) >> 3, column)
    shift = tl.where(pitch > 0, (column * 5) & 7, 0)
    low = tl.load(row + offset, mask=live, other=0).to(tl.int32)
    high = tl.load(row + offset + 1, mask=live & (offset + 1 < pitch), other=0).to(tl.int32)
    code = (low | (high << 8)) >> shift
    return tl.where(pitch > 0, code & 31, low)
