"""Launches of the attention kernels for Hopper cards: their inputs and tiles.

Letters as in `triton.py`: B batch, R rows, N positions, H heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.attention.hopper.backward import backward_kernel
from evofeed.kernels.ops.attention.hopper.bias_gradient import bias_gradient_kernel
from evofeed.kernels.ops.attention.hopper.forward import forward_kernel
from evofeed.kernels.ops.attention.inputs import MAX_TILE, BackwardInputs, MaskTerms, is_wide
from evofeed.kernels.ops.attention.triton import LOG2E
from evofeed.kernels.runtime.backend import on_hopper, sm_count, triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import padded
from evofeed.kernels.runtime.tiles import HopperTiles, Tile, hopper_tiles

SHARED_BYTES = 232448 - 1024  # of a program on sm_90, minus a reserve
MULTIPROCESSOR_BYTES = 233472  # of all its programs, each with 1024 for the system
SMALL = Tile(64, 64, 4, 2)
MAIN, TAIL = (128, 256, 512), 16  # positions in full tiles, and the maximum of a tail
REGISTERS = {Tile(64, 128, 4, 2): 168, Tile(64, 64, 4, 2): 96}
"""Maximum registers of a thread with a tail, so that one more program fits."""


def forward_fits(q: Tensor, k: Tensor, out: Tensor) -> bool:
    """True if the forward kernel takes these `[B, R, N, H, D]` views."""
    return _fits(q, k, out) and _forward_bytes(k.shape[2], q.shape[-1], SMALL) <= SHARED_BYTES


def backward_fits(inputs: BackwardInputs) -> bool:
    """True if the backward kernel takes these."""
    small = _backward_bytes(inputs.q.shape[2], inputs.q.shape[-1], SMALL)
    return bias_gradient_fits(inputs) and small <= SHARED_BYTES


def bias_gradient_fits(inputs: BackwardInputs) -> bool:
    """True if the bias gradient's kernel takes these: it holds tiles, so a row has any length."""
    return _fits(inputs.q, inputs.k, inputs.do, *inputs.grads)


def _fits(q: Tensor, k: Tensor, *others: Tensor) -> bool:
    """True for Hopper, 16 bits, as many queries as keys, rows aligned to 16 bytes.

    A tile's rows, at most `MAX_TILE`, span fewer than 2^31 numbers. A single position is left to
    the kernels for any card: the compiler makes an argument of 1 a constant, which has no type.
    """
    return (
        on_hopper(q, q.dtype)
        and 1 < q.shape[2] == k.shape[2]
        and q.shape[-1] % 8 == 0
        and all(
            t.storage_offset() % 8 == 0
            and all(s % 8 == 0 for s in t.stride()[:4])
            and t.stride(2) * MAX_TILE < 2**31
            for t in (q, k, *others)
        )
    )


def _forward_bytes(N: int, D: int, tile: Tile) -> int:
    width, keys = padded(D), triton.cdiv(N, tile.columns) * tile.columns
    return int(tile.rows * width * 2 + keys * (4 * width + 2))


def _backward_bytes(N: int, D: int, tile: Tile, resident: bool = False) -> int:
    """Shared memory with all keys and values (`resident`), or with two tiles of them.

    The gradient of the logits later overwrites the log-sum-exps and deltas.
    """
    width, queries = padded(D), max(2, triton.cdiv(N, tile.rows)) * tile.rows
    keys = triton.cdiv(N, tile.columns) * tile.columns
    fixed = queries * (8 * width + 32) + keys * 2
    keys_held = keys if resident else 2 * tile.columns
    return int(fixed + keys_held * width * 4 + max(2 * tile.rows * tile.columns, 8 * queries))


def _keeps_all_keys(N: int, D: int, tile: Tile) -> bool:
    """True if all keys fit without one program fewer on a multiprocessor."""
    two_tiles, resident = (_backward_bytes(N, D, tile, resident) for resident in (False, True))
    programs = [MULTIPROCESSOR_BYTES // (size + 1024) for size in (two_tiles, resident)]
    return resident <= SHARED_BYTES and programs[0] <= programs[1]  # few keys: under two tiles


def run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: MaskTerms | None,
    scale: float,
    out: Tensor,
    tiles: HopperTiles | None = None,
) -> Tensor:
    """As `attention.run_forward`."""
    B, R, N, H, D = q.shape
    main, tile = _main_of(N) if tiles is None and bias is None else 0, SMALL
    if main:
        tile = hopper_tiles(main, D, has_bias=False).forward
        main = main if _forward_bytes(main + tile.rows, D, tile) <= SHARED_BYTES else 0
    if not main:
        tile = (tiles or hopper_tiles(N, D, bias is not None)).forward
        tile = SMALL if _forward_bytes(N, D, tile) > SHARED_BYTES else tile
    lse = torch.empty((B * R, H, N), dtype=torch.float32, device=q.device)
    bias = None if bias is None else _aligned(bias)
    term, factor = mask or (None, None)
    launch(
        forward_kernel, (B * R * H,),
        (q, k, v, bias, term, factor, out, lse, *_strides(q), *_strides(out),
         *_bias_strides(bias), _stride(term), R, H, N, float(scale * LOG2E)),
        {**_sizes(tile, D), "TILES": triton.cdiv(main or N, tile.columns),
         "TAIL": TAIL if main else 0, "HAS_BIAS": bias is not None, "HAS_MASK": mask is not None,
         "PAD": not main and _pads(N, tile), "WIDE": is_wide(bias, q, out),
         "num_warps": tile.warps, "maxnreg": REGISTERS.get(tile) if main and D <= 32 else None},
    )  # fmt: skip
    return lse


def run_backward(inputs: BackwardInputs, tiles: HopperTiles | None = None) -> Tensor | None:
    """As `attention.run_backward`."""
    N, D = inputs.q.shape[2], inputs.q.shape[-1]
    if tiles is None and inputs.bias is None and (main := _main_of(N)) and D <= 32:
        tile = hopper_tiles(main, D, has_bias=False).backward
        if main > tile.rows and _tail_backward_bytes(main, D, tile) <= SHARED_BYTES:
            run_backward_of_rows(inputs, tile, main)
            return None
    tiles = tiles or hopper_tiles(N, D, inputs.bias is not None)
    run_backward_of_rows(inputs, tiles.backward)
    return None if inputs.bias is None else run_bias_gradient(inputs, tiles)


def _tail_backward_bytes(main: int, D: int, tile: Tile) -> int:
    """Shared memory for `main` positions and a tail, whose keys' logits overwrite key tiles."""
    width = padded(D)
    tail = TAIL * (8 * width + 2 * TAIL + 2 * tile.columns)
    logits = 4 * TAIL * main - 8 * tile.columns * width
    return _backward_bytes(main, D, tile) + tail + max(0, logits)


def run_backward_of_rows(inputs: BackwardInputs, tile: Tile, main: int = 0) -> None:
    """Writes dq, dk and dv; with a tail after `main` positions if that is not 0."""
    B, R, N, H, D = inputs.q.shape
    if not main and _backward_bytes(N, D, tile) > SHARED_BYTES:
        tile = SMALL
    keys_first = None if inputs.bias is None else _aligned(inputs.bias.transpose(2, 3)).contiguous()
    launch(
        backward_kernel, (B * R * H,),
        (*inputs._replace(bias=keys_first).tensors(), *inputs.grads, *_strides(inputs.q),
         *_strides(inputs.grads[0]), *_strides(inputs.do), *_bias_strides(keys_first),
         _stride(inputs.mask and inputs.mask.term), R, H, N, float(inputs.scale * LOG2E),
         float(inputs.scale)),
        # Triton 3.6 cannot compile it for a single tile of queries: a second one is empty
        {**_sizes(tile, D), "Q_TILES": max(2, triton.cdiv(main or N, tile.rows)),
         "K_TILES": triton.cdiv(main or N, tile.columns), "TAIL": TAIL if main else 0,
         "HAS_BIAS": keys_first is not None, "HAS_MASK": inputs.mask is not None,
         "RESIDENT": not main and _keeps_all_keys(N, D, tile),
         "PAD": not main and (_pads(N, tile) or tile.rows >= N),
         "WIDE": is_wide(keys_first, inputs.q, inputs.do, inputs.grads[0]),
         "num_warps": tile.warps},
    )  # fmt: skip


def run_bias_gradient(inputs: BackwardInputs, tiles: HopperTiles | None = None) -> Tensor:
    """The gradient of the bias (before its division by the scale), `[B, H, N, N]` float32."""
    B, R, N, H, D = inputs.q.shape
    assert inputs.bias is not None
    bias, tiles = _aligned(inputs.bias), tiles or hopper_tiles(N, D, True)
    tile = tiles.bias_gradient
    count = triton.cdiv(N, tile.rows) * triton.cdiv(N, tile.columns)
    target_splits = tiles.waves * sm_count(inputs.q) // (B * H * count)
    rows_each = triton.cdiv(R, max(1, min(R, target_splits)))
    if R == 1:  # Triton 3.6 cannot compile it for a single row a program
        rows_each = 2
    splits = triton.cdiv(R, rows_each)
    partial = inputs.q.new_empty((B, splits, H, N, N), dtype=torch.float32)
    launch(
        bias_gradient_kernel, (count, H, B * splits),
        (*inputs._replace(bias=bias).tensors(), partial, *_strides(inputs.q), *_strides(inputs.do),
         *_bias_strides(bias), _stride(inputs.mask and inputs.mask.term), R, H, N,
         float(inputs.scale * LOG2E), rows_each),
        {**_sizes(tile, D), "STAGES": tile.stages, "HAS_MASK": inputs.mask is not None,
         "PAD": _pads(N, tile), "WIDE": is_wide(bias, inputs.q, inputs.do),
         "num_warps": tile.warps,
         # with 8 warps or more, 128 registers a thread do not spill
         "maxnreg": 128 if tile.warps >= 8 else None},
    )  # fmt: skip
    return partial[:, 0] if splits == 1 else partial.sum(1)


def _main_of(N: int) -> int:
    """Number of positions in full tiles if a tail of up to TAIL follows them, else 0."""
    return next((main for main in MAIN if 0 < N - main <= TAIL), 0)


def _pads(N: int, tile: Tile) -> bool:
    return N % tile.rows != 0 or N % tile.columns != 0


def _sizes(tile: Tile, D: int) -> dict[str, Any]:
    """Compile-time sizes of all kernels."""
    return {"D": D, "BLOCK_D": padded(D), "BLOCK_Q": tile.rows, "BLOCK_K": tile.columns}


def _aligned(bias: Tensor) -> Tensor:
    """The bias with rows aligned to 16 bytes."""
    return bias if bias.shape[-1] % 8 == 0 else F.pad(bias, (0, -bias.shape[-1] % 8))


def _strides(t: Tensor) -> tuple[int, ...]:
    """Strides of a `[B, R, N, H, D]` view in units of 8 numbers."""
    return tuple(s // 8 for s in t.stride()[:4])


def _stride(term: Tensor | None) -> int:
    """The stride of a mask's rows in units of 8 numbers."""
    return 0 if term is None else term.stride(0) // 8


def _bias_strides(bias: Tensor | None) -> tuple[int | None, ...]:
    """Strides of `[B, H, N, N]` in units of 8 numbers; None without a bias."""
    return (None, None, None) if bias is None else tuple(s // 8 for s in bias.stride()[:3])
