"""MSA rows in 5 bits a residue, and the shuffled order in which they are stored.

Row layout (MSA5): a bit stream, least significant bit first. Code `j` of a row is
bits `5j .. 5j+4`; the row is padded with zero bits to a multiple of 8 bytes.
"""

from __future__ import annotations

import numpy as np
import xxhash

from evofeed.base.shapes import Int, UInt8

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def row_nbytes(num_res: int) -> int:
    """Bytes of one packed row: `5 * num_res` bits, padded to 8 bytes."""
    return (5 * num_res + 63) // 64 * 8


_BLOCK_CELLS = 1 << 20
"""Cells that are packed at a time; a cell takes 5 bytes meanwhile."""
_WEIGHTS = np.array([1, 2, 4, 8, 16], np.uint8)


def pack_rows(codes: UInt8[np.ndarray, "R L"], order: Int[np.ndarray, " R"] | None = None) -> bytes:
    """Rows of codes 0-31 in MSA5, reordered if `order` is given."""
    rows, num_res = codes.shape
    packed = np.zeros([rows, row_nbytes(num_res)], np.uint8)
    for block_rows in _blocks(rows, num_res):
        block = codes[block_rows if order is None else order[block_rows]]
        bits = ((block[..., None] & _WEIGHTS) != 0).reshape(len(block), 5 * num_res)
        packed[block_rows, : -(-5 * num_res // 8)] = np.packbits(bits, axis=1, bitorder="little")
    return packed.tobytes()


def unpack_rows(
    packed: UInt8[np.ndarray, "R B"], num_res: int, order: Int[np.ndarray, " N"] | None = None
) -> UInt8[np.ndarray, "_ L"]:
    """Codes of packed rows: all, or those of `order` in that order.

    The numpy reference of the decoders on the device.
    """
    codes = np.empty([len(packed if order is None else order), num_res], np.uint8)
    for block_rows in _blocks(*codes.shape):
        block = packed[block_rows if order is None else order[block_rows]]
        bits = np.unpackbits(block, axis=1, count=5 * num_res, bitorder="little")
        codes[block_rows] = bits.reshape(len(block), num_res, 5) @ _WEIGHTS
    return codes


def _blocks(rows: int, num_res: int) -> list[slice]:
    step = max(_BLOCK_CELLS // max(num_res, 1), 1)
    return [slice(start, start + step) for start in range(0, rows, step)]


def unpack_rows_compiled(
    packed: UInt8[np.ndarray, "R B"], num_res: int
) -> UInt8[np.ndarray, "R {num_res}"]:
    """As `unpack_rows`, compiled."""
    from evofeed.store import msa_kernels  # numba takes half a second

    out = np.empty([len(packed), num_res], np.uint8)
    msa_kernels.unpack_rows(packed.view("<u8"), out)
    return out


def stored_order(chain_id: str, rows: int) -> Int[np.ndarray, " N"]:
    """Original row of each stored row: the query, then the rest shuffled.

    A fixed function of chain id and row number (splitmix64 keys, sorted), so that
    any prefix of the stored rows is a fair sample and the bytes never change.
    """
    seed = np.uint64(xxhash.xxh3_64_intdigest(chain_id.encode()))
    with np.errstate(over="ignore"):
        key = seed + np.arange(1, rows, dtype=np.uint64) * GOLDEN_GAMMA
        key = (key ^ (key >> np.uint64(30))) * MIX_1
        key = (key ^ (key >> np.uint64(27))) * MIX_2
        key = key ^ (key >> np.uint64(31))
    return np.concatenate([[0], 1 + np.argsort(key, kind="stable")]).astype(np.int32)


def row_starts(counts: np.ndarray) -> Int[np.ndarray, " R1"]:
    """Start of each row's run, and the end of the last: `[0, cumsum(counts)]`."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def reorder_runs(starts: np.ndarray, order: np.ndarray) -> Int[np.ndarray, " K"]:
    """Positions of all elements when the runs are taken in another order."""
    lengths = np.diff(starts)[order]
    new_starts = row_starts(lengths)
    shift = np.repeat(starts[:-1][order] - new_starts[:-1], lengths)
    return np.asarray(np.arange(new_starts[-1]) + shift)
