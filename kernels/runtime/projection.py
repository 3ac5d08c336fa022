"""Projections, norms and sums before and after them, without autograd.

Letters: M rows, C input channels, N output channels, H heads, L pair length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from evofeed.kernels.runtime.backend import sm_count, triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.one_pass import joined_weights
from evofeed.kernels.runtime.private_apis import product_relu, scheduled_ahead, tf32_allowed
from evofeed.kernels.runtime.projection_kernels import norm_rows_kernel, scaled_kernel
from evofeed.kernels.runtime.tiles import tile

KEPT_BYTES = 1 << 26
"""Maximum size of an intermediate that is kept for the backward pass instead of recomputed."""
ROOMY_BYTES = 60 << 30
"""Memory of a card from which they are kept: about 4 GB a step at initial-training shapes."""


@cache
def card_bytes() -> int | None:
    """Memory of this process's card; None without one."""
    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def keeps(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """True if an intermediate is kept and not recomputed: at 256 residues all are."""
    card = card_bytes()
    if card is not None and card < ROOMY_BYTES:
        return False
    return math.prod(shape) * dtype.itemsize <= KEPT_BYTES


EXACT = "ieee" if torch.version.hip else "tf32x3"
"""Precision of float32 products where TF32 is not allowed: each factor is split into two TF32
numbers, for three tensor-core products. As exact as float32 (benchmarks/float32_block.py); with
"ieee" the plain units multiply, and a step took three times as long as without fused kernels."""


def precision(dtype: torch.dtype) -> str:
    """Precision of a float32 product: TF32 only where PyTorch is set to use it."""
    if dtype is not torch.float32:
        return "ieee"  # ignored for 16-bit products
    return "tf32" if tf32_allowed() else EXACT


def padded(size: int) -> int:
    """The tile size that holds an axis: a power of two, at least a product's minimum of 16."""
    tile_size: int = max(16, triton.next_power_of_2(size))
    return tile_size


def pack(tensors: list[Tensor], dtype: torch.dtype, rows: int = 0) -> Tensor:
    """The tensors joined along their first axis in `dtype`, padded with zeros to `rows`."""
    shared = joined_weights(tensors, dtype, rows)
    if shared is not None:
        return shared
    missing = rows - sum(t.shape[0] for t in tensors) if rows else 0
    if missing > 0:
        tensors = [*tensors, tensors[0].new_zeros(missing, *tensors[0].shape[1:])]
    joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return joined.to(dtype).contiguous()


def aligned(x: Tensor) -> Tensor:
    """x, contiguous and at an address aligned to 16 bytes (for 16-bit types)."""
    x = x.contiguous()
    return x if x.storage_offset() % 8 == 0 else x.clone()


def resident_programs(x: Tensor, M: int, rows: int, parts: int = 1, per_sm: int = 1) -> int:
    """Number of persistent programs that share M rows, `rows` at a time.

    The channels are split into `parts`; `per_sm` programs fit a multiprocessor.
    """
    return int(max(1, min(triton.cdiv(M, rows), per_sm * sm_count(x) // parts)))


@dataclass(frozen=True, slots=True)
class Drop:
    """A shared dropout mask `[B, rows, C]`, scaled by 1/(1-p), for a tensor `[B, I, J, C]`.

    Attributes:
        mask: the mask, or None for no dropout.
        sizes: I and J.
        columnwise: shared along J instead of I.
    """

    mask: Tensor | None
    sizes: tuple[int, int]
    columnwise: bool = False

    def strides(self) -> tuple[int, int, int]:
        """drop_1, drop_2, drop_rows of the kernels."""
        first, second = self.sizes
        return (
            first * second,
            second if self.columnwise else 1,
            first if self.columnwise else second,
        )

    def of(self, dtype: torch.dtype) -> Tensor | None:
        """The mask in `dtype`."""
        return None if self.mask is None else self.mask.to(dtype)

    def step(self, rows: int) -> int:
        """Step of the mask's row from row to row of a tile of `rows`; -1 if tiles may cross J."""
        if self.sizes[1] % rows:
            return -1
        return 0 if self.columnwise else 1


def norm_rows(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    dtype: torch.dtype,
    *,
    keep: bool = True,
    pair_weight: Tensor | None = None,
    pair_length: int = 1,
    pair_rows: int | None = None,
    transpose_pair: bool = False,
    pair_scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Normalised rows of x `[M, C]`.

    Args:
        x: contiguous rows.
        gamma, beta: of the norm.
        eps: of the norm.
        dtype: of the result.
        keep: False to return an empty tensor in place of the normalised rows.
        pair_weight: `[H, C]` or None; its product with the normalised rows is the attention bias.
        pair_length: J, where M = B * I * J.
        pair_rows: I, if not equal to J.
        transpose_pair: bias[j, i] comes from pair (i, j).
        pair_scale: factor of the attention bias.

    Returns:
        The normalised rows, mean and 1/std `[2, M]`, and the bias `[B, H, I, J]` (transposed
        `[B, H, J, I]`) or None.
    """
    M, C = x.shape
    y = torch.empty((M, C) if keep else (0, C), dtype=dtype, device=x.device)
    stats = torch.empty((2, M), dtype=torch.float32, device=x.device)
    heads, pair_bias = 1, None
    pair_rows = pair_length if pair_rows is None else pair_rows
    size = pair_rows * pair_length
    if pair_weight is not None:
        heads = pair_weight.shape[0]
        sides = (pair_length, pair_rows) if transpose_pair else (pair_rows, pair_length)
        shape = (M // size, heads, *sides)
        pair_bias = torch.empty(shape, dtype=dtype, device=x.device)
    block = tile("norm_rows", C, dtype)
    launch(
        norm_rows_kernel, (triton.cdiv(M, block.rows),),
        (x, gamma, beta, pair_weight, y, stats, pair_bias, M, C, eps, pair_length, size, heads,
         float(pair_scale)),
        {"BLOCK_M": block.rows, "BLOCK_C": padded(C), "BLOCK_H": padded(heads), "KEEP": keep,
         "PAIR": pair_weight is not None,
         "TRANSPOSE": transpose_pair and pair_weight is not None,
         "PRECISION": precision(dtype), "num_warps": block.warps, "num_stages": block.stages},
    )  # fmt: skip
    return y, stats, pair_bias


def weight_grad(dy: Tensor, a: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """dy^T a for rows `[M, N]` and `[M, C]`; cuBLAS splits M, always in the same way.

    In `dtype`, or a's type: cuBLAS sums in float32 and need not round to 16 bits.
    """
    if dtype is torch.float32 is not a.dtype and a.is_cuda:
        return torch.mm(dy.t(), a, out_dtype=dtype)
    product = torch.mm(dy.t(), a)
    return product if dtype is None else product.to(dtype)


def project(a: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """a weight^T + bias for `[M, K]` and `[N, K]` by cuBLAS, with the relu in its epilogue."""
    if bias is None:
        return scheduled_ahead(torch.mm, a, weight.t())
    bias = pack([bias], a.dtype)
    if relu:
        return product_relu(bias, a, weight.t())
    return torch.addmm(bias, a, weight.t())


def scaled(
    dout: Tensor, dtype: torch.dtype, drop: Drop | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """dout `[M, C]` times a dropout mask and a factor `[M]` of each row, in `dtype`.

    Also `[programs, C]` whose column sums are those of the result.
    """
    M, C = dout.shape
    drop = drop or Drop(None, (M, 1))
    has_drop, has_mask = drop.mask is not None, mask is not None
    keep = has_drop or has_mask or dout.dtype is not dtype
    dy = torch.empty((M, C), dtype=dtype, device=dout.device) if keep else dout
    rows, tiles_each = max(1, 4096 // padded(C)), 4
    programs = triton.cdiv(M, rows * tiles_each)
    partial = torch.empty((programs, C), dtype=torch.float32, device=dout.device)
    launch(
        scaled_kernel, (programs,),
        (dout, drop.mask, mask, dy, partial, M, C, *drop.strides(), tiles_each),
        {"BLOCK_M": rows, "BLOCK_N": padded(C), "HAS_DROP": has_drop, "HAS_MASK": has_mask,
         "KEEP": keep},
    )  # fmt: skip
    return dy, partial
