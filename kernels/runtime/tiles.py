"""Tile sizes by op and shape: the fastest ones measured, stored as data.

`choices.json` holds the fastest tiles of `benchmarks/tune_kernels.py`, with the card they were
measured on. A shape that was not measured takes the entry of the nearest size, and a kernel
without an entry its tile in `UNMEASURED`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from evofeed.kernels.runtime.prepared import forget_traces


class Tile(NamedTuple):
    """Sizes of one program.

    Attributes:
        rows: of a tile.
        columns: of a weight tile.
        warps: of 32 threads.
        stages: of the pipeline.
        programs: per multiprocessor, for kernels that loop over rows.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    programs: int = 2


class AttentionTiles(NamedTuple):
    """(queries, keys, warps, stages) of each attention kernel.

    Attributes:
        forward: of the forward pass.
        dq: of dq.
        dkv: of dk and dv.
        db: of the bias gradient.
        waves: target of programs per multiprocessor of the last, which loops over rows.
    """

    forward: Tile = Tile(64, 64, 4, 2)
    dq: Tile = Tile(64, 64, 4, 3)
    dkv: Tile = Tile(64, 64, 4, 3)
    db: Tile = Tile(128, 64, 8, 2)
    waves: int = 1


class HopperTiles(NamedTuple):
    """(queries, keys, warps, stages) of each attention kernel on a Hopper card.

    Attributes:
        forward: of the forward pass; stages are ignored.
        backward: of dq, dk and dv; stages are ignored.
        bias_gradient: of the bias gradient.
        waves: target of programs per multiprocessor of the last, which loops over rows.
    """

    forward: Tile = Tile(64, 64, 4, 2)
    backward: Tile = Tile(64, 64, 4, 2)
    bias_gradient: Tile = Tile(64, 64, 4, 3)
    waves: int = 3


UNMEASURED = {
    # transpose between rows and channels first, around cuBLAS's products
    "triangle_columns": Tile(64, 64, 4, 1),
    "triangle_columns_grad": Tile(64, 32, 4, 1),
    "triangle_norm": Tile(32, 1, 4, 1),
    "triangle_norm_grad": Tile(64, 1, 8, 1),
    # averages over positions: positions of the result, positions summed a tile
    "average": Tile(128, 64, 8, 3),
    "shares_grad": Tile(128, 128, 8, 3, 4),
}
"""Tiles of kernels without an entry in `choices.json`. Its entries give a norm's rows at 128
channels and a softmax's rows at 256 keys; other widths have as many elements in all."""
_FLOAT32 = Tile(32, 32, 4, 1)  # of kernels that were not measured in float32

SMALLER = {"mlp": Tile(64, 32, 4, 1)}
"""Tiles for cards with too little shared memory for the others: Ada, MI300."""
ROOMY = 160 << 10  # bytes of shared memory, of data-centre cards since Ampere

_overrides: dict[str, Any] = {}


def small_norm(rows: int, channels: int, *, casts: bool) -> bool:
    """True if PyTorch's layer norm is faster.

    Its launches are cheaper, but its kernels take about 6 ns a row where ours take 1:
    forward and backward it takes 120 to 150 us of wall time below 2^14 rows, ours 200
    (H200, 128 and 384 channels). Where it needs `casts` of weight and bias first, it
    takes 200 too, and 22 us of the GPU's time to our 15. The answer is the same during a
    CUDA graph capture, where a kernel that the warm-up did not use could not be compiled.
    """
    if "small_norm" in _overrides:
        return rows * channels < int(_overrides["small_norm"])
    return not casts and rows < 1 << 14 and rows * channels <= 1 << 22


class LstmPadding(NamedTuple):
    """The multiples that an LSTM's widths and batch are padded to."""

    width: int
    batch: int


def lstm_padding(
    hidden: int, inputs: int, steps: int, batch: int, *, dtype: torch.dtype, device: str,
    single: bool,
) -> LstmPadding | None:  # fmt: skip
    """Padding of an LSTM for cuDNN, of one layer and direction (`single`) or more; None for none.

    Milliseconds forward / forward and backward, before -> after padding, on an H200
    (cuDNN 9, benchmarks/results/drop_ins_h200.json):

        float16  hidden 985, batch 4, 1000 steps    20.2 / 42.1 -> 2.6 / 8.3  persistent kernel
                 hidden 200, batch 32, 100 steps     1.4 /  3.6 -> 0.6 / 1.7
                 hidden 500, batch 32, 20 steps      0.3 /  1.9 -> 0.4 / 2.0  too short
                 hidden 96, batch 32, 100 steps      0.3 /  0.9 -> 0.7 / 1.9  has its own kernel
        float32  hidden 985, batch 128, 50 steps     2.3 /  6.4 -> 1.5 / 4.0  aligned products
                 hidden 985, batch 4, 1000 steps    14.5 / 39.9 -> 17.7 / 42.3
    """
    if "lstm" in _overrides:
        return LstmPadding(*_overrides["lstm"])
    if device != "cuda" or steps < 50:
        return None
    if dtype is torch.float16 and single and 128 < hidden <= 1024 and batch <= 128:
        aligned = hidden % 128 == inputs % 128 == batch % 8 == 0
        return None if aligned else LstmPadding(128, 8)
    wide = hidden >= 768 and batch >= 64
    return LstmPadding(64, 1) if wide and hidden % 8 else None


def override(op: str, choice: Any) -> None:
    """Sets the choice for an op in this process; None restores the saved one.

    Args:
        op: a name that `tile` takes (`Tile`), "attention" (`AttentionTiles`), "hopper_attention"
            (`HopperTiles`), "lstm" (`LstmPadding`), or "small_norm" (elements below which
            PyTorch's norm is called, 0 for never).
        choice: of the type in brackets.
    """
    if choice is None:
        _overrides.pop(op, None)
    else:
        _overrides[op] = choice
    forget_traces()  # traces contain the earlier choice


@cache
def _saved() -> dict[str, Any]:
    choices: dict[str, Any] = json.loads(Path(__file__).with_name("choices.json").read_text())
    return choices


@cache
def _saved_tile(op: str, C: int) -> Tile:
    entries = _saved()["tiles"].get(op)
    if not entries:
        return _FLOAT32 if op.endswith("_float32") else UNMEASURED[op]
    # A tile measured at fewer channels may not fit at more: prefer wider entries.
    wider = [entry for entry in entries if entry["C"] >= C]
    nearest = min(wider or entries, key=lambda entry: abs(entry["C"] - C))
    return Tile(*nearest["tile"])


@cache
def shared_bytes() -> int:
    """Maximum shared memory of a program in bytes; a Hopper card's where there is no GPU."""
    if not torch.cuda.is_available():
        return 227 << 10
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(getattr(card, "shared_memory_per_block_optin", card.shared_memory_per_block))


def tile(op: str, C: int, dtype: torch.dtype) -> Tile:
    """Tile of an op for C channels."""
    op = f"{op}_float32" if dtype is torch.float32 else op
    if op in SMALLER and op not in _overrides and shared_bytes() < ROOMY:
        return SMALLER[op]
    return _overrides.get(op) or _saved_tile(op, C if isinstance(C, int) else 128)


@cache
def _saved_attention(N: int, D: int, has_bias: bool) -> HopperTiles:
    width = max(16, 1 << (D - 1).bit_length())
    entries = [
        entry
        for entry in _saved()["attention"]
        if entry["has_bias"] == has_bias and max(16, entry["D"]) == width
    ]
    if not entries:
        return HopperTiles()
    longer = [entry for entry in entries if entry["N"] >= N]  # short tiles waste a long row
    nearest = min(longer or entries, key=lambda entry: abs(entry["N"] - N))
    tiles = {name: Tile(*nearest[name]) for name in ("forward", "backward", "bias_gradient")}
    return HopperTiles(**tiles, waves=nearest["waves"])


def attention_tiles(N: int, dtype: torch.dtype) -> AttentionTiles:
    """Tiles for rows of N positions, on any card."""
    if dtype is not torch.float32:
        return _overrides.get("attention") or AttentionTiles()
    if N <= 16:  # templates, for example
        small = Tile(16, 32, 4, 1)
        return AttentionTiles(small, small, small, small)
    return AttentionTiles(
        forward=tile("attention_forward", N, dtype),
        dq=tile("attention_dq", N, dtype),
        dkv=tile("attention_dkv", N, dtype),
        db=tile("attention_db", N, dtype),
    )


def hopper_tiles(N: int | torch.SymInt, D: int, has_bias: bool) -> HopperTiles:
    """Tiles for rows of N positions and heads of width D, in 16 bits on a Hopper card."""
    if not isinstance(N, int):  # a compiler's symbol: nothing is launched
        return HopperTiles()
    return _overrides.get("hopper_attention") or _saved_attention(N, D, has_bias)
