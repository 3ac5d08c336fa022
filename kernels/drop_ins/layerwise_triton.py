# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Kernels of LAMB and LARS: norms of chunks, a factor of each tensor, the updates."""

from evofeed.kernels.ops.optimizer.triton import clipped, move_moments, store_weights
from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def _chunk(TABLE, FULL: tl.constexpr, ALIGN: tl.constexpr, CHUNK: tl.constexpr):
    """Offsets of this program's chunk, which are inside, its tensor's number and its own."""
    row = TABLE + tl.program_id(0) * 4
    start, count = tl.load(row), tl.load(row + 1)
    tensor, number = tl.load(row + 2), tl.load(row + 3)
    at = tl.arange(0, CHUNK)
    # A mask the compiler knows to be true leaves loads of 16 bytes.
    inside = tl.full([CHUNK], True, tl.int1) if FULL else at < count
    return start * ALIGN + at, inside, tensor, number


@triton.jit
def _lamb_direction(param, exp_avg, exp_avg_sq, first, inverse_root, eps, decay):
    return exp_avg * first / (tl.sqrt(exp_avg_sq) * inverse_root + eps) + decay * param


@triton.jit
def lamb_norms_kernel(
    PARAM, GRAD, EXP_AVG, EXP_AVG_SQ, SCALARS, TABLE, ADAPTED, PARTIAL, step1, step2, eps, decay,
    FULL: tl.constexpr, ALIGN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Moves the moments; sums of squares of one chunk's weights and direction."""
    at, inside, tensor, number = _chunk(TABLE, FULL, ALIGN, CHUNK)
    param = tl.load(PARAM + at, mask=inside, other=0.0)
    grad = clipped(GRAD, SCALARS, at, inside)
    exp_avg, exp_avg_sq = move_moments(EXP_AVG, EXP_AVG_SQ, SCALARS, at, inside, grad, step1, step2)
    move = _lamb_direction(
        param, exp_avg, exp_avg_sq, tl.load(SCALARS + 5), tl.load(SCALARS + 3), eps,
        decay * tl.load(ADAPTED + tensor),
    )  # fmt: skip
    tl.store(PARTIAL + 2 * number, tl.sum(param * param, 0))
    tl.store(PARTIAL + 2 * number + 1, tl.sum(move * move, 0))


@triton.jit
def lars_norms_kernel(
    PARAM, GRAD, SCALARS, TABLE, PARTIAL, FULL: tl.constexpr, ALIGN: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Sums of squares of one chunk's weights and clipped gradient."""
    at, inside, _, number = _chunk(TABLE, FULL, ALIGN, CHUNK)
    grad = clipped(GRAD, SCALARS, at, inside)
    param = tl.load(PARAM + at, mask=inside, other=0.0)
    tl.store(PARTIAL + 2 * number, tl.sum(param * param, 0))
    tl.store(PARTIAL + 2 * number + 1, tl.sum(grad * grad, 0))


@triton.jit
def ratio_kernel(PARTIAL, FIRST, ADAPTED, RATIO, trust, decay, LARS: tl.constexpr):
    """The factor of one tensor's step, from the sums of its chunks."""
    tensor = tl.program_id(0)
    weights = tl.zeros([128], tl.float32)
    moves = tl.zeros([128], tl.float32)
    last = tl.load(FIRST + tensor + 1)
    for first in range(tl.load(FIRST + tensor), last, 128):
        chunks = first + tl.arange(0, 128)
        weights += tl.load(PARTIAL + 2 * chunks, mask=chunks < last, other=0.0)
        moves += tl.load(PARTIAL + 2 * chunks + 1, mask=chunks < last, other=0.0)
    weight, move = tl.sqrt(tl.sum(weights, 0)), tl.sqrt(tl.sum(moves, 0))
    below = move + decay * weight if LARS else move
    scaled = (tl.load(ADAPTED + tensor) > 0) & (weight > 0) & (move > 0)
    tl.store(RATIO + tensor, tl.where(scaled, trust * weight / tl.maximum(below, 1e-30), 1.0))


@triton.jit
def lamb_update_kernel(
    PARAM, EXP_AVG, EXP_AVG_SQ, EMA, LOW, RATE, SCALARS, TABLE, ADAPTED, RATIO, eps, decay,
    ema_step, HAS_EMA: tl.constexpr, HAS_LOW: tl.constexpr, FULL: tl.constexpr,
    ALIGN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """LAMB's update of one chunk."""
    at, inside, tensor, _ = _chunk(TABLE, FULL, ALIGN, CHUNK)
    param = tl.load(PARAM + at, mask=inside, other=0.0)
    exp_avg = tl.load(EXP_AVG + at, mask=inside, other=0.0)
    exp_avg_sq = tl.load(EXP_AVG_SQ + at, mask=inside, other=0.0)
    move = _lamb_direction(
        param, exp_avg, exp_avg_sq, tl.load(SCALARS + 5), tl.load(SCALARS + 3), eps,
        decay * tl.load(ADAPTED + tensor),
    )  # fmt: skip
    param -= tl.load(RATE) * tl.load(SCALARS + 4) * tl.load(RATIO + tensor) * move
    store_weights(PARAM, EMA, LOW, SCALARS, at, inside, param, ema_step, HAS_EMA, HAS_LOW)


@triton.jit
def lars_update_kernel(
    PARAM, GRAD, MOMENTUM, EMA, LOW, RATE, SCALARS, TABLE, ADAPTED, RATIO, momentum, decay,
    ema_step, HAS_EMA: tl.constexpr, HAS_LOW: tl.constexpr, FULL: tl.constexpr,
    ALIGN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """LARS's update of one chunk."""
    at, inside, tensor, _ = _chunk(TABLE, FULL, ALIGN, CHUNK)
    finite = tl.load(SCALARS + 4)
    grad = clipped(GRAD, SCALARS, at, inside)
    param = tl.load(PARAM + at, mask=inside, other=0.0)
    before = tl.load(MOMENTUM + at, mask=inside, other=0.0)
    move = grad + decay * tl.load(ADAPTED + tensor) * param
    after = momentum * before + tl.load(RATE) * tl.load(RATIO + tensor) * move
    after = tl.where(finite > 0, after, before)
    tl.store(MOMENTUM + at, after, mask=inside)
    param -= finite * after
    store_weights(PARAM, EMA, LOW, SCALARS, at, inside, param, ema_step, HAS_EMA, HAS_LOW)
