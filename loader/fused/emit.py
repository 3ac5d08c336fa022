# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Features of a recycle, written once into the batch, padding included.

Batch tensors are `[R, B, rows, L, ...]`. Scratch memory is described in `rows` and `clusters`.
"""

import math

import triton
import triton.language as tl

from evofeed.loader.fused.loads import recycle, recycle_offsets, sample_offsets, word
from evofeed.protein.residues import MASK

_CROP_LENGTH, _CROP_START = sample_offsets("crop_length crop_start")
_OUT_RESIDUES, _OUT_CENTRES, _OUT_EXTRA = sample_offsets("out_residues out_centres out_extra")
_SAMPLE, _BATCH, _MAX_ROWS, _PITCH = sample_offsets("sample batch max_rows pitch")
_CENTRES, _KEPT_EXTRA = recycle_offsets("centres kept_extra")
_CODES = tl.constexpr(MASK + 1)
_HAS, _VALUE, _PROFILE, _MEAN, _WIDTH = (tl.constexpr(n) for n in (23, 24, 25, 48, 49))
_TWO_OVER_PI = tl.constexpr(2 / math.pi)
_HALF_PI = tl.constexpr(math.pi / 2)
_ONE_MORE = tl.constexpr(1e-6 + 1.0)


@triton.jit
def deletion_value(count):
    """`2/pi atan(d/3)`, to a few float32 roundings; `count` is not negative.

    The argument is reduced below 0.2 by `atan t = pi/2 - atan 1/t` and twice
    `atan t = 2 atan(t / (1 + sqrt(1 + t^2)))`; there five terms of the series suffice.
    """
    t = count / 3.0
    large = t > 1.0
    s = tl.where(large, 1.0 / tl.maximum(t, 1.0), t)
    s = s / (1.0 + tl.sqrt(1.0 + s * s))
    s = s / (1.0 + tl.sqrt(1.0 + s * s))
    q = s * s
    series = 1.0 - q * (1.0 / 3 - q * (1.0 / 5 - q * (1.0 / 7 - q * (1.0 / 9))))
    angle = 4.0 * s * series
    return tl.where(large, _HALF_PI - angle, angle) * _TWO_OVER_PI


@triton.jit
def emit_extra(
    words, codes, order, extra_msa, mask, row_mask, has_deletion, value,
    rows, columns, r, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Features of extra rows, deletions still 0; one block of rows and columns of a recycle."""
    recycle_words = recycle(words, r)
    out_extra_row = rows * BLOCK + tl.arange(0, BLOCK)
    column = columns * COLUMNS + tl.arange(0, COLUMNS)
    live_row = out_extra_row < word(recycle_words, _KEPT_EXTRA)
    max_rows = word(words, _MAX_ROWS)
    row = tl.load(order + (r * 3 + 2) * max_rows + out_extra_row, mask=live_row, other=0)
    row = (r.to(tl.int64) * max_rows + word(recycle_words, _CENTRES) + row) * word(words, _PITCH)
    live = live_row[:, None] & (column < word(words, _CROP_LENGTH))[None, :]
    cell = row[:, None] + word(words, _CROP_START) + column[None, :]
    code = tl.load(codes + cell, mask=live, other=0).to(tl.int64)
    out_extra = word(words, _OUT_EXTRA)
    out_residues = word(words, _OUT_RESIDUES)
    lead = r.to(tl.int64) * word(words, _BATCH) + word(words, _SAMPLE)
    out_row = lead * out_extra + out_extra_row
    out = out_row[:, None] * out_residues + column[None, :]
    inside = (out_extra_row < out_extra)[:, None] & (column < out_residues)[None, :]
    zeros = tl.zeros([BLOCK, COLUMNS], tl.float32)
    tl.store(extra_msa + out, code, mask=inside)
    tl.store(mask + out, live.to(tl.float32), mask=inside)
    tl.store(has_deletion + out, zeros, mask=inside)
    tl.store(value + out, zeros, mask=inside)
    if columns == 0:
        tl.store(row_mask + out_row, live_row.to(tl.float32), mask=out_extra_row < out_extra)


@triton.jit
def emit_msa(
    words, codes, masked, is_masked,
    cluster_size, code_counts, cluster_deletions, centre_deletions,
    msa_feat, mask, row_mask, bert_mask, true_msa,
    COLUMNS: tl.constexpr, TILE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Features of the clustered rows. Grid: rows, blocks of columns, R."""
    r = tl.program_id(2)
    recycle_words = recycle(words, r)
    row = tl.program_id(0)
    is_row = row < word(recycle_words, _CENTRES)
    length = word(words, _CROP_LENGTH)
    out_residues = word(words, _OUT_RESIDUES)
    out_centres = word(words, _OUT_CENTRES)
    pitch = word(words, _PITCH)
    scratch = r.to(tl.int64) * out_centres + row
    line = scratch * pitch + word(words, _CROP_START)
    lead = r.to(tl.int64) * word(words, _BATCH) + word(words, _SAMPLE)
    out_row = lead * out_centres + row
    cells = scratch * out_residues
    total = tl.load(cluster_size + scratch).to(tl.float32) + _ONE_MORE
    begin = tl.program_id(1) * COLUMNS

    column = begin + tl.arange(0, COLUMNS)
    live = is_row & (column < length)
    inside = column < out_residues
    out = out_row * out_residues + column
    tl.store(mask + out, live.to(tl.float32), mask=inside)
    bert = tl.load(is_masked + line + column, mask=live, other=0).to(tl.float32)
    tl.store(bert_mask + out, bert, mask=inside)
    unmasked = (r.to(tl.int64) * word(words, _MAX_ROWS) + row) * pitch + word(words, _CROP_START)
    true = tl.load(codes + unmasked + column, mask=live, other=0)
    tl.store(true_msa + out, true.to(tl.int64), mask=inside)
    deletions = tl.load(centre_deletions + cells + column, mask=live, other=0)
    deletion_sum = tl.load(cluster_deletions + cells + column, mask=live, other=0).to(tl.float32)
    to = msa_feat + out * _WIDTH
    tl.store(to + _HAS, tl.minimum(deletions, 1).to(tl.float32), mask=inside)
    tl.store(to + _VALUE, deletion_value(deletions.to(tl.float32)), mask=inside)
    tl.store(to + _MEAN, deletion_value(deletion_sum / total), mask=inside)
    if tl.program_id(1) == 0:
        tl.store(row_mask + out_row, is_row.to(tl.float32))

    share = 1.0 / total
    code_of = tl.arange(0, CHANNELS)[None, :]
    for tile_start in range(begin, tl.minimum(begin + COLUMNS, out_residues), TILE):
        tile_column = tile_start + tl.arange(0, TILE)
        live_tile = is_row & (tile_column < length)
        code = tl.load(masked + line + tile_column, mask=live_tile, other=0).to(tl.int32)
        one_hot = (code[:, None] == code_of) & live_tile[:, None]
        store_mask = (tile_column < out_residues)[:, None] & (code_of < _CODES)
        cell = (cells + tile_column) * _CODES
        load_mask = store_mask & live_tile[:, None]
        count = tl.load(code_counts + cell[:, None] + code_of, mask=load_mask, other=0)
        profile = (count + one_hot.to(tl.int32)).to(tl.float32) * share
        channel = msa_feat + ((out_row * out_residues + tile_column) * _WIDTH)[:, None] + code_of
        tl.store(channel, one_hot.to(tl.float32), mask=store_mask)
        tl.store(channel + _PROFILE, profile, mask=store_mask)
