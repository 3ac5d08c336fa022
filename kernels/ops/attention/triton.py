# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""softmax(scale * (q k^T + bias), masked) v: the Triton kernels of every attention of AF2.

Logits are never written to memory, and the bias gradient is summed over rows in
registers: a program of its kernel owns one tile of the bias and loops over the rows
that share it. Sums have a fixed order, so two runs give equal bits.

All tensors arrive as strided views `[B, R, N, H, D]`, so rows of an MSA, its
columns and both triangle directions are the same kernel with other strides.
The bias arrives divided by `scale`. Log-sum-exps are base 2.

A masked key gets a large negative logit. A row whose keys are all masked
attends uniformly to all N keys, as in AF2: its factor FACTOR[row] is 0, so all
its logits are. `mask_kernel` computes both from the mask.

These kernels run on any card, in every precision. In 16 bits on a Hopper card
those of `hopper/` compute the same faster and are tested against them.

WIDE: a position is multiplied by its stride in 64 bits. Along the columns of a long protein's
pairs one axis spans more than 2^31 numbers, and 32 bits would overflow; elsewhere 64 bits
cost 5 % of the time (`inputs.is_wide` chooses).

Letters: B batch, R rows that attend, N positions (Q queries, K keys), H heads,
D head width; a program's tile is BLOCK_Q x BLOCK_K.
"""

import math

from evofeed.kernels.runtime.backend import tl, triton

LOG2E = math.log2(math.e)


@triton.jit
def positions(n, WIDE: tl.constexpr):
    """Positions in the width in which they are multiplied by strides."""
    if WIDE:
        n = n.to(tl.int64)
    return n


@triton.jit
def mask_kernel(
    MASK, TERM, FACTOR, ms_b, ms_i, ms_n, ts_row, R, N, masked, factor,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """TERM[row]: `masked` where the key is masked, else 0; and FACTOR[row].

    FACTOR is `factor`, or 0 where no key of the row is valid.
    """
    row = tl.program_id(0)
    b, i = (row // R).to(tl.int64), (row % R).to(tl.int64)
    any_valid = tl.zeros([BLOCK_N], tl.float32)
    for first in range(0, ts_row, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        valid = tl.load(MASK + b * ms_b + i * ms_i + n.to(tl.int64) * ms_n, mask=n < N, other=0.0)
        any_valid = tl.maximum(any_valid, valid.to(tl.float32))
        term = tl.where((valid > 0.5) | (n >= N), 0.0, masked)
        to = TERM + row.to(tl.int64) * ts_row + n
        tl.store(to, term.to(TERM.dtype.element_ty), mask=n < ts_row)
    tl.store(FACTOR + row, tl.where(tl.max(any_valid, 0) > 0.5, factor, 0.0))


@triton.jit
def _key_block(
    q, K, V, BIAS, TERM, start, bias_start, term_start, rows, first, d, d_in, qs_n, bs_q, NQ, NK,
    BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """A block of keys and values from `first` on, which keys exist, and the queries' logits."""
    cols = first + tl.arange(0, BLOCK_K)
    k_in = cols < NK
    kv = start + positions(cols, WIDE)[:, None] * qs_n + d[None, :]
    kv_in = k_in[:, None] & d_in[None, :]
    k = tl.load(K + kv, mask=kv_in, other=0.0)
    v = tl.load(V + kv, mask=kv_in, other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if HAS_BIAS:
        bias = tl.load(BIAS + bias_start + positions(rows, WIDE)[:, None] * bs_q + cols[None, :],
                       mask=(rows < NQ)[:, None] & k_in[None, :], other=0.0)  # fmt: skip
        s += bias.to(tl.float32)
    if HAS_MASK:
        term = tl.load(TERM + term_start + cols, mask=k_in, other=0.0)
        s += term.to(tl.float32)[None, :]
    return k, v, k_in, s


@triton.jit
def forward_kernel(
    Q, K, V, BIAS, TERM, FACTOR, OUT, LSE,
    qs_b, qs_i, qs_n, qs_h, os_b, os_i, os_n, os_h, bs_b, bs_h, bs_q, ts_row, R, H, NQ, NK, factor,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One query tile of one row and head: the output and the log-sum-exp of its logits."""
    row = tl.program_id(0)  # fastest: rows that read the same bias tile run together
    tile, h = tl.program_id(1), tl.program_id(2).to(tl.int64)
    b, i = (row // R).to(tl.int64), (row % R).to(tl.int64)
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    wide_rows = positions(rows, WIDE)[:, None]
    d = tl.arange(0, BLOCK_D)
    q_in, d_in = rows < NQ, d < D
    start = b * qs_b + i * qs_i + h * qs_h
    q = tl.load(Q + start + wide_rows * qs_n + d[None, :],
                mask=q_in[:, None] & d_in[None, :], other=0.0)  # fmt: skip
    if HAS_MASK:
        factor = tl.load(FACTOR + row)
    top = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for first in range(0, NK, BLOCK_K):
        _, v, k_in, s = _key_block(
            q, K, V, BIAS, TERM, start, b * bs_b + h * bs_h, row.to(tl.int64) * ts_row, rows, first,
            d, d_in, qs_n, bs_q, NQ, NK, BLOCK_K, HAS_BIAS, HAS_MASK, PRECISION, WIDE,
        )  # fmt: skip
        s *= factor
        if PAD:
            s = tl.where(k_in[None, :], s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top
    out = OUT + b * os_b + i * os_i + h * os_h + wide_rows * os_n + d[None, :]
    tl.store(out, (acc / total[:, None]).to(OUT.dtype.element_ty),
             mask=q_in[:, None] & d_in[None, :])  # fmt: skip
    tl.store(LSE + (row.to(tl.int64) * H + h) * NQ + rows, top + tl.log2(total), mask=q_in)


@triton.jit
def delta_kernel(
    OUT, DO, DELTA, os_b, os_i, os_n, os_h, R, H, N,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, HEADS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """delta[row, h, n] = sum over the head width of o * do, for all heads at once."""
    row = tl.program_id(0)
    b, i = (row // R).to(tl.int64), (row % R).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    h, d = tl.arange(0, HEADS), tl.arange(0, BLOCK_D)
    across = positions(n, WIDE)[:, None] * os_n + h[None, :] * os_h
    offsets = b * os_b + i * os_i + across[:, :, None] + d
    delta_in = (n < N)[:, None] & (h < H)[None, :]
    inside = delta_in[:, :, None] & (d < D)
    o = tl.load(OUT + offsets, mask=inside, other=0.0).to(tl.float32)
    do = tl.load(DO + offsets, mask=inside, other=0.0).to(tl.float32)
    to = DELTA + row.to(tl.int64) * H * N + h[None, :] * N + n[:, None]
    tl.store(to, tl.sum(o * do, 2), mask=delta_in)


@triton.jit
def backward_dq_kernel(
    Q, K, V, BIAS, TERM, FACTOR, DO, LSE, DELTA, DQ,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, os_b, os_i, os_n, os_h,
    bs_b, bs_h, bs_q, ts_row, R, H, NQ, NK, factor, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """dq of one query tile of one row and head."""
    row = tl.program_id(0)
    tile, h = tl.program_id(1), tl.program_id(2).to(tl.int64)
    b, i = (row // R).to(tl.int64), (row % R).to(tl.int64)
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    wide_rows = positions(rows, WIDE)[:, None]
    d = tl.arange(0, BLOCK_D)
    q_in, d_in = rows < NQ, d < D
    qd_in = q_in[:, None] & d_in[None, :]
    start = b * qs_b + i * qs_i + h * qs_h
    q = tl.load(Q + start + wide_rows * qs_n + d[None, :], mask=qd_in, other=0.0)
    do = tl.load(DO + b * os_b + i * os_i + h * os_h + wide_rows * os_n + d[None, :],
                 mask=qd_in, other=0.0)  # fmt: skip
    stat = (row.to(tl.int64) * H + h) * NQ + rows
    lse = tl.load(LSE + stat, mask=q_in, other=float("inf"))
    delta = tl.load(DELTA + stat, mask=q_in, other=0.0)
    if HAS_MASK:
        factor = tl.load(FACTOR + row)
    dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for first in range(0, NK, BLOCK_K):
        k, v, k_in, s = _key_block(
            q, K, V, BIAS, TERM, start, b * bs_b + h * bs_h, row.to(tl.int64) * ts_row, rows, first,
            d, d_in, qs_n, bs_q, NQ, NK, BLOCK_K, HAS_BIAS, HAS_MASK, PRECISION, WIDE,
        )  # fmt: skip
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        s = s * factor - lse[:, None]
        if PAD:
            s = tl.where(k_in[None, :], s, float("-inf"))
        p = tl.exp2(s)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    to = b * gs_b + i * gs_i + h * gs_h + wide_rows * gs_n + d[None, :]
    tl.store(DQ + to, (dq * scale).to(DQ.dtype.element_ty), mask=qd_in)


@triton.jit
def backward_dkv_kernel(
    Q, K, V, BIAS, TERM, FACTOR, DO, LSE, DELTA, DK, DV,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, os_b, os_i, os_n, os_h,
    bs_b, bs_h, bs_q, ts_row, R, H, NQ, NK, factor, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """dk and dv of one key tile of one row and head; logits are keys first, like dk and dv.

    A masked key only affects its own dk and dv, which are set to 0 at the end.
    """
    row = tl.program_id(0)
    tile, h = tl.program_id(1), tl.program_id(2).to(tl.int64)
    b, i = (row // R).to(tl.int64), (row % R).to(tl.int64)
    cols = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    wide_cols = positions(cols, WIDE)[:, None]
    d = tl.arange(0, BLOCK_D)
    k_in, d_in = cols < NK, d < D
    kv_in = k_in[:, None] & d_in[None, :]
    start = b * qs_b + i * qs_i + h * qs_h
    out_start = b * os_b + i * os_i + h * os_h
    k = tl.load(K + start + wide_cols * qs_n + d[None, :], mask=kv_in, other=0.0)
    v = tl.load(V + start + wide_cols * qs_n + d[None, :], mask=kv_in, other=0.0)
    if HAS_MASK:
        factor = tl.load(FACTOR + row)
    dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    for first in range(0, NQ, BLOCK_Q):
        rows = first + tl.arange(0, BLOCK_Q)
        wide_rows = positions(rows, WIDE)[:, None]
        q_in = rows < NQ
        qd_in = q_in[:, None] & d_in[None, :]
        q = tl.load(Q + start + wide_rows * qs_n + d[None, :], mask=qd_in, other=0.0)
        do = tl.load(DO + out_start + wide_rows * os_n + d[None, :], mask=qd_in, other=0.0)
        stat = (row.to(tl.int64) * H + h) * NQ + rows
        lse = tl.load(LSE + stat, mask=q_in, other=float("inf"))
        delta = tl.load(DELTA + stat, mask=q_in, other=0.0)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        if HAS_BIAS:
            bias = tl.load(BIAS + b * bs_b + h * bs_h + wide_rows * bs_q + cols[None, :],
                           mask=q_in[:, None] & k_in[None, :], other=0.0)  # fmt: skip
            s += tl.trans(bias).to(tl.float32)
        # 100: masked and padded keys must not overflow before they are dropped
        p = tl.exp2(tl.minimum(s * factor - lse[None, :], 100.0))
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    if HAS_MASK:
        line = tl.load(TERM + row.to(tl.int64) * ts_row + cols, mask=k_in, other=0.0)
        keep = (line.to(tl.float32) * factor == 0.0)[
            :, None
        ]  # valid, or in a row without valid keys
        dk, dv = tl.where(keep, dk, 0.0), tl.where(keep, dv, 0.0)
    to = b * gs_b + i * gs_i + h * gs_h + wide_cols * gs_n + d[None, :]
    tl.store(DK + to, (dk * scale).to(DK.dtype.element_ty), mask=kv_in)
    tl.store(DV + to, dv.to(DV.dtype.element_ty), mask=kv_in)


@triton.jit
def backward_db_kernel(
    Q, K, V, BIAS, TERM, FACTOR, DO, LSE, DELTA, PARTIAL_DB,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, os_b, os_i, os_n, os_h,
    bs_b, bs_h, bs_q, ts_row, R, H, NQ, NK, factor, scale, rows_each,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """One tile of a head's bias gradient, summed over `rows_each` rows."""
    tiles_k = tl.cdiv(NK, BLOCK_K)
    rows = (tl.program_id(0) // tiles_k) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    cols = (tl.program_id(0) % tiles_k) * BLOCK_K + tl.arange(0, BLOCK_K)
    wide_rows, wide_cols = positions(rows, WIDE)[:, None], positions(cols, WIDE)[:, None]
    h = tl.program_id(1).to(tl.int64)
    splits = tl.cdiv(R, rows_each)
    b, split = tl.program_id(2) // splits, tl.program_id(2) % splits
    batch = b.to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    q_in, k_in, d_in = rows < NQ, cols < NK, d < D
    qd_in, kv_in = q_in[:, None] & d_in[None, :], k_in[:, None] & d_in[None, :]
    bias = tl.load(BIAS + batch * bs_b + h * bs_h + wide_rows * bs_q + cols[None, :],
                   mask=q_in[:, None] & k_in[None, :], other=0.0)  # fmt: skip
    db = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    for index in range(split * rows_each, tl.minimum((split + 1) * rows_each, R)):
        row = batch * R + index  # int64, for offsets beyond 2**31
        i = row - batch * R
        start = batch * qs_b + i * qs_i + h * qs_h
        out_start = batch * os_b + i * os_i + h * os_h
        q = tl.load(Q + start + wide_rows * qs_n + d[None, :], mask=qd_in, other=0.0)
        k = tl.load(K + start + wide_cols * qs_n + d[None, :], mask=kv_in, other=0.0)
        v = tl.load(V + start + wide_cols * qs_n + d[None, :], mask=kv_in, other=0.0)
        do = tl.load(DO + out_start + wide_rows * os_n + d[None, :], mask=qd_in, other=0.0)
        stat = (row * H + h) * NQ + rows
        lse = tl.load(LSE + stat, mask=q_in, other=float("inf"))
        delta = tl.load(DELTA + stat, mask=q_in, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        s += bias.to(tl.float32)
        if HAS_MASK:
            factor = tl.load(FACTOR + row)
            term = tl.load(TERM + row * ts_row + cols, mask=k_in, other=0.0)
            s += term.to(tl.float32)[None, :]
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        # 100: padded keys are not stored, but must not overflow either
        p = tl.exp2(tl.minimum(s * factor - lse[:, None], 100.0) if PAD else
                    s * factor - lse[:, None])  # fmt: skip
        db += p * (dp - delta[:, None])
    slab = ((batch * splits + split) * tl.num_programs(1) + h) * NQ * NK
    to = PARTIAL_DB + slab + wide_rows * NK + cols[None, :]
    tl.store(to, db, mask=q_in[:, None] & k_in[None, :])
