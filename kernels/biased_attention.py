# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""softmax(q k^T * scale + pair bias, masked) v: the Triton kernels of every attention of AF2.

No logits are ever in memory, and the bias gradient is summed over rows in
registers: a program of the backward pass owns one tile of the bias and walks
over the rows that share it. Nothing uses atomics, so two runs give equal bits.

All tensors arrive as strided views `[B, R, N, H, D]`, so rows of an MSA, its
columns and both triangle directions are the same kernel with other strides.
Logits are kept in the log2 domain (exp2 is one instruction).

Masks: a masked key gets the logit -1e9, tile padding gets -inf. A row whose
keys are all masked attends uniformly to all N keys, as in AF2; its log-sum-exp
is stored as the flag DEAD, because -1e9 + log2(N) rounds to -1e9 in float32.

Letters: B batch, R rows that attend, N positions (Q queries, K keys), H heads,
D head width; a program's tile is BLOCK_Q x BLOCK_K.
"""

import math

from evofeed.kernels.backend import tl, triton

__all__ = [
    "backward_dkv_kernel",
    "backward_dq_kernel",
    "backward_owned_kernel",
    "delta_kernel",
    "forward_kernel",
]

LOG2E = math.log2(math.e)
_LOG2E = tl.constexpr(LOG2E)
_MASKED = tl.constexpr(-1.0e9)
_DEAD = tl.constexpr(2.0**100)


@triton.jit
def _logits(q, k, bias, valid, not_valid, cols, NK, scale,
            HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PAD: tl.constexpr,
            PRECISION: tl.constexpr):  # fmt: skip
    """Tile of logits in the log2 domain."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * _LOG2E)
    if HAS_BIAS:
        s += bias.to(tl.float32) * _LOG2E
    if HAS_MASK:
        s = tl.where(valid[None, :], s, not_valid)
    if PAD:
        s = tl.where((cols < NK)[None, :], s, float("-inf"))
    return s


@triton.jit
def forward_kernel(
    Q, K, V, BIAS, MASK, OUT, LSE,
    qs_b, qs_i, qs_n, qs_h, os_b, os_i, os_n, os_h, bs_b, bs_h, bs_q, ms_b, ms_i, ms_n,
    R, H, NQ, NK, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One query tile of one row and head: the output and the log-sum-exp of its logits."""
    row = tl.program_id(0)  # fastest: rows that read the same bias tile run together
    tile, h = tl.program_id(1), tl.program_id(2)
    b, i = (row // R).to(tl.int64), (row % R).to(tl.int64)
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, BLOCK_D)
    q_in, d_in = rows < NQ, d < D
    start = b * qs_b + i * qs_i + h * qs_h
    q = tl.load(Q + start + rows[:, None] * qs_n + d[None, :],
                mask=q_in[:, None] & d_in[None, :], other=0.0)  # fmt: skip
    top = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for first in range(0, NK, BLOCK_K):
        cols = first + tl.arange(0, BLOCK_K)
        k_in = cols < NK
        kv = start + cols[:, None] * qs_n + d[None, :]
        kv_in = k_in[:, None] & d_in[None, :]
        k = tl.load(K + kv, mask=kv_in, other=0.0)
        v = tl.load(V + kv, mask=kv_in, other=0.0)
        bias, valid = 0.0, k_in
        if HAS_BIAS:
            bias = tl.load(BIAS + b * bs_b + h * bs_h + rows[:, None] * bs_q + cols[None, :],
                           mask=q_in[:, None] & k_in[None, :], other=0.0)  # fmt: skip
        if HAS_MASK:
            valid = tl.load(MASK + b * ms_b + i * ms_i + cols * ms_n, mask=k_in, other=1.0) > 0.5
        s = _logits(q, k, bias, valid, _MASKED, cols, NK, scale, HAS_BIAS, HAS_MASK, PAD, PRECISION)
        new_top = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top
    out = OUT + b * os_b + i * os_i + h * os_h + rows[:, None] * os_n + d[None, :]
    tl.store(out, (acc / total[:, None]).to(OUT.dtype.element_ty),
             mask=q_in[:, None] & d_in[None, :])  # fmt: skip
    lse = tl.where(top == _MASKED, _DEAD, top + tl.log2(total))
    tl.store(LSE + (row.to(tl.int64) * H + h) * NQ + rows, lse, mask=q_in)


@triton.jit
def delta_kernel(
    OUT, DO, DELTA, os_b, os_i, os_n, os_h, R, H, N,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """delta[row, h, n] = sum over the head width of o * do."""
    row, tile, h = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, i = (row // R).to(tl.int64), (row % R).to(tl.int64)
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, BLOCK_D)
    at = b * os_b + i * os_i + h * os_h + rows[:, None] * os_n + d[None, :]
    inside = (rows < N)[:, None] & (d < D)[None, :]
    o = tl.load(OUT + at, mask=inside, other=0.0).to(tl.float32)
    do = tl.load(DO + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(DELTA + (row.to(tl.int64) * H + h) * N + rows, tl.sum(o * do, 1), mask=rows < N)


@triton.jit
def _probabilities(q, k, bias, valid, lse, cols, NK, log2_nk, scale,
                   HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PAD: tl.constexpr,
                   PRECISION: tl.constexpr):  # fmt: skip
    """The forward pass's softmax weights again, from the stored log-sum-exp."""
    if HAS_MASK:
        dead = lse == _DEAD  # every logit was -1e9: weights are 1 / NK
        lse = tl.where(dead, log2_nk, lse)
        not_valid = tl.where(dead, 0.0, _MASKED)[:, None]
    else:
        not_valid = _MASKED
    s = _logits(q, k, bias, valid, not_valid, cols, NK, scale, HAS_BIAS, HAS_MASK, PAD, PRECISION)
    return tl.exp2(s - lse[:, None])


@triton.jit
def backward_owned_kernel(
    Q, K, V, BIAS, MASK, DO, LSE, DELTA, DK, DV, PARTIAL_DK, PARTIAL_DV, PARTIAL_DB,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, os_b, os_i, os_n, os_h,
    bs_b, bs_h, bs_q, ms_b, ms_i, ms_n,
    R, H, NQ, NK, log2_nk, scale, rows_each,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PAD: tl.constexpr, SEVERAL: tl.constexpr,
    RELOAD_BIAS: tl.constexpr, WITH_DKV: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dk, dv of `rows_each` rows and one key tile, and their share of the bias gradient.

    Without WITH_DKV the bias gradient only. With several query tiles (SEVERAL) dk and dv
    grow in float32 work space that only this program touches: the bias tile must stay in
    registers over all rows.
    """
    tile, h = tl.program_id(0), tl.program_id(1)
    splits = tl.cdiv(R, rows_each)
    b, split = tl.program_id(2) // splits, tl.program_id(2) % splits
    batch = b.to(tl.int64)
    cols = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    d = tl.arange(0, BLOCK_D)
    k_in, d_in = cols < NK, d < D
    kv_in = k_in[:, None] & d_in[None, :]
    last_row = tl.minimum((split + 1) * rows_each, R)
    for first in range(0, NQ, BLOCK_Q):
        rows = first + tl.arange(0, BLOCK_Q)
        q_in = rows < NQ
        qd_in = q_in[:, None] & d_in[None, :]
        kept = 0.0
        if HAS_BIAS:
            if not RELOAD_BIAS:
                kept = tl.load(
                    BIAS + batch * bs_b + h * bs_h + rows[:, None] * bs_q + cols[None, :],
                    mask=q_in[:, None] & k_in[None, :], other=0.0)  # fmt: skip
            db = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
        for each in range(split * rows_each, last_row):
            row = batch * R + each  # int64, for offsets beyond 2**31
            i = row - batch * R
            start = batch * qs_b + i * qs_i + h * qs_h
            q = tl.load(Q + start + rows[:, None] * qs_n + d[None, :], mask=qd_in, other=0.0)
            k = tl.load(K + start + cols[:, None] * qs_n + d[None, :], mask=kv_in, other=0.0)
            v = tl.load(V + start + cols[:, None] * qs_n + d[None, :], mask=kv_in, other=0.0)
            do = tl.load(
                DO + batch * os_b + i * os_i + h * os_h + rows[:, None] * os_n + d[None, :],
                mask=qd_in, other=0.0)  # fmt: skip
            stat = (row * H + h) * NQ + rows
            lse = tl.load(LSE + stat, mask=q_in, other=float("inf"))
            delta = tl.load(DELTA + stat, mask=q_in, other=0.0)
            bias = kept
            if HAS_BIAS and RELOAD_BIAS:  # from L1; costs a load, frees registers
                bias = tl.load(
                    BIAS + batch * bs_b + h * bs_h + rows[:, None] * bs_q + cols[None, :],
                    mask=q_in[:, None] & k_in[None, :], other=0.0)  # fmt: skip
            valid = k_in
            if HAS_MASK:
                valid = (
                    tl.load(MASK + batch * ms_b + i * ms_i + cols * ms_n, mask=k_in, other=1.0)
                    > 0.5
                )
            p = _probabilities(
                q, k, bias, valid, lse, cols, NK, log2_nk, scale,
                HAS_BIAS, HAS_MASK, PAD, PRECISION,
            )  # fmt: skip
            dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
            if WITH_DKV:
                p = p.to(do.dtype)  # kept narrow: the bias gradient needs the registers
                dv = tl.dot(tl.trans(p), do, input_precision=PRECISION)
            ds = p.to(tl.float32) * (dp - delta[:, None])
            if HAS_BIAS:
                db += ds
            if WITH_DKV:
                dk = tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision=PRECISION) * scale
                if SEVERAL:
                    work = (row * H + h) * NK * D + cols[:, None] * D + d[None, :]
                    if first > 0:
                        dk += tl.load(PARTIAL_DK + work, mask=kv_in, other=0.0)
                        dv += tl.load(PARTIAL_DV + work, mask=kv_in, other=0.0)
                    if first + BLOCK_Q < NQ:
                        tl.store(PARTIAL_DK + work, dk, mask=kv_in)
                        tl.store(PARTIAL_DV + work, dv, mask=kv_in)
                if first + BLOCK_Q >= NQ:
                    to = batch * gs_b + i * gs_i + h * gs_h + cols[:, None] * gs_n + d[None, :]
                    tl.store(DK + to, dk.to(DK.dtype.element_ty), mask=kv_in)
                    tl.store(DV + to, dv.to(DV.dtype.element_ty), mask=kv_in)
        if HAS_BIAS:
            slab = ((split * tl.num_programs(1) + h).to(tl.int64) + batch * splits * H) * NQ * NK
            tl.store(PARTIAL_DB + slab + rows[:, None].to(tl.int64) * NK + cols[None, :], db,
                     mask=q_in[:, None] & k_in[None, :])  # fmt: skip


@triton.jit
def backward_dq_kernel(
    Q, K, V, BIAS, MASK, DO, LSE, DELTA, DQ,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, os_b, os_i, os_n, os_h,
    bs_b, bs_h, bs_q, ms_b, ms_i, ms_n,
    R, H, NQ, NK, log2_nk, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of one query tile of one row and head."""
    row = tl.program_id(0)
    tile, h = tl.program_id(1), tl.program_id(2)
    b, i = (row // R).to(tl.int64), (row % R).to(tl.int64)
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, BLOCK_D)
    q_in, d_in = rows < NQ, d < D
    qd_in = q_in[:, None] & d_in[None, :]
    start = b * qs_b + i * qs_i + h * qs_h
    q = tl.load(Q + start + rows[:, None] * qs_n + d[None, :], mask=qd_in, other=0.0)
    do = tl.load(DO + b * os_b + i * os_i + h * os_h + rows[:, None] * os_n + d[None, :],
                 mask=qd_in, other=0.0)  # fmt: skip
    stat = (row.to(tl.int64) * H + h) * NQ + rows
    lse = tl.load(LSE + stat, mask=q_in, other=float("inf"))
    delta = tl.load(DELTA + stat, mask=q_in, other=0.0)
    dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for first in range(0, NK, BLOCK_K):
        cols = first + tl.arange(0, BLOCK_K)
        k_in = cols < NK
        kv = start + cols[:, None] * qs_n + d[None, :]
        kv_in = k_in[:, None] & d_in[None, :]
        k = tl.load(K + kv, mask=kv_in, other=0.0)
        v = tl.load(V + kv, mask=kv_in, other=0.0)
        bias, valid = 0.0, k_in
        if HAS_BIAS:
            bias = tl.load(BIAS + b * bs_b + h * bs_h + rows[:, None] * bs_q + cols[None, :],
                           mask=q_in[:, None] & k_in[None, :], other=0.0)  # fmt: skip
        if HAS_MASK:
            valid = tl.load(MASK + b * ms_b + i * ms_i + cols * ms_n, mask=k_in, other=1.0) > 0.5
        p = _probabilities(
            q, k, bias, valid, lse, cols, NK, log2_nk, scale, HAS_BIAS, HAS_MASK, PAD, PRECISION
        )
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    to = b * gs_b + i * gs_i + h * gs_h + rows[:, None] * gs_n + d[None, :]
    tl.store(DQ + to, (dq * scale).to(DQ.dtype.element_ty), mask=qd_in)


@triton.jit
def backward_dkv_kernel(
    Q, K, V, BIAS, MASK, DO, LSE, DELTA, DK, DV,
    qs_b, qs_i, qs_n, qs_h, gs_b, gs_i, gs_n, gs_h, os_b, os_i, os_n, os_h,
    bs_b, bs_h, bs_q, ms_b, ms_i, ms_n,
    R, H, NQ, NK, log2_nk, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of one key tile of one row and head; logits lie keys first, as dk and dv do."""
    row = tl.program_id(0)
    tile, h = tl.program_id(1), tl.program_id(2)
    b, i = (row // R).to(tl.int64), (row % R).to(tl.int64)
    cols = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    d = tl.arange(0, BLOCK_D)
    k_in, d_in = cols < NK, d < D
    kv_in = k_in[:, None] & d_in[None, :]
    start = b * qs_b + i * qs_i + h * qs_h
    out_start = b * os_b + i * os_i + h * os_h
    k = tl.load(K + start + cols[:, None] * qs_n + d[None, :], mask=kv_in, other=0.0)
    v = tl.load(V + start + cols[:, None] * qs_n + d[None, :], mask=kv_in, other=0.0)
    if HAS_MASK:
        valid = tl.load(MASK + b * ms_b + i * ms_i + cols * ms_n, mask=k_in, other=1.0) > 0.5
    dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    for first in range(0, NQ, BLOCK_Q):
        rows = first + tl.arange(0, BLOCK_Q)
        q_in = rows < NQ
        qd_in = q_in[:, None] & d_in[None, :]
        q = tl.load(Q + start + rows[:, None] * qs_n + d[None, :], mask=qd_in, other=0.0)
        do = tl.load(DO + out_start + rows[:, None] * os_n + d[None, :], mask=qd_in, other=0.0)
        stat = (row.to(tl.int64) * H + h) * NQ + rows
        lse = tl.load(LSE + stat, mask=q_in, other=float("inf"))
        delta = tl.load(DELTA + stat, mask=q_in, other=0.0)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * _LOG2E)
        if HAS_BIAS:
            bias = tl.load(BIAS + b * bs_b + h * bs_h + rows[:, None] * bs_q + cols[None, :],
                           mask=q_in[:, None] & k_in[None, :], other=0.0)  # fmt: skip
            s += tl.trans(bias).to(tl.float32) * _LOG2E
        if HAS_MASK:
            dead = lse == _DEAD
            lse = tl.where(dead, log2_nk, lse)
            s = tl.where(valid[:, None], s, tl.where(dead, 0.0, _MASKED)[None, :])
        if PAD:
            s = tl.where(k_in[:, None], s, float("-inf"))
        p = tl.exp2(s - lse[None, :])
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        dp = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    to = b * gs_b + i * gs_i + h * gs_h + cols[:, None] * gs_n + d[None, :]
    tl.store(DK + to, (dk * scale).to(DK.dtype.element_ty), mask=kv_in)
    tl.store(DV + to, dv.to(DV.dtype.element_ty), mask=kv_in)
