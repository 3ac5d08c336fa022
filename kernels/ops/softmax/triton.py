# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Softmax kernels.

A program owns some lines of the bias and walks over the rows that share them:
the bias is read once, and its gradient is summed in registers and stored once.
A tile's width must be a power of two: 384 keys are three tiles of 128, not one of 512.

Letters: B batch, R rows that attend, H heads, Q queries, K keys.
"""

from evofeed.kernels.runtime.backend import tl, triton

_MASKED = tl.constexpr(-1.0e9)


@triton.jit
def _logits(
    X, MASK, bias, at, keys, lines_in, K, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr
):  # fmt: skip
    """Biased logits of some keys, -inf after the last key. `at` and `MASK`: of a row's key 0."""
    inside = lines_in[:, None] & (keys < K)[None, :]
    s = tl.load(X + at[:, None] + keys[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        s += bias
    if HAS_MASK:
        mask = tl.load(MASK + keys, mask=keys < K, other=1.0)
        s = tl.where(mask.to(tl.float32)[None, :] > 0.5, s, _MASKED)
    return tl.where((keys < K)[None, :], s, float("-inf"))


@triton.jit
def _rows_of(TENSOR, at, keys, lines_in, K):
    inside = lines_in[:, None] & (keys < K)[None, :]
    return tl.load(TENSOR + at[:, None] + keys[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store_rows(TENSOR, at, keys, lines_in, K, value):
    inside = lines_in[:, None] & (keys < K)[None, :]
    place = TENSOR + at[:, None] + keys[None, :]
    tl.store(place, value.to(TENSOR.dtype.element_ty), mask=inside)


@triton.jit
def softmax_forward_kernel(
    X, MASK, BIAS, Y, ms_b, ms_r, R, H, Q, K, rows_each,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, THREE: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Y = softmax(X + bias, masked) for some lines of the bias and `rows_each` rows."""
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    k0 = tl.arange(0, BLOCK_K)
    k1, k2 = k0 + BLOCK_K, k0 + 2 * BLOCK_K
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    lines_in = q < Q
    bias0, bias1, bias2 = None, None, None
    if HAS_BIAS:
        line = ((b * H + h) * Q + q) * K
        bias0 = _rows_of(BIAS, line, k0, lines_in, K)
        if THREE:
            bias1 = _rows_of(BIAS, line, k1, lines_in, K)
            bias2 = _rows_of(BIAS, line, k2, lines_in, K)
    last = tl.minimum((tl.program_id(2) + 1) * rows_each, R)
    for row in tl.range(tl.program_id(2) * rows_each, last, num_stages=STAGES):
        at = (((b * R + row) * H + h) * Q + q) * K
        mask = MASK + b * ms_b + (b * 0 + row) * ms_r if HAS_MASK else MASK  # in b's 64 bits
        s0 = _logits(X, mask, bias0, at, k0, lines_in, K, HAS_BIAS, HAS_MASK)
        most = tl.max(s0, 1)
        if THREE:
            s1 = _logits(X, mask, bias1, at, k1, lines_in, K, HAS_BIAS, HAS_MASK)
            s2 = _logits(X, mask, bias2, at, k2, lines_in, K, HAS_BIAS, HAS_MASK)
            most = tl.max(tl.maximum(tl.maximum(s0, s1), s2), 1)
        p0 = tl.exp(s0 - most[:, None])
        total = p0
        if THREE:
            p1, p2 = tl.exp(s1 - most[:, None]), tl.exp(s2 - most[:, None])
            total = p0 + p1 + p2
        share = (1.0 / tl.sum(total, 1))[:, None]
        _store_rows(Y, at, k0, lines_in, K, p0 * share)
        if THREE:
            _store_rows(Y, at, k1, lines_in, K, p1 * share)
            _store_rows(Y, at, k2, lines_in, K, p2 * share)


@triton.jit
def softmax_backward_kernel(
    Y, DY, DX, PARTIAL, R, H, Q, K, rows_each,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, THREE: tl.constexpr, HAS_BIAS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """DX, and with HAS_BIAS each program's sum over rows in PARTIAL."""
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    k0 = tl.arange(0, BLOCK_K)
    k1, k2 = k0 + BLOCK_K, k0 + 2 * BLOCK_K
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    lines_in = q < Q
    db0 = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    if THREE:
        db1 = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
        db2 = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    last = tl.minimum((tl.program_id(2) + 1) * rows_each, R)
    for row in tl.range(tl.program_id(2) * rows_each, last, num_stages=STAGES):
        at = (((b * R + row) * H + h) * Q + q) * K
        p0, g0 = _rows_of(Y, at, k0, lines_in, K), _rows_of(DY, at, k0, lines_in, K)
        total = p0 * g0
        if THREE:
            p1, g1 = _rows_of(Y, at, k1, lines_in, K), _rows_of(DY, at, k1, lines_in, K)
            p2, g2 = _rows_of(Y, at, k2, lines_in, K), _rows_of(DY, at, k2, lines_in, K)
            total += p1 * g1 + p2 * g2
        delta = tl.sum(total, 1)[:, None]
        ds0 = p0 * (g0 - delta)
        _store_rows(DX, at, k0, lines_in, K, ds0)
        db0 += ds0
        if THREE:
            ds1, ds2 = p1 * (g1 - delta), p2 * (g2 - delta)
            _store_rows(DX, at, k1, lines_in, K, ds1)
            _store_rows(DX, at, k2, lines_in, K, ds2)
            db1 += ds1
            db2 += ds2
    if HAS_BIAS:
        slab = (((b * tl.num_programs(2) + tl.program_id(2)) * H + h) * Q + q) * K
        _store_rows(PARTIAL, slab, k0, lines_in, K, db0)
        if THREE:
            _store_rows(PARTIAL, slab, k1, lines_in, K, db1)
            _store_rows(PARTIAL, slab, k2, lines_in, K, db2)
