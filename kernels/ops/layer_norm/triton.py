# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Layer norm over a short last axis: forward and backward.

Letters: M rows, C channels.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def _load_tile(
    X, first, cols, M, C, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Rows of X from `first` on in float32, their start and offsets, and which exist.

    A start that is equal for all threads, and offsets that the compiler knows where it knows C,
    leave registers for more programs.
    """
    width = BLOCK_C if EVEN else C
    local = tl.arange(0, BLOCK_M)
    inside = (local < M - first)[:, None] & ((cols < C) | EVEN)[None, :]
    start = first.to(tl.int64) * width
    offsets = local[:, None] * width + cols[None, :]
    x = tl.load(X + start + offsets, mask=inside, other=0.0)
    return x.to(tl.float32), start, offsets, inside


@triton.jit
def norm_forward_kernel(
    X, W, B, Y, STATS, M, C, eps,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Y, and with KEEP the rows' means and 1/std in STATS. EVEN: C is BLOCK_C."""
    cols = tl.arange(0, BLOCK_C)
    col_in = (cols < C) | EVEN
    width = BLOCK_C if EVEN else C
    first = tl.program_id(0) * BLOCK_M
    x, start, offsets, inside = _load_tile(X, first, cols, M, C, BLOCK_M, BLOCK_C, EVEN)
    w = tl.load(W + cols, mask=col_in, other=0.0).to(tl.float32)
    b = tl.load(B + cols, mask=col_in, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / width
    centred = x - mean[:, None]
    if not EVEN:
        centred = tl.where(col_in[None, :], centred, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
    y = (x - mean[:, None]) * rstd[:, None] * w[None, :] + b[None, :]
    tl.store(Y + start + offsets, y.to(Y.dtype.element_ty), mask=inside)
    if KEEP:
        rows = first + tl.arange(0, BLOCK_M)
        tl.store(STATS + rows, mean, mask=rows < M)
        tl.store(STATS + M + rows, rstd, mask=rows < M)


@triton.jit
def norm_backward_kernel(
    DY, X, W, B, STATS, RES, DX, NORMED, PARTIAL, M, C, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, EVEN: tl.constexpr, BACKWARDS: tl.constexpr,
    HAS_RES: tl.constexpr, KEEP: tl.constexpr, RES_SUM: tl.constexpr, WAYS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """DX = the gradient of X, plus RES; with KEEP also the forward result in NORMED.

    PARTIAL `[programs, 2 or 3, C]`: each program's sums for W, B and, with RES_SUM, of RES.
    BACKWARDS: programs go from the last row to the first.
    """
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK_C)
    col_in = (cols < C) | EVEN
    width = BLOCK_C if EVEN else C
    w = tl.load(W + cols, mask=col_in, other=0.0).to(tl.float32)
    if KEEP:
        b = tl.load(B + cols, mask=col_in, other=0.0).to(tl.float32)
    dw = tl.zeros([WAYS, BLOCK_C], tl.float32)
    db = tl.zeros([WAYS, BLOCK_C], tl.float32)
    if RES_SUM:
        dr = tl.zeros([WAYS, BLOCK_C], tl.float32)
    for step in tl.range(tiles_each, num_stages=STAGES):
        turn = tiles_each - 1 - step if BACKWARDS else step
        first = (turn * tl.num_programs(0) + program) * BLOCK_M
        x, start, offsets, inside = _load_tile(X, first, cols, M, C, BLOCK_M, BLOCK_C, EVEN)
        dy = tl.load(DY + start + offsets, mask=inside, other=0.0).to(tl.float32)
        rows = first + tl.arange(0, BLOCK_M)
        mean = tl.load(STATS + rows, mask=rows < M, other=0.0)
        rstd = tl.load(STATS + M + rows, mask=rows < M, other=0.0)
        xhat = (x - mean[:, None]) * rstd[:, None]
        if not EVEN:
            xhat = tl.where(col_in[None, :], xhat, 0.0)
        g = dy * w[None, :]
        mean_g = tl.sum(g, 1) / width
        mean_gx = tl.sum(g * xhat, 1) / width
        dx = rstd[:, None] * (g - mean_g[:, None] - xhat * mean_gx[:, None])
        if HAS_RES:
            res = tl.load(RES + start + offsets, mask=inside, other=0.0).to(tl.float32)
            dx += res
            if RES_SUM:
                dr += _folded(res, WAYS, BLOCK_M, BLOCK_C)
        dx = dx.to(DX.dtype.element_ty)
        tl.store(DX + start + offsets, dx, mask=inside)
        if KEEP:
            normed = xhat * w[None, :] + b[None, :]
            tl.store(NORMED + start + offsets, normed.to(NORMED.dtype.element_ty), mask=inside)
        dw += _folded(dy * xhat, WAYS, BLOCK_M, BLOCK_C)
        db += _folded(dy, WAYS, BLOCK_M, BLOCK_C)
    to = PARTIAL + program * (3 if RES_SUM else 2) * C + cols
    tl.store(to, tl.sum(dw, 0), mask=col_in)
    tl.store(to + C, tl.sum(db, 0), mask=col_in)
    if RES_SUM:
        tl.store(to + 2 * C, tl.sum(dr, 0), mask=col_in)


@triton.jit
def _folded(rows, WAYS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sums of every WAYS-th row, which one thread holds: no exchange between threads."""
    if WAYS < BLOCK_M:
        rows = tl.sum(tl.reshape(rows, [BLOCK_M // WAYS, WAYS, BLOCK_C]), 0)
    return rows
