# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Projection of the outer product in the layout that the GEMM wrote.

The outer product is one GEMM whose result is `[(i, c), (j, e)]`; PyTorch then
permutes 134 MB (256 residues) to `[(i, j), (c, e)]` for the projection. Here the
projection reads the E contiguous e of each c, so nothing is permuted.

Letters: M = B * S * R, R residues (i, j), E channels of a projection (c, e; 16 or 32), N
output channels.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def masked_halves_kernel(
    SOURCE, MASK, TO, PARTIAL, M, ss_h, ss_m, ts_h, ts_m,
    E: tl.constexpr, BLOCK_M: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """TO[half, m] = MASK[m] * SOURCE[half, m] for rows of E numbers, any strides of both.

    With SUMS also PARTIAL `[programs, 2E]`: each program's sums over m.
    """
    half = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    e = tl.arange(0, E)
    row_in = rows < M
    inside = row_in[:, None] & (e < E)[None, :]
    rows64 = rows.to(tl.int64)[:, None]
    x = tl.load(SOURCE + half.to(tl.int64) * ss_h + rows64 * ss_m + e[None, :],
                mask=inside, other=0.0)  # fmt: skip
    mask = tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)
    y = x.to(tl.float32) * mask[:, None]
    to = TO + half.to(tl.int64) * ts_h + rows64 * ts_m + e[None, :]
    tl.store(to, y.to(TO.dtype.element_ty), mask=inside)
    if SUMS:
        tl.store(PARTIAL + (tl.program_id(0).to(tl.int64) * 2 + half) * E + e, tl.sum(y, 0))


@triton.jit
def outer_project_kernel(
    OUTER, W, BIAS, NORM, RES, OUT, R, N,
    E: tl.constexpr, BLOCK_CE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_RES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT[b, i, j] = RES + (OUTER[b, i, :, j, :] W + bias) / NORM[b, i, j]; W is `[E * E, N]`.

    Programs `(tiles of R, I, B)`: i may be some of the R residues.
    """
    j = tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)
    i, b, rows = tl.program_id(1), tl.program_id(2).to(tl.int64), tl.num_programs(1)
    ce, n = tl.arange(0, BLOCK_CE), tl.arange(0, BLOCK_N)
    j_in, n_in = j < R, n < N
    width = R * E
    acc = tl.zeros([BLOCK_J, BLOCK_N], tl.float32)
    for c in range(0, E, BLOCK_CE // E):
        start = ((b * rows + i) * E + c) * width
        offsets = (ce // E * width + ce % E)[None, :] + j[:, None] * E
        a = tl.load(OUTER + start + offsets, mask=j_in[:, None], other=0.0)
        w = tl.load(W + (c * E + ce)[:, None] * N + n[None, :], mask=n_in[None, :], other=0.0)
        acc = tl.dot(a, w, acc, input_precision=PRECISION)
    acc += tl.load(BIAS + n, mask=n_in, other=0.0).to(tl.float32)[None, :]
    pair = (b * rows + i) * R + j
    acc /= tl.load(NORM + pair, mask=j_in, other=1.0)[:, None]
    inside = j_in[:, None] & n_in[None, :]
    offsets = pair[:, None] * N + n[None, :]
    if HAS_RES:
        acc += tl.load(RES + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(OUT + offsets, acc.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def outer_dproject_kernel(
    DOUT, W, NORM, DSCALED, DOUTER, PARTIAL, R, N,
    E: tl.constexpr, BLOCK_CE: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """DSCALED = DOUT / NORM and DOUTER[b, i, :, j, :] = DSCALED[b, i, j] W^T.

    PARTIAL `[programs, N]`: each program's sums of DSCALED.
    """
    j = tl.program_id(0) * BLOCK_J + tl.arange(0, BLOCK_J)
    i, b, rows = tl.program_id(1), tl.program_id(2).to(tl.int64), tl.num_programs(1)
    ce, n = tl.arange(0, BLOCK_CE), tl.arange(0, BLOCK_N)
    j_in, n_in = j < R, n < N
    inside = j_in[:, None] & n_in[None, :]
    pair = (b * rows + i) * R + j
    offsets = pair[:, None] * N + n[None, :]
    dout = tl.load(DOUT + offsets, mask=inside, other=0.0).to(tl.float32)
    dout /= tl.load(NORM + pair, mask=j_in, other=1.0)[:, None]
    scaled = dout.to(DSCALED.dtype.element_ty)
    tl.store(DSCALED + offsets, scaled, mask=inside)
    program = (b * rows + i) * tl.num_programs(0) + tl.program_id(0)
    tl.store(PARTIAL + program * N + n, tl.sum(dout, 0), mask=n_in)
    width = R * E
    for c in range(0, E, BLOCK_CE // E):
        w = tl.load(W + (c * E + ce)[:, None] * N + n[None, :], mask=n_in[None, :], other=0.0)
        d = tl.dot(scaled, tl.trans(w), input_precision=PRECISION)
        start = ((b * rows + i) * E + c) * width
        to = (ce // E * width + ce % E)[None, :] + j[:, None] * E
        tl.store(DOUTER + start + to, d.to(DOUTER.dtype.element_ty), mask=j_in[:, None])


@triton.jit
def outer_dw_kernel(
    OUTER, DSCALED, PARTIAL, ROWS, R, N, i_each,
    E: tl.constexpr, ROWS_C: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Over `i_each` of the ROWS rows (b, i): dW `[E * E, N]` for ROWS_C values of c."""
    ce = tl.arange(0, ROWS_C * E)
    n = tl.arange(0, BLOCK_N)
    n_in = n < N
    c0, split = tl.program_id(0) * ROWS_C, tl.program_id(1)
    width = R * E
    acc = tl.zeros([ROWS_C * E, BLOCK_N], tl.float32)
    for bi in range(split * i_each, tl.minimum((split + 1) * i_each, ROWS)):
        bi64 = (split * 0 + bi).to(tl.int64)
        for first in range(0, R, BLOCK_J):
            j = first + tl.arange(0, BLOCK_J)
            j_in = j < R
            offsets = (
                (bi64 * E + c0 + ce // E)[None, :] * width + j[:, None] * E + (ce % E)[None, :]
            )
            a = tl.load(OUTER + offsets, mask=j_in[:, None], other=0.0)
            d = tl.load(DSCALED + (bi64 * R + j)[:, None] * N + n[None, :],
                        mask=j_in[:, None] & n_in[None, :], other=0.0)  # fmt: skip
            acc = tl.dot(tl.trans(a), d, acc, input_precision=PRECISION)
    start = PARTIAL + split.to(tl.int64) * E * E * N
    tl.store(start + (c0 * E + ce)[:, None] * N + n[None, :], acc, mask=n_in[None, :])
