# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Layer norm over a short last axis: forward, backward, and the sums over rows.

Letters: M rows, C channels.
"""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def _tile_of(
    X, first, cols, n1, s0, s1, M, C, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
    PLAIN: tl.constexpr, EVEN: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """Rows `first` and on of X in float32; where they are in a contiguous tensor; which are there.

    CACHE: the cache hint for them ("" for nothing).

    A start that is one number for all threads, and offsets known to the compiler where C is,
    leave registers for more programs.
    """
    width = BLOCK_C if EVEN else C
    local = tl.arange(0, BLOCK_M)
    inside = (local < M - first)[:, None] & ((cols < C) | EVEN)[None, :]
    start = first.to(tl.int64) * width
    flat = local[:, None] * width + cols[None, :]
    if PLAIN:
        x = tl.load(X + start + flat, mask=inside, other=0.0, eviction_policy=CACHE)
    else:
        rows = first + local
        begin = (rows // n1).to(tl.int64) * s0 + (rows % n1).to(tl.int64) * s1
        at = begin[:, None] + cols[None, :]
        x = tl.load(X + at, mask=inside, other=0.0, eviction_policy=CACHE)
    return x.to(tl.float32), start, flat, inside


@triton.jit
def _statistics(x, col_in, C, eps, BLOCK_C: tl.constexpr, EVEN: tl.constexpr):
    """Mean and 1/std of each row."""
    width = BLOCK_C if EVEN else C
    mean = tl.sum(x, 1) / width
    centred = x - mean[:, None]
    if not EVEN:
        centred = tl.where(col_in[None, :], centred, 0.0)
    return mean, 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)


@triton.jit
def norm_forward_kernel(
    X, W, B, Y, STATS, M, n1, s0, s1, C, eps,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, PLAIN: tl.constexpr, EVEN: tl.constexpr,
    KEEP: tl.constexpr, TICKETS: tl.constexpr,
):  # fmt: skip
    """Y, and in STATS with KEEP the rows' means and 1/std, and then TICKETS zeros.

    PLAIN: X is contiguous; EVEN: C is BLOCK_C. With TICKETS a backward pass follows, for which
    X may stay in the cache.
    """
    cols = tl.arange(0, BLOCK_C)
    col_in = (cols < C) | EVEN
    first = tl.program_id(0) * BLOCK_M
    x, start, flat, inside = _tile_of(
        X, first, cols, n1, s0, s1, M, C, BLOCK_M, BLOCK_C, PLAIN, EVEN,
        "evict_last" if TICKETS > 0 else "",
    )  # fmt: skip
    w = tl.load(W + cols, mask=col_in, other=0.0).to(tl.float32)
    b = tl.load(B + cols, mask=col_in, other=0.0).to(tl.float32)
    mean, rstd = _statistics(x, col_in, C, eps, BLOCK_C, EVEN)
    y = (x - mean[:, None]) * rstd[:, None] * w[None, :] + b[None, :]
    tl.store(Y + start + flat, y.to(Y.dtype.element_ty), mask=inside)
    if KEEP:
        rows = first + tl.arange(0, BLOCK_M)
        tl.store(STATS + rows, mean, mask=rows < M)
        tl.store(STATS + M + rows, rstd, mask=rows < M)
    if TICKETS > 0 and tl.program_id(0) == 0:
        tickets = STATS + (2 * M if KEEP else 0) + tl.arange(0, TICKETS)
        tl.store(tickets, tl.zeros([TICKETS], tl.float32))


@triton.jit
def norm_backward_kernel(
    DY, X, W, B, STATS, RES, DX, NORMED, PARTIAL, DW, DB, M, n1, s0, s1, C, eps, tiles_each,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, PLAIN: tl.constexpr, EVEN: tl.constexpr,
    HAS_STATS: tl.constexpr, BACKWARDS: tl.constexpr, HAS_RES: tl.constexpr, KEEP: tl.constexpr,
    RES_SUM: tl.constexpr, LAST_SUMS: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr,
    WAYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """DX = gradient of X, plus RES; with KEEP also the forward result again, in NORMED.

    PARTIAL `[programs, 2 or 3, C]`: each program's sums for W, B and, with RES_SUM, of RES.
    With LAST_SUMS the last program to finish adds them up into DW and DB.
    Without HAS_STATS the rows' means and 1/std are found again. BACKWARDS: programs walk from
    the last row to the first.
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
        x, start, flat, inside = _tile_of(
            X, first, cols, n1, s0, s1, M, C, BLOCK_M, BLOCK_C, PLAIN, EVEN, ""
        )
        dy = tl.load(DY + start + flat, mask=inside, other=0.0).to(tl.float32)
        if HAS_STATS:
            rows = first + tl.arange(0, BLOCK_M)
            mean = tl.load(STATS + rows, mask=rows < M, other=0.0)
            rstd = tl.load(STATS + M + rows, mask=rows < M, other=0.0)
        else:
            mean, rstd = _statistics(x, col_in, C, eps, BLOCK_C, EVEN)
        xhat = (x - mean[:, None]) * rstd[:, None]
        if not EVEN:
            xhat = tl.where(col_in[None, :], xhat, 0.0)
        g = dy * w[None, :]
        mean_g = tl.sum(g, 1) / width
        mean_gx = tl.sum(g * xhat, 1) / width
        dx = rstd[:, None] * (g - mean_g[:, None] - xhat * mean_gx[:, None])
        if HAS_RES:
            res = tl.load(RES + start + flat, mask=inside, other=0.0).to(tl.float32)
            dx += res
            if RES_SUM:
                dr += _folded(res, WAYS, BLOCK_M, BLOCK_C)
        dx = dx.to(DX.dtype.element_ty)
        tl.store(DX + start + flat, dx, mask=inside)
        if KEEP:
            normed = xhat * w[None, :] + b[None, :]
            tl.store(NORMED + start + flat, normed.to(NORMED.dtype.element_ty), mask=inside)
        dw += _folded(dy * xhat, WAYS, BLOCK_M, BLOCK_C)
        db += _folded(dy, WAYS, BLOCK_M, BLOCK_C)
    to = PARTIAL + program * (3 if RES_SUM else 2) * C + cols
    tl.store(to, tl.sum(dw, 0), mask=col_in)
    tl.store(to + C, tl.sum(db, 0), mask=col_in)
    if RES_SUM:
        tl.store(to + 2 * C, tl.sum(dr, 0), mask=col_in)
    if LAST_SUMS:
        tickets = (STATS + (2 * M if HAS_STATS else 0)).to(tl.pointer_type(tl.int32), bitcast=True)
        _sum_of_all(PARTIAL, tickets, DW, DB, C, CHUNK, GROUP)


@triton.jit
def _folded(rows, WAYS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sums of every WAYS-th row: those that one thread holds, so nothing moves."""
    if WAYS < BLOCK_M:
        rows = tl.sum(tl.reshape(rows, [BLOCK_M // WAYS, WAYS, BLOCK_C]), 0)
    return rows


@triton.jit
def _sum_of_all(PARTIAL, TICKETS, DW, DB, C, CHUNK: tl.constexpr, GROUP: tl.constexpr):
    """Adds up all programs' rows `[2 * C]` of PARTIAL, always in the same order.

    The last program of a group adds up the group into a row after all others; the last group's
    adds up the groups. Tickets only say who is last; they are 0 before and after.
    """
    programs, group = tl.num_programs(0), tl.program_id(0) // GROUP
    groups, members = tl.cdiv(programs, GROUP), tl.minimum(GROUP, programs - group * GROUP)
    tl.debug_barrier()  # all of this program's row is written
    if tl.atomic_add(TICKETS + 1 + group, 1, sem="acq_rel") == members - 1:
        tl.store(TICKETS + 1 + group, 0)
        sums = PARTIAL + (programs + group) * 2 * C
        _sum_rows(PARTIAL + group * GROUP * 2 * C, members, sums, sums + C, C, CHUNK, GROUP)
        tl.debug_barrier()
        if tl.atomic_add(TICKETS, 1, sem="acq_rel") == groups - 1:
            tl.store(TICKETS, 0)
            _sum_rows(PARTIAL + programs * 2 * C, groups, DW, DB, C, CHUNK, GROUP)


@triton.jit
def _sum_rows(P, count, DW, DB, C, CHUNK: tl.constexpr, GROUP: tl.constexpr):
    """Sums of the columns of P `[count, 2 * C]`: the first C in DW, the others in DB."""
    tl.debug_barrier()  # no read may pass the ticket
    for first in range(0, 2 * C, CHUNK):
        cols = first + tl.arange(0, CHUNK)
        total = tl.zeros([CHUNK], tl.float32)
        for start in range(0, count, GROUP):
            r = start + tl.arange(0, GROUP)
            inside = (r < count)[:, None] & (cols < 2 * C)[None, :]
            rows = tl.load(P + r[:, None] * 2 * C + cols[None, :], mask=inside, other=0.0,
                           cache_modifier=".cg")  # fmt: skip
            total += tl.sum(rows, 0)
        tl.store(DW + cols, total.to(DW.dtype.element_ty), mask=cols < C)
        tl.store(DB + cols - C, total.to(DB.dtype.element_ty),
                 mask=(cols >= C) & (cols < 2 * C))  # fmt: skip
