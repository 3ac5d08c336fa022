# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""What kernels of complexes start with: words of complexes, and what a column belongs to."""

import triton
import triton.language as tl

from evofeed.loader.fused.complex_words import Complex, EntityWords, MemberWords
from evofeed.loader.fused.loads import word


def of_complex(names):
    """Numbers of words of a complex, as Triton's constants."""
    return tuple(tl.constexpr(Complex._fields.index(name)) for name in names.split())


def of_entity(names):
    """Numbers of words of an entity."""
    return tuple(tl.constexpr(EntityWords._fields.index(name)) for name in names.split())


def of_member(names):
    """Numbers of words of a member."""
    return tuple(tl.constexpr(MemberWords._fields.index(name)) for name in names.split())


_NUM_RES, _ENTITY_WORDS, _ROWS, _PAIRED, _OWN_WIDTH, _ASKS_GAPS = of_complex(
    "num_res entity_words rows paired own_width asks_gaps"
)
_FIRST_ROW, _UNPAIRED = of_entity("first_row unpaired")
_ENTITIES = tl.constexpr(len(Complex._fields))


@triton.jit
def value(entity, number: tl.constexpr, live):
    """A word of each column's entity, i64."""
    return tl.load(entity + number, mask=live, other=0)


@triton.jit
def entity_of(whole, decided, column, live):
    """Where the words of each column's entity begin."""
    number = tl.load(decided + word(whole, _NUM_RES) + column, mask=live, other=1) - 1
    return whole + _ENTITIES + number * word(whole, _ENTITY_WORDS)


@triton.jit
def own_cells(whole, decided, row, column, live):
    """Where deletions of rows of the merged MSA are, `[rows, columns]`."""
    own = tl.load(decided + 3 * word(whole, _NUM_RES) + column, mask=live, other=0)
    return (row.to(tl.int64) * word(whole, _OWN_WIDTH))[:, None] + own[None, :]


@triton.jit
def is_of_chain(whole, entity, row, live):
    """Whether a row of the merged MSA is one of each column's chain's own; all of one row."""
    number = row - value(entity, _FIRST_ROW, live)
    own = (number >= 0) & (number < value(entity, _UNPAIRED, live))
    return (row < word(whole, _PAIRED)) | own | (word(whole, _ASKS_GAPS) != 0)
