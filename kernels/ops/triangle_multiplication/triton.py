# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Input and output of a triangle multiplication; the product between them is a batched GEMM.

a, b and the product are channels first, `[C, M]`, so that the GEMM reads plain
matrices without a transposing copy.

Letters: M = B * R * R pairs, C channels of the pair representation, E hidden channels.
"""

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.runtime.projection_kernels import column_sum, drop_row, load_normalised


@triton.jit
def triangle_in_kernel(
    Z, GAMMA, BETA, W, BIAS, MASK, AB, STATS, M, C, E, eps,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """AB `[2, E, M]` = mask * sigmoid(gate) * projection of the normalised pairs.

    W holds four blocks of E rows: a's projection, a's gate, b's projection, b's gate.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    row_in, c_in = rows < M, c < C
    normed, mean, rstd = load_normalised(Z, GAMMA, BETA, rows, c, row_in, c_in, C, 1, C, eps)
    tl.store(STATS + rows, mean, mask=row_in)
    tl.store(STATS + M + rows, rstd, mask=row_in)
    a = normed.to(W.dtype.element_ty)
    mask = tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)
    for first in range(0, 2 * E, BLOCK_E):  # E is a multiple of BLOCK_E
        half = first // E
        e = first - half * E + tl.arange(0, BLOCK_E)
        p, g = _projection_and_gate(a, W, BIAS, half, e, c, c_in, C, E, PRECISION)
        y = p * tl.sigmoid(g) * mask[:, None]
        to = (AB + (half * E + e).to(tl.int64)[None, :] * M) + rows[:, None]
        tl.store(to, y.to(AB.dtype.element_ty), mask=row_in[:, None] & (e < E)[None, :])


@triton.jit
def _projection_and_gate(a, W, BIAS, half, e, c, c_in, C, E, PRECISION: tl.constexpr):
    n = half * 2 * E + e
    inside = (e < E)[:, None] & c_in[None, :]
    wp = tl.load(W + n[:, None] * C + c[None, :], mask=inside, other=0.0)
    wg = tl.load(W + (n + E)[:, None] * C + c[None, :], mask=inside, other=0.0)
    p = tl.dot(a, tl.trans(wp), input_precision=PRECISION)
    g = tl.dot(a, tl.trans(wg), input_precision=PRECISION)
    p += tl.load(BIAS + n, mask=e < E, other=0.0).to(tl.float32)[None, :]
    g += tl.load(BIAS + n + E, mask=e < E, other=0.0).to(tl.float32)[None, :]
    return p, g


@triton.jit
def triangle_in_grad_kernel(
    Z, GAMMA, BETA, W, BIAS, MASK, DAB, DP, PARTIAL, M, C, E, dp_m, eps,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the four projections before their bias, DP `[M, 4E]`, from DAB `[2, E, M]`.

    PARTIAL `[programs, 4E]`: the sums of each program's rows of DP.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    row_in, c_in = rows < M, c < C
    normed, _, _ = load_normalised(Z, GAMMA, BETA, rows, c, row_in, c_in, C, 1, C, eps)
    a = normed.to(W.dtype.element_ty)
    mask = tl.load(MASK + rows, mask=row_in, other=0.0).to(tl.float32)
    for first in range(0, 2 * E, BLOCK_E):
        half = first // E
        e = first - half * E + tl.arange(0, BLOCK_E)
        p, g = _projection_and_gate(a, W, BIAS, half, e, c, c_in, C, E, PRECISION)
        inside = row_in[:, None] & (e < E)[None, :]
        from_ab = (DAB + (half * E + e).to(tl.int64)[None, :] * M) + rows[:, None]
        dy = tl.load(from_ab, mask=inside, other=0.0).to(tl.float32) * mask[:, None]
        sig = tl.sigmoid(g)
        to = (DP + rows.to(tl.int64)[:, None] * dp_m) + (half * 2 * E + e)[None, :]
        dp = (dy * sig).to(DP.dtype.element_ty)
        tl.store(to, dp, mask=inside)
        dg = (dy * p * sig * (1.0 - sig)).to(DP.dtype.element_ty)
        tl.store(to + E, dg, mask=inside)
        sums = PARTIAL + tl.program_id(0).to(tl.int64) * 4 * E + half * 2 * E + e
        tl.store(sums, column_sum(dp, PRECISION), mask=e < E)
        tl.store(sums + E, column_sum(dg, PRECISION), mask=e < E)


@triton.jit
def _gate(zn, WG, BG, n, k, C, PRECISION: tl.constexpr):
    """sigmoid(zn Wg^T + bg) for some output channels n."""
    inside = (n < C)[:, None] & (k < C)[None, :]
    w = tl.load(WG + n[:, None] * C + k[None, :], mask=inside, other=0.0)
    g = tl.dot(zn.to(w.dtype), tl.trans(w), input_precision=PRECISION)
    return tl.sigmoid(g + tl.load(BG + n, mask=n < C, other=0.0).to(tl.float32)[None, :])


@triton.jit
def triangle_out_kernel(
    XT, GAMMA_X, BETA_X, WZ, BZ, Z, GAMMA_Z, BETA_Z, WG, BG, DROP, OUT, STATS_X,
    M, C, E, eps, drop_1, drop_2, drop_rows,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_DROP: tl.constexpr, HAS_RES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """OUT = Z + DROP * (norm(X) Wz^T + bz) * sigmoid(norm(Z) Wg^T + bg); X is channels first.

    BLOCK_N output channels at a time.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k, e = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_E)
    row_in, e_in = rows < M, e < E
    xn, mean, rstd = load_normalised(XT, GAMMA_X, BETA_X, rows, e, row_in, e_in, 1, M, E, eps)
    tl.store(STATS_X + rows, mean, mask=row_in)
    tl.store(STATS_X + M + rows, rstd, mask=row_in)
    zn, _, _ = load_normalised(Z, GAMMA_Z, BETA_Z, rows, k, row_in, k < C, C, 1, C, eps)
    row_start = rows.to(tl.int64)[:, None] * C
    for first in tl.static_range(0, BLOCK_C, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        n_in = n < C
        w = tl.load(WZ + n[:, None] * E + e[None, :], mask=n_in[:, None] & e_in[None, :], other=0.0)
        y = tl.dot(xn.to(w.dtype), tl.trans(w), input_precision=PRECISION)
        y += tl.load(BZ + n, mask=n_in, other=0.0).to(tl.float32)[None, :]
        out = y * _gate(zn, WG, BG, n, k, C, PRECISION)
        inside = row_in[:, None] & n_in[None, :]
        if HAS_DROP:
            mask_rows = drop_row(rows, drop_1, drop_2, drop_rows)
            drop = tl.load(DROP + mask_rows[:, None] * C + n[None, :], mask=inside, other=0.0)
            out *= drop.to(tl.float32)
        if HAS_RES:
            out += tl.load((Z + row_start) + n[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store((OUT + row_start) + n[None, :], out.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def triangle_out_grad_kernel(
    DOUT, XT, GAMMA_X, BETA_X, WZ, BZ, Z, GAMMA_Z, BETA_Z, WG, BG, DROP,
    DXT, DY, DGATE, NORMED, PARTIAL, M, C, E, dg_m, eps, drop_1, drop_2, drop_rows,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward of `triangle_out_kernel` up to the weights; both products are recomputed.

    Writes the gradient of X (channels first), the normalised X (NORMED `[M, E]`), the
    gradients of the projection (DY `[M, C]`) and of the gate before its sigmoid (DGATE,
    row stride dg_m), and in PARTIAL `[programs, 2E + 2C]` each program's sums for X's norm
    and of the columns of DY and DGATE.
    """
    program = tl.program_id(0)
    rows = program * BLOCK_M + tl.arange(0, BLOCK_M)
    k, e = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_E)
    row_in, e_in = rows < M, e < E
    row_start = rows.to(tl.int64)[:, None] * C
    zn, _, _ = load_normalised(Z, GAMMA_Z, BETA_Z, rows, k, row_in, k < C, C, 1, C, eps)
    xt_in = row_in[:, None] & e_in[None, :]
    column_start = e.to(tl.int64)[None, :] * M
    x = tl.load((XT + column_start) + rows[:, None], mask=xt_in, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / E
    xhat = tl.where(xt_in, x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(xhat * xhat, 1) / E + eps)
    xhat *= rstd[:, None]
    gamma = tl.load(GAMMA_X + e, mask=e_in, other=0.0).to(tl.float32)
    beta = tl.load(BETA_X + e, mask=e_in, other=0.0).to(tl.float32)
    xn = (xhat * gamma[None, :] + beta[None, :]).to(WZ.dtype.element_ty)
    tl.store((NORMED + rows.to(tl.int64)[:, None] * E) + e[None, :], xn, mask=xt_in)
    sums = PARTIAL + program.to(tl.int64) * (2 * E + 2 * C)
    dxn = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    for first in tl.static_range(0, BLOCK_C, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        n_in = n < C
        inside = row_in[:, None] & n_in[None, :]
        dout = tl.load((DOUT + row_start) + n[None, :], mask=inside, other=0.0).to(tl.float32)
        if HAS_DROP:
            mask_rows = drop_row(rows, drop_1, drop_2, drop_rows)
            drop = tl.load(DROP + mask_rows[:, None] * C + n[None, :], mask=inside, other=0.0)
            dout *= drop.to(tl.float32)
        gate = _gate(zn, WG, BG, n, k, C, PRECISION)
        w = tl.load(WZ + n[:, None] * E + e[None, :], mask=n_in[:, None] & e_in[None, :], other=0.0)
        y = tl.dot(xn, tl.trans(w), input_precision=PRECISION)
        y += tl.load(BZ + n, mask=n_in, other=0.0).to(tl.float32)[None, :]
        dgate = (dout * y * gate * (1.0 - gate)).to(DGATE.dtype.element_ty)
        to = (DGATE + rows.to(tl.int64)[:, None] * dg_m) + n[None, :]
        tl.store(to, dgate, mask=inside)
        dy = (dout * gate).to(w.dtype)
        tl.store((DY + row_start) + n[None, :], dy, mask=inside)
        tl.store(sums + 2 * E + n, column_sum(dy, PRECISION), mask=n_in)
        tl.store(sums + 2 * E + C + n, column_sum(dgate, PRECISION), mask=n_in)
        dxn = tl.dot(dy, w, dxn, input_precision=PRECISION)
    tl.store(sums + e, tl.sum(dxn * xhat, 0), mask=e_in)
    tl.store(sums + E + e, tl.sum(dxn, 0), mask=e_in)
    dxn *= gamma[None, :]
    mean_g = tl.sum(dxn, 1) / E
    mean_gx = tl.sum(dxn * xhat, 1) / E
    dx = rstd[:, None] * (dxn - mean_g[:, None] - xhat * mean_gx[:, None])
    tl.store((DXT + column_start) + rows[:, None], dx.to(DXT.dtype.element_ty), mask=xt_in)


@triton.jit
def projection_sums_kernel(
    PARTIAL_W, PARTIAL, W, GAMMA, BETA, DW, SUMS, programs,
    C: tl.constexpr, E: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Adds the programs' partial sums, for one e.

    With G = x_hat^T dy and s the sums of dy: dW = G gamma + s beta, dgamma = sum_c W G and
    dbeta = sum_c W s.
    """
    e = tl.program_id(0)
    c = tl.arange(0, C)
    g = tl.zeros([GROUP, C], tl.float32)
    sum_y = tl.zeros([GROUP, C], tl.float32)
    for first in range(0, programs, GROUP):
        p = first + tl.arange(0, GROUP)
        p_in = (p < programs)[:, None]
        g += tl.load(PARTIAL_W + (p[:, None] * E + e) * C + c[None, :], mask=p_in, other=0.0)
        sum_y += tl.load(PARTIAL + p[:, None] * 2 * C + c[None, :], mask=p_in, other=0.0)
    total, total_y = tl.sum(g, 0), tl.sum(sum_y, 0)
    gamma, beta = tl.load(GAMMA + e).to(tl.float32), tl.load(BETA + e).to(tl.float32)
    w = tl.load(W + c * E + e).to(tl.float32)
    tl.store(DW + c * E + e, (total * gamma + total_y * beta).to(DW.dtype.element_ty))
    kind = SUMS.dtype.element_ty
    tl.store(SUMS + e, tl.sum(w * total, 0).to(kind))
    tl.store(SUMS + E + e, tl.sum(w * total_y, 0).to(kind))
    if e == 0:
        tl.store(SUMS + 2 * E + c, total_y.to(kind))
    if e == 1:
        sums = tl.zeros([GROUP, C], tl.float32)
        for first in range(0, programs, GROUP):
            p = first + tl.arange(0, GROUP)
            pointers = PARTIAL + p[:, None] * 2 * C + C + c[None, :]
            sums += tl.load(pointers, mask=(p < programs)[:, None], other=0.0)
        tl.store(SUMS + 2 * E + C + c, tl.sum(sums, 0).to(kind))
