# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The two ends of a triangle multiplication; the product between them is a batched GEMM.

a, b and the product lie channels first, `[C, M]`, so that the GEMM reads plain
matrices and no transposing copy is ever made.

Programs keep their weights in shared memory and walk over tiles of pairs. Vectors of
channels are read anew for every tile: kept, they would take half of the registers.

Letters: M = B * R * R pairs, C channels of the pair representation, E hidden channels.
"""

from evofeed.kernels.backend import tl, triton
from evofeed.kernels.projection_kernels import drop_row

__all__ = [
    "triangle_in_grad_kernel",
    "triangle_in_kernel",
    "triangle_out_grad_kernel",
    "triangle_out_kernel",
]


@triton.jit
def _vector(V, c, c_in):
    """A vector of channels, as a row."""
    return tl.load(V + c, mask=c_in, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _statistics(x, c_in, C, eps):
    """x minus its mean (0 in the padding), the mean and 1/std of each row."""
    mean = tl.sum(x, 1) / C
    centred = tl.where(c_in[None, :], x - mean[:, None], 0.0)
    return centred, mean, 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / C + eps)


@triton.jit
def _normalised(X, STATS, rows, M, C, c, row_in, inside):
    """A tile of rows less their mean, over their std, from saved statistics."""
    x = tl.load(X + rows.to(tl.int64)[:, None] * C + c[None, :], mask=inside, other=0.0)
    mean = tl.load(STATS + rows, mask=row_in, other=0.0)
    rstd = tl.load(STATS + M + rows, mask=row_in, other=0.0)
    return (x.to(tl.float32) - mean[:, None]) * rstd[:, None]


@triton.jit
def _matrix(W, n, n_in, c, c_in, C):
    inside = n_in[:, None] & c_in[None, :]
    return tl.load(W + n[:, None] * C + c[None, :], mask=inside, other=0.0)


@triton.jit
def _half(E, BLOCK_E: tl.constexpr):
    """This program's half (0: a, 1: b), channels within it, and rows of the packed weights."""
    blocks = tl.cdiv(E, BLOCK_E)
    half = tl.program_id(1) // blocks
    e = (tl.program_id(1) % blocks) * BLOCK_E + tl.arange(0, BLOCK_E)
    return half, e, half * 2 * E + e


@triton.jit
def triangle_in_kernel(
    Z, GAMMA, BETA, W, BIAS, MASK, AB, STATS, M, C, E, eps, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """AB `[2, E, M]` = mask * sigmoid(gate) * projection of the normalised pairs.

    W holds four blocks of E rows: a's projection, a's gate, b's projection, b's gate.
    """
    half, e, n = _half(E, BLOCK_E)
    c = tl.arange(0, BLOCK_C)
    c_in, e_in = c < C, e < E
    wp = _matrix(W, n, e_in, c, c_in, C)
    wg = _matrix(W, n + E, e_in, c, c_in, C)
    for step in tl.range(tiles_each, num_stages=STAGES):
        tile = step * tl.num_programs(0) + tl.program_id(0)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        z = tl.load(Z + rows.to(tl.int64)[:, None] * C + c[None, :],
                    mask=row_in[:, None] & c_in[None, :], other=0.0)  # fmt: skip
        centred, mean, rstd = _statistics(z.to(tl.float32), c_in, C, eps)
        if tl.program_id(1) == 0:
            tl.store(STATS + rows, mean, mask=row_in)
            tl.store(STATS + M + rows, rstd, mask=row_in)
        normed = centred * rstd[:, None] * _vector(GAMMA, c, c_in) + _vector(BETA, c, c_in)
        a = normed.to(W.dtype.element_ty)
        mask = tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)
        p = tl.dot(a, tl.trans(wp), input_precision=PRECISION) + _vector(BIAS, n, e_in)
        g = tl.dot(a, tl.trans(wg), input_precision=PRECISION) + _vector(BIAS, n + E, e_in)
        y = p * tl.sigmoid(g) * mask[:, None]
        to = (AB + (half * E + e).to(tl.int64)[None, :] * M) + rows[:, None]
        tl.store(to, y.to(AB.dtype.element_ty), mask=row_in[:, None] & e_in[None, :])


@triton.jit
def triangle_in_grad_kernel(
    Z, STATS, GAMMA, BETA, W, BIAS, MASK, DAB, DP, PARTIAL, M, C, E, dp_m, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of the four projections before their bias, DP `[M, 4E]`, from DAB `[2, E, M]`.

    PARTIAL `[programs, 4E]`: the sums of each program's rows of DP.
    """
    half, e, n = _half(E, BLOCK_E)
    c = tl.arange(0, BLOCK_C)
    c_in, e_in = c < C, e < E
    wp = _matrix(W, n, e_in, c, c_in, C)
    wg = _matrix(W, n + E, e_in, c, c_in, C)
    sum_p = tl.zeros([BLOCK_E], tl.float32)
    sum_g = tl.zeros([BLOCK_E], tl.float32)
    for step in tl.range(tiles_each, num_stages=STAGES):
        tile = step * tl.num_programs(0) + tl.program_id(0)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        xhat = _normalised(Z, STATS, rows, M, C, c, row_in, row_in[:, None] & c_in[None, :])
        a = (xhat * _vector(GAMMA, c, c_in) + _vector(BETA, c, c_in)).to(W.dtype.element_ty)
        inside = row_in[:, None] & e_in[None, :]
        at = (DAB + (half * E + e).to(tl.int64)[None, :] * M) + rows[:, None]
        dy = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        mask = tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)
        p = tl.dot(a, tl.trans(wp), input_precision=PRECISION) + _vector(BIAS, n, e_in)
        g = tl.dot(a, tl.trans(wg), input_precision=PRECISION) + _vector(BIAS, n + E, e_in)
        open_ = tl.sigmoid(g)
        dp = dy * mask[:, None] * open_
        dg = dp * p * (1.0 - open_)
        to = (DP + rows.to(tl.int64)[:, None] * dp_m) + n[None, :]
        tl.store(to, dp.to(DP.dtype.element_ty), mask=inside)
        tl.store(to + E, dg.to(DP.dtype.element_ty), mask=inside)
        sum_p += tl.sum(dp, 0)
        sum_g += tl.sum(dg, 0)
    to = PARTIAL + tl.program_id(0) * 4 * E + n
    tl.store(to, sum_p, mask=e_in)
    tl.store(to + E, sum_g, mask=e_in)


@triton.jit
def triangle_out_kernel(
    XT, GAMMA_X, BETA_X, WZ, BZ, Z, STATS_Z, GAMMA_Z, BETA_Z, WG, BG, DROP, OUT, STATS_X,
    M, C, E, eps, drop_1, drop_2, drop_rows, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr,
    HAS_DROP: tl.constexpr, HAS_RES: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """OUT = Z + DROP * (norm(X) Wz^T + bz) * sigmoid(norm(Z) Wg^T + bg); X is channels first."""
    c, e = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_E)
    c_in, e_in = c < C, e < E
    wz, wg = _matrix(WZ, c, c_in, e, e_in, E), _matrix(WG, c, c_in, c, c_in, C)
    for step in tl.range(tiles_each, num_stages=STAGES):
        tile = step * tl.num_programs(0) + tl.program_id(0)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        inside = row_in[:, None] & c_in[None, :]
        x = tl.load((XT + e.to(tl.int64)[None, :] * M) + rows[:, None],
                    mask=row_in[:, None] & e_in[None, :], other=0.0)  # fmt: skip
        zhat = _normalised(Z, STATS_Z, rows, M, C, c, row_in, inside)
        centred, mean, rstd = _statistics(x.to(tl.float32), e_in, E, eps)
        tl.store(STATS_X + rows, mean, mask=row_in)
        tl.store(STATS_X + M + rows, rstd, mask=row_in)
        xn = centred * rstd[:, None] * _vector(GAMMA_X, e, e_in) + _vector(BETA_X, e, e_in)
        y = tl.dot(xn.to(wz.dtype), tl.trans(wz), input_precision=PRECISION)
        y += _vector(BZ, c, c_in)
        zn = zhat * _vector(GAMMA_Z, c, c_in) + _vector(BETA_Z, c, c_in)
        g = tl.dot(zn.to(wg.dtype), tl.trans(wg), input_precision=PRECISION)
        out = y * tl.sigmoid(g + _vector(BG, c, c_in))
        if HAS_DROP:
            at = drop_row(rows, drop_1, drop_2, drop_rows)
            drop = tl.load(DROP + at[:, None] * C + c[None, :], mask=inside, other=0.0)
            out *= drop.to(tl.float32)
        flat = rows.to(tl.int64)[:, None] * C + c[None, :]
        if HAS_RES:
            out += tl.load(Z + flat, mask=inside, other=0.0).to(tl.float32)
        tl.store(OUT + flat, out.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def triangle_out_grad_kernel(
    DOUT, XT, STATS_X, GAMMA_X, BETA_X, WZ, BZ, Z, STATS_Z, GAMMA_Z, BETA_Z, WG, BG, DROP,
    DXT, DY, DGATE, NORMED, PARTIAL, M, C, E, dg_m, drop_1, drop_2, drop_rows, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr,
    HAS_DROP: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Backward of `triangle_out_kernel` up to the weights, both products rebuilt.

    Writes the gradient of X (channels first), the normalised X (NORMED `[M, E]`), the
    gradients of the projection (DY `[M, C]`) and of the gate before its sigmoid (DGATE,
    row stride dg_m), and in PARTIAL `[programs, 2E + 2C]` each program's sums for X's norm
    and of the columns of DY and DGATE.
    """
    c, e = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_E)
    c_in, e_in = c < C, e < E
    wz, wg = _matrix(WZ, c, c_in, e, e_in, E), _matrix(WG, c, c_in, c, c_in, C)
    dgamma = tl.zeros([BLOCK_E], tl.float32)
    dbeta = tl.zeros([BLOCK_E], tl.float32)
    sum_y = tl.zeros([BLOCK_C], tl.float32)
    sum_gate = tl.zeros([BLOCK_C], tl.float32)
    for step in tl.range(tiles_each, num_stages=STAGES):
        tile = step * tl.num_programs(0) + tl.program_id(0)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        rows64 = rows.to(tl.int64)
        inside, xt_in = row_in[:, None] & c_in[None, :], row_in[:, None] & e_in[None, :]
        flat = rows64[:, None] * C + c[None, :]
        zhat = _normalised(Z, STATS_Z, rows, M, C, c, row_in, inside)
        zn = zhat * _vector(GAMMA_Z, c, c_in) + _vector(BETA_Z, c, c_in)
        g = tl.dot(zn.to(wg.dtype), tl.trans(wg), input_precision=PRECISION)
        open_ = tl.sigmoid(g + _vector(BG, c, c_in))
        x = tl.load((XT + e.to(tl.int64)[None, :] * M) + rows[:, None], mask=xt_in, other=0.0)
        mean = tl.load(STATS_X + rows, mask=row_in, other=0.0)
        rstd = tl.load(STATS_X + M + rows, mask=row_in, other=0.0)
        xhat = tl.where(e_in[None, :], (x.to(tl.float32) - mean[:, None]) * rstd[:, None], 0.0)
        xn = (xhat * _vector(GAMMA_X, e, e_in) + _vector(BETA_X, e, e_in)).to(wz.dtype)
        tl.store((NORMED + rows64[:, None] * E) + e[None, :], xn, mask=xt_in)
        y = tl.dot(xn, tl.trans(wz), input_precision=PRECISION) + _vector(BZ, c, c_in)
        dout = tl.load(DOUT + flat, mask=inside, other=0.0).to(tl.float32)
        if HAS_DROP:
            at = drop_row(rows, drop_1, drop_2, drop_rows)
            drop = tl.load(DROP + at[:, None] * C + c[None, :], mask=inside, other=0.0)
            dout *= drop.to(tl.float32)
        d = dout * open_
        dgate = d * y * (1.0 - open_)
        to = (DGATE + rows64[:, None] * dg_m) + c[None, :]
        tl.store(to, dgate.to(DGATE.dtype.element_ty), mask=inside)
        dy = d.to(wz.dtype)
        tl.store(DY + flat, dy, mask=inside)
        sum_y += tl.sum(d, 0)
        sum_gate += tl.sum(dgate, 0)
        dxn = tl.dot(dy, wz, input_precision=PRECISION)
        dgamma += tl.sum(dxn * xhat, 0)
        dbeta += tl.sum(dxn, 0)
        dxn *= _vector(GAMMA_X, e, e_in)
        mean_g = tl.sum(dxn, 1) / E
        mean_gx = tl.sum(dxn * xhat, 1) / E
        dx = rstd[:, None] * (dxn - mean_g[:, None] - xhat * mean_gx[:, None])
        tl.store((DXT + e.to(tl.int64)[None, :] * M) + rows[:, None],
                 dx.to(DXT.dtype.element_ty), mask=xt_in)  # fmt: skip
    to = PARTIAL + tl.program_id(0) * (2 * E + 2 * C)
    tl.store(to + e, dgamma, mask=e_in)
    tl.store(to + E + e, dbeta, mask=e_in)
    tl.store(to + 2 * E + c, sum_y, mask=c_in)
    tl.store(to + 2 * E + C + c, sum_gate, mask=c_in)
