"""Launches of the attention kernels for Hopper cards: which inputs they take, and with what tiles.

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
from evofeed.kernels.ops.attention.inputs import MOST_ROWS, BackwardInputs, MaskTerms, is_wide
from evofeed.kernels.ops.attention.triton import LOG2E
from evofeed.kernels.runtime.backend import on_hopper, sm_count, triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import padded
from evofeed.kernels.runtime.tiles import HopperTiles, Tile, hopper_tiles

SHARED_BYTES = 232448 - 1024  # of a program on sm_90, with some to spare
MULTIPROCESSOR_BYTES = 233472  # of its programs together, each with 1024 for the system
SMALL = Tile(64, 64, 4, 2)
MAIN, LATE = (128, 256, 512), 16  # positions, and how many more at most, with kernels of their own
ONE_MORE = {
    Tile(64, 128, 4, 2): 168,
    Tile(64, 64, 4, 2): 96,
}  # registers, so that a program more fits


def forward_fits(q: Tensor, k: Tensor, out: Tensor) -> bool:
    """Whether the forward pass takes these `[B, R, N, H, D]` views."""
    return _fits(q, k, out) and _forward_bytes(k.shape[2], q.shape[-1], SMALL) <= SHARED_BYTES


def backward_fits(inputs: BackwardInputs) -> bool:
    """Whether the backward pass takes these."""
    small = _backward_bytes(inputs.q.shape[2], inputs.q.shape[-1], SMALL)
    return bias_gradient_fits(inputs) and small <= SHARED_BYTES


def bias_gradient_fits(inputs: BackwardInputs) -> bool:
    """Whether the bias gradient's kernel takes these: it holds tiles, whatever a row's length."""
    return _fits(inputs.q, inputs.k, inputs.do, *inputs.grads)


def _fits(q: Tensor, k: Tensor, *others: Tensor) -> bool:
    """Hopper, 16 bits, as many queries as keys, rows that start at multiples of 16 bytes.

    A tile's rows, at most `MOST_ROWS`, span fewer than 2^31 numbers. A single position is left to
    the kernels for any card: to the compiler an argument of 1 is a constant, which has no type.
    """
    return (
        on_hopper(q, q.dtype)
        and 1 < q.shape[2] == k.shape[2]
        and q.shape[-1] % 8 == 0
        and all(
            t.storage_offset() % 8 == 0
            and all(s % 8 == 0 for s in t.stride()[:4])
            and t.stride(2) * MOST_ROWS < 2**31
            for t in (q, k, *others)
        )
    )


def _forward_bytes(N: int, D: int, tile: Tile) -> int:
    width, keys = padded(D), triton.cdiv(N, tile.columns) * tile.columns
    return int(tile.rows * width * 2 + keys * (4 * width + 2))


def _backward_bytes(N: int, D: int, tile: Tile, resident: bool = False) -> int:
    """With all keys and values in shared memory (`resident`), or two tiles of them.

    The log-sum-exps and deltas are where the gradient of the logits comes later.
    """
    width, queries = padded(D), max(2, triton.cdiv(N, tile.rows)) * tile.rows
    keys = triton.cdiv(N, tile.columns) * tile.columns
    own = queries * (8 * width + 32) + keys * 2
    held = keys if resident else 2 * tile.columns
    return int(own + held * width * 4 + max(2 * tile.rows * tile.columns, 8 * queries))


def _keeps_all_keys(N: int, D: int, tile: Tile) -> bool:
    """Whether they all fit without costing a multiprocessor a program."""
    least, most = (_backward_bytes(N, D, tile, resident) for resident in (False, True))
    programs = [MULTIPROCESSOR_BYTES // (size + 1024) for size in (least, most)]
    return most <= SHARED_BYTES and programs[0] <= programs[1]  # few keys take less than two tiles


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
    bias = None if bias is None else _even(bias)
    term, factor = mask or (None, None)
    launch(
        forward_kernel, (B * R * H,),
        (q, k, v, bias, term, factor, out, lse, *_eighths(q), *_eighths(out),
         *_bias_strides(bias), _eighth(term), R, H, N, float(scale * LOG2E)),
        {**_sizes(tile, D), "TILES": triton.cdiv(main or N, tile.columns),
         "LATE": LATE if main else 0, "HAS_BIAS": bias is not None, "HAS_MASK": mask is not None,
         "PAD": not main and _pads(N, tile), "WIDE": is_wide(bias, q, out),
         "num_warps": tile.warps, "maxnreg": ONE_MORE.get(tile) if main and D <= 32 else None},
    )  # fmt: skip
    return lse


def run_backward(inputs: BackwardInputs, tiles: HopperTiles | None = None) -> Tensor | None:
    """As `attention.run_backward`."""
    N, D = inputs.q.shape[2], inputs.q.shape[-1]
    if tiles is None and inputs.bias is None and (main := _main_of(N)) and D <= 32:
        tile = hopper_tiles(main, D, has_bias=False).backward
        if main > tile.rows and _late_backward_bytes(main, D, tile) <= SHARED_BYTES:
            run_backward_of_rows(inputs, tile, main)
            return None
    tiles = tiles or hopper_tiles(N, D, inputs.bias is not None)
    run_backward_of_rows(inputs, tiles.backward)
    return None if inputs.bias is None else run_bias_gradient(inputs, tiles)


def _late_backward_bytes(main: int, D: int, tile: Tile) -> int:
    """Of `main` positions and up to LATE more, whose keys' logits are where key tiles were."""
    width = padded(D)
    late = LATE * (8 * width + 2 * LATE + 2 * tile.columns)
    logits = 4 * LATE * main - 8 * tile.columns * width
    return _backward_bytes(main, D, tile) + late + max(0, logits)


def run_backward_of_rows(inputs: BackwardInputs, tile: Tile, main: int = 0) -> None:
    """Writes dq, dk and dv; of `main` positions in whole tiles and late ones if that is not 0."""
    B, R, N, H, D = inputs.q.shape
    if not main and _backward_bytes(N, D, tile) > SHARED_BYTES:
        tile = SMALL
    keys_first = None if inputs.bias is None else _even(inputs.bias.transpose(2, 3)).contiguous()
    launch(
        backward_kernel, (B * R * H,),
        (*inputs._replace(bias=keys_first).tensors(), *inputs.grads, *_eighths(inputs.q),
         *_eighths(inputs.grads[0]), *_eighths(inputs.do), *_bias_strides(keys_first),
         _eighth(inputs.mask and inputs.mask.term), R, H, N, float(inputs.scale * LOG2E),
         float(inputs.scale)),
        # Triton 3.6 cannot compile it for a single tile each way: a second one is empty
        {**_sizes(tile, D), "Q_TILES": max(2, triton.cdiv(main or N, tile.rows)),
         "K_TILES": triton.cdiv(main or N, tile.columns), "LATE": LATE if main else 0,
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
    bias, tiles = _even(inputs.bias), tiles or hopper_tiles(N, D, True)
    tile = tiles.bias_gradient
    count = triton.cdiv(N, tile.rows) * triton.cdiv(N, tile.columns)
    wanted = tiles.waves * sm_count(inputs.q) // (B * H * count)
    rows_each = triton.cdiv(R, max(1, min(R, wanted)))
    if R == 1:  # Triton 3.6 cannot compile it for one row at a time of one
        rows_each = 2
    splits = triton.cdiv(R, rows_each)
    partial = inputs.q.new_empty((B, splits, H, N, N), dtype=torch.float32)
    launch(
        bias_gradient_kernel, (count, H, B * splits),
        (*inputs._replace(bias=bias).tensors(), partial, *_eighths(inputs.q), *_eighths(inputs.do),
         *_bias_strides(bias), _eighth(inputs.mask and inputs.mask.term), R, H, N,
         float(inputs.scale * LOG2E), rows_each),
        {**_sizes(tile, D), "STAGES": tile.stages, "HAS_MASK": inputs.mask is not None,
         "PAD": _pads(N, tile), "WIDE": is_wide(bias, inputs.q, inputs.do),
         "num_warps": tile.warps,
         # at 8 warps and more, 128 registers a thread fit without spilling
         "maxnreg": 128 if tile.warps >= 8 else None},
    )  # fmt: skip
    return partial[:, 0] if splits == 1 else partial.sum(1)


def _main_of(N: int) -> int:
    """How many positions are in whole tiles, where up to LATE more follow them; else 0."""
    return next((main for main in MAIN if 0 < N - main <= LATE), 0)


def _pads(N: int, tile: Tile) -> bool:
    return N % tile.rows != 0 or N % tile.columns != 0


def _sizes(tile: Tile, D: int) -> dict[str, Any]:
    """Sizes of tiles that every kernel is compiled for."""
    return {"D": D, "BLOCK_D": padded(D), "BLOCK_Q": tile.rows, "BLOCK_K": tile.columns}


def _even(bias: Tensor) -> Tensor:
    """The bias with rows that start at multiples of 16 bytes."""
    return bias if bias.shape[-1] % 8 == 0 else F.pad(bias, (0, -bias.shape[-1] % 8))


def _eighths(t: Tensor) -> tuple[int, ...]:
    """Strides of a `[B, R, N, H, D]` view as the kernels take them."""
    return tuple(s // 8 for s in t.stride()[:4])


def _eighth(term: Tensor | None) -> int:
    """The stride of a mask's rows, likewise."""
    return 0 if term is None else term.stride(0) // 8


def _bias_strides(bias: Tensor | None) -> tuple[int | None, ...]:
    """Strides of `[B, H, N, N]`, likewise; none without a bias."""
    return (None, None, None) if bias is None else tuple(s // 8 for s in bias.stride()[:3])
