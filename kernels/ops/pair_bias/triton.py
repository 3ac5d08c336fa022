# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Backward kernels of the attention bias; the forward one is `norm_rows_kernel` of runtime.

The product has a short axis, so one pass over the pairs computes the gradients of the
projection, of the norm and of the pairs.

Letters: M = B * L * L pairs, C channels, H heads, L residues.
"""

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.runtime.projection_kernels import pair_offset


@triton.jit
def heads_last_kernel(
    SOURCE, TO, M, H, length, size, ts_m, BLOCK_M: tl.constexpr, BLOCK_H: tl.constexpr,
    WIDTH: tl.constexpr, TRANSPOSE: tl.constexpr,
):  # fmt: skip
    """Rows `[B * I * J, H]` of SOURCE `[B, H, I, J]`; columns from H to WIDTH become 0.

    I * J = size, J = length; with TRANSPOSE SOURCE is `[B, H, J, I]`.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    h = tl.arange(0, BLOCK_H)
    row_in = rows < M
    h64 = h.to(tl.int64)[None, :]
    offsets = (rows // size).to(tl.int64) * H * size + pair_offset(rows, length, size, TRANSPOSE)
    x = tl.load(SOURCE + offsets[:, None] + h64 * size,
                mask=row_in[:, None] & (h < H)[None, :], other=0.0)  # fmt: skip
    to = TO + rows.to(tl.int64)[:, None] * ts_m + h[None, :]
    tl.store(to, x.to(TO.dtype.element_ty), mask=row_in[:, None] & (h < WIDTH)[None, :])


@triton.jit
def pair_norm_backward_kernel(
    DBIAS, Z, GAMMA, BETA, STATS, W, RES, DZ, PARTIAL, M, C, H, size, scale, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr, HAS_RES: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """DZ from DBIAS `[B, H, I, J]`, plus RES; PARTIAL `[programs, (2 + H) C]`: gamma, beta, W.

    I * J = size. With d the gradient of the bias and x the normalised rows before GAMMA, all three
    sums follow from d^T x and the sum of d, as the gradient of the norm's result is d W.
    """
    c, h = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_H)
    c_in, h_in = c < C, h < H
    w_in = h_in[:, None] & c_in[None, :]
    w = tl.load(W + h[:, None] * C + c[None, :], mask=w_in, other=0.0)
    gamma = tl.load(GAMMA + c, mask=c_in, other=0.0).to(tl.float32)
    weighted = (w.to(tl.float32) * gamma[None, :]).to(w.dtype)
    mean_w = (tl.sum(weighted.to(tl.float32), 1) / C)[None, :]
    sum_d = tl.zeros([BLOCK_M, BLOCK_H], tl.float32)
    dw = tl.zeros([BLOCK_H, BLOCK_C], tl.float32)
    for step in tl.range(tiles_each, num_stages=STAGES):
        tile_ = step * tl.num_programs(0) + tl.program_id(0)
        rows = tile_ * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        inside = row_in[:, None] & c_in[None, :]
        pair_offsets = rows.to(tl.int64)[:, None] * C + c[None, :]
        z = tl.load(Z + pair_offsets, mask=inside, other=0.0).to(tl.float32)
        offsets = (rows // size).to(tl.int64) * H * size + rows % size
        d = tl.load(DBIAS + offsets[:, None] + h.to(tl.int64)[None, :] * size,
                    mask=row_in[:, None] & h_in[None, :], other=0.0)  # fmt: skip
        d = (d.to(tl.float32) * scale).to(w.dtype)
        mean = tl.load(STATS + rows, mask=row_in, other=0.0)
        rstd = tl.load(STATS + M + rows, mask=row_in, other=0.0)
        xhat = (z - mean[:, None]) * rstd[:, None]  # multiplied by 0 outside
        sum_d += d.to(tl.float32)
        dw = tl.dot(tl.trans(d), xhat.to(w.dtype), dw, input_precision=PRECISION)
        g = tl.dot(d, weighted, input_precision=PRECISION)
        mean_g = tl.sum(d.to(tl.float32) * mean_w, 1)
        mean_gx = tl.sum(g * xhat, 1) / C
        dz = rstd[:, None] * (g - mean_g[:, None] - xhat * mean_gx[:, None])
        if HAS_RES:
            dz += tl.load(RES + pair_offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(DZ + pair_offsets, dz.to(DZ.dtype.element_ty), mask=inside)
    beta = tl.load(BETA + c, mask=c_in, other=0.0).to(tl.float32)
    total = tl.sum(sum_d, 0)[:, None]
    of_w = tl.load(W + h[:, None] * C + c[None, :], mask=w_in, other=0.0).to(tl.float32)
    to = PARTIAL + tl.program_id(0) * (2 + H) * C
    tl.store(to + c, tl.sum(of_w * dw, 0), mask=c_in)
    tl.store(to + C + c, tl.sum(of_w * total, 0), mask=c_in)
    dw = dw * gamma[None, :] + total * beta[None, :]
    tl.store(to + (2 + h)[:, None] * C + c[None, :], dw, mask=w_in)
