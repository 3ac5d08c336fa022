# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Softmax kernels.

A program owns some lines of the bias and walks over the rows that share them:
the bias is read once, and its gradient is summed in registers and stored once.

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
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Y = softmax(X + bias, masked) for some lines of the bias and `rows_each` rows."""
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    keys = tl.arange(0, BLOCK_K)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    lines_in = q < Q
    bias = None
    if HAS_BIAS:
        bias = _rows_of(BIAS, ((b * H + h) * Q + q) * K, keys, lines_in, K)
    last = tl.minimum((tl.program_id(2) + 1) * rows_each, R)
    for row in tl.range(tl.program_id(2) * rows_each, last, num_stages=STAGES):
        at = (((b * R + row) * H + h) * Q + q) * K
        mask = MASK + b * ms_b + (b * 0 + row) * ms_r if HAS_MASK else MASK  # in b's 64 bits
        s = _logits(X, mask, bias, at, keys, lines_in, K, HAS_BIAS, HAS_MASK)
        p = tl.exp(s - tl.max(s, 1)[:, None])
        _store_rows(Y, at, keys, lines_in, K, p / tl.sum(p, 1)[:, None])


@triton.jit
def softmax_backward_kernel(
    Y, DY, DX, PARTIAL, R, H, Q, K, rows_each,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """DX, and with HAS_BIAS each program's sum over rows in PARTIAL."""
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    keys = tl.arange(0, BLOCK_K)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    lines_in = q < Q
    dbias = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    last = tl.minimum((tl.program_id(2) + 1) * rows_each, R)
    for row in tl.range(tl.program_id(2) * rows_each, last, num_stages=STAGES):
        at = (((b * R + row) * H + h) * Q + q) * K
        p, g = _rows_of(Y, at, keys, lines_in, K), _rows_of(DY, at, keys, lines_in, K)
        ds = p * (g - tl.sum(p * g, 1)[:, None])
        _store_rows(DX, at, keys, lines_in, K, ds)
        dbias += ds
    if HAS_BIAS:
        slab = (((b * tl.num_programs(2) + tl.program_id(2)) * H + h) * Q + q) * K
        _store_rows(PARTIAL, slab, keys, lines_in, K, dbias)
