# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Kernels of the optimizers: the gradient's norm, the scalars of a step, and Adam's update."""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def square_sum_kernel(GRAD, PARTIAL, N, whole, BLOCK: tl.constexpr):
    """Sum of squares of every `num_programs`-th block, one partial sum per program.

    `whole` is N down to a multiple of 16: only then are the loads 16 bytes wide.
    """
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK, whole, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        grad = tl.load(GRAD + at, mask=at < whole, other=0.0).to(tl.float32)
        total += grad * grad
    if tl.program_id(0) == 0:
        at = whole + tl.arange(0, BLOCK)
        grad = tl.load(GRAD + at, mask=at < N, other=0.0).to(tl.float32)
        total += grad * grad
    tl.store(PARTIAL + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def scalars_kernel(
    PARTIAL, G, RATE, UPDATES, SCALARS, max_norm, log2_beta1, log2_beta2, BLOCK: tl.constexpr
):  # fmt: skip
    """SCALARS = norm, clip factor, step size, 1 / root of the second correction, finite or 0."""
    at = tl.arange(0, BLOCK)
    norm = tl.sqrt(tl.sum(tl.load(PARTIAL + at, mask=at < G, other=0.0), 0))
    finite = ((norm == norm) & (norm < float("inf"))).to(tl.float32)
    updates = tl.load(UPDATES) + finite.to(tl.float64)
    tl.store(UPDATES, updates)
    # float64: 1 - beta2**t has three digits less than beta2**t itself
    one = tl.full([], 1.0, tl.float64)
    first = one - tl.exp2(updates * log2_beta1)
    second = one - tl.exp2(updates * log2_beta2)
    # before the first finite step both corrections vanish
    first = tl.maximum(first, 1e-12).to(tl.float32)
    second = tl.maximum(second, 1e-12).to(tl.float32)
    clip = tl.minimum(max_norm / (norm + 1e-6), 1.0)
    tl.store(SCALARS, norm)
    tl.store(SCALARS + 1, tl.where(finite > 0, clip, 0.0))
    tl.store(SCALARS + 2, tl.load(RATE) * finite / first)
    tl.store(SCALARS + 3, 1.0 / tl.sqrt(second))
    tl.store(SCALARS + 4, finite)


@triton.jit
def adam_update_kernel(
    PARAM, GRAD, EXP_AVG, EXP_AVG_SQ, EMA, LOW, SCALARS, N, step1, step2, eps, ema_step,
    HAS_EMA: tl.constexpr, HAS_LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adam's update of one block, with the moving average and the 16-bit copy."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    # the gradient times the clip factor; zeros where the whole is not finite
    finite = tl.load(SCALARS + 4)
    grad = tl.load(GRAD + at, mask=inside, other=0.0).to(tl.float32)
    grad = tl.where(finite > 0, grad, 0.0) * tl.load(SCALARS + 1)
    param = tl.load(PARAM + at, mask=inside, other=0.0)
    exp_avg = tl.load(EXP_AVG + at, mask=inside, other=0.0)
    exp_avg_sq = tl.load(EXP_AVG_SQ + at, mask=inside, other=0.0)
    exp_avg += (grad - exp_avg) * (step1 * finite)
    exp_avg_sq += (grad * grad - exp_avg_sq) * (step2 * finite)
    tl.store(EXP_AVG + at, exp_avg, mask=inside)
    tl.store(EXP_AVG_SQ + at, exp_avg_sq, mask=inside)
    below = tl.sqrt(exp_avg_sq) * tl.load(SCALARS + 3) + eps
    param -= tl.load(SCALARS + 2) * exp_avg / below
    tl.store(PARAM + at, param, mask=inside)
    if HAS_EMA:
        ema = tl.load(EMA + at, mask=inside, other=0.0)
        ema += (param - ema) * (ema_step * finite)
        tl.store(EMA + at, ema, mask=inside)
    if HAS_LOW:
        tl.store(LOW + at, param.to(LOW.dtype.element_ty), mask=inside)
