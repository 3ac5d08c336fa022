# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Between rows of an MSA and matrices of one head, so that the average is a batched GEMM.

Letters: B batch, S sequences, N residues, H heads, D head width.
"""

from evofeed.kernels.runtime.backend import tl, triton

__all__ = ["heads_first_kernel"]


@triton.jit
def heads_first_kernel(
    ROWS, HEADS, S, N, H, D, row_stride,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """HEADS `[B, H, N, S, D]` from rows `[B, S, N]` of H * D numbers; BACK: the other way."""
    at = tl.program_id(0)  # (b * N + n) * H + h
    h, n, b = at % H, (at // H) % N, (at // (H * N)).to(tl.int64)
    s = (tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    inside = (s < S)[:, None] & (d < D)[None, :]
    rows = ROWS + ((b * S + s) * N + n)[:, None] * row_stride + (h * D + d)[None, :]
    heads = HEADS + (((b * H + h) * N + n) * S + s)[:, None] * D + d[None, :]
    if BACK:
        tl.store(rows, tl.load(heads, mask=inside, other=0.0), mask=inside)
    else:
        tl.store(heads, tl.load(rows, mask=inside, other=0.0), mask=inside)
