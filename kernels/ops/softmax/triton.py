# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Softmax kernels.

A program owns some queries of the bias and loops over the rows that share them:
the bias is read once, and its gradient is summed in registers and stored once.

Letters: B batch, R rows that attend, H heads, Q queries, K keys.
"""

from evofeed.kernels.runtime.backend import tl, triton

_MASKED = tl.constexpr(-1.0e9)


@triton.jit
def _logits(
    X, MASK, bias, offsets, keys, q_in, K, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr
):  # fmt: skip
    """Biased logits of some keys, -inf from K on. `offsets` and `MASK` are those of key 0."""
    inside = q_in[:, None] & (keys < K)[None, :]
    s = tl.load(X + offsets[:, None] + keys[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        s += bias
    if HAS_MASK:
        mask = tl.load(MASK + keys, mask=keys < K, other=1.0)
        s = tl.where(mask.to(tl.float32)[None, :] > 0.5, s, _MASKED)
    return tl.where((keys < K)[None, :], s, float("-inf"))


@triton.jit
def _load_rows(TENSOR, offsets, keys, q_in, K):
    inside = q_in[:, None] & (keys < K)[None, :]
    return tl.load(TENSOR + offsets[:, None] + keys[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store_rows(TENSOR, offsets, keys, q_in, K, value):
    inside = q_in[:, None] & (keys < K)[None, :]
    pointers = TENSOR + offsets[:, None] + keys[None, :]
    tl.store(pointers, value.to(TENSOR.dtype.element_ty), mask=inside)


@triton.jit
def softmax_forward_kernel(
    X, MASK, BIAS, Y, ms_b, ms_r, R, H, Q, K, rows_each,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Y = softmax(X + bias, masked) for some queries of `rows_each` rows."""
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    keys = tl.arange(0, BLOCK_K)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    q_in = q < Q
    bias = None
    if HAS_BIAS:
        bias = _load_rows(BIAS, ((b * H + h) * Q + q) * K, keys, q_in, K)
    last = tl.minimum((tl.program_id(2) + 1) * rows_each, R)
    for row in tl.range(tl.program_id(2) * rows_each, last, num_stages=STAGES):
        offsets = (((b * R + row) * H + h) * Q + q) * K
        mask = MASK + b * ms_b + (b * 0 + row) * ms_r if HAS_MASK else MASK  # in 64 bits, as b
        s = _logits(X, mask, bias, offsets, keys, q_in, K, HAS_BIAS, HAS_MASK)
        p = tl.exp(s - tl.max(s, 1)[:, None])
        _store_rows(Y, offsets, keys, q_in, K, p / tl.sum(p, 1)[:, None])


@triton.jit
def softmax_backward_kernel(
    Y, DY, DX, PARTIAL, R, H, Q, K, rows_each,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """DX, and with HAS_BIAS each program's sum over rows in PARTIAL."""
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    keys = tl.arange(0, BLOCK_K)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    q_in = q < Q
    dbias = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    last = tl.minimum((tl.program_id(2) + 1) * rows_each, R)
    for row in tl.range(tl.program_id(2) * rows_each, last, num_stages=STAGES):
        offsets = (((b * R + row) * H + h) * Q + q) * K
        p, g = _load_rows(Y, offsets, keys, q_in, K), _load_rows(DY, offsets, keys, q_in, K)
        ds = p * (g - tl.sum(p * g, 1)[:, None])
        _store_rows(DX, offsets, keys, q_in, K, ds)
        dbias += ds
    if HAS_BIAS:
        slab = (((b * tl.num_programs(2) + tl.program_id(2)) * H + h) * Q + q) * K
        _store_rows(PARTIAL, slab, keys, q_in, K, dbias)
