# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Kernels of the optimizers: the gradient's norm, the scalars of a step, and Adam's update."""

from evofeed.kernels.runtime.backend import tl, triton


@triton.jit
def square_sum_kernel(GRAD, PARTIAL, N, aligned, BLOCK: tl.constexpr):
    """Sum of squares of every `num_programs`-th block, one partial sum per program.

    `aligned` is N rounded down to a multiple of 16: only then are the loads 16 bytes wide.
    """
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(0).to(tl.int64) * BLOCK, aligned, tl.num_programs(0) * BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        grad = tl.load(GRAD + offsets, mask=offsets < aligned, other=0.0).to(tl.float32)
        total += grad * grad
    if tl.program_id(0) == 0:
        offsets = aligned + tl.arange(0, BLOCK)
        grad = tl.load(GRAD + offsets, mask=offsets < N, other=0.0).to(tl.float32)
        total += grad * grad
    tl.store(PARTIAL + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def scalars_kernel(
    PARTIAL, G, RATE, UPDATES, SCALARS, max_norm, log2_beta1, log2_beta2, BLOCK: tl.constexpr
):  # fmt: skip
    """SCALARS = norm, clip factor, step size, 1 / sqrt(second correction), finite (1 or 0)."""
    offsets = tl.arange(0, BLOCK)
    norm = tl.sqrt(tl.sum(tl.load(PARTIAL + offsets, mask=offsets < G, other=0.0), 0))
    finite = ((norm == norm) & (norm < float("inf"))).to(tl.float32)
    updates = tl.load(UPDATES) + finite.to(tl.float64)
    tl.store(UPDATES, updates)
    # float64: 1 - beta2**t has three digits fewer than beta2**t
    unit = tl.full([], 1.0, tl.float64)
    correction1 = unit - tl.exp2(updates * log2_beta1)
    correction2 = unit - tl.exp2(updates * log2_beta2)
    # before the first finite step both corrections vanish
    correction1 = tl.maximum(correction1, 1e-12).to(tl.float32)
    correction2 = tl.maximum(correction2, 1e-12).to(tl.float32)
    clip = tl.minimum(max_norm / (norm + 1e-6), 1.0)
    tl.store(SCALARS, norm)
    tl.store(SCALARS + 1, tl.where(finite > 0, clip, 0.0))
    tl.store(SCALARS + 2, tl.load(RATE) * finite / correction1)
    tl.store(SCALARS + 3, 1.0 / tl.sqrt(correction2))
    tl.store(SCALARS + 4, finite)


@triton.jit
def adam_update_kernel(
    PARAM, GRAD, EXP_AVG, EXP_AVG_SQ, EMA, LOW, SCALARS, N, step1, step2, eps, ema_step,
    HAS_EMA: tl.constexpr, HAS_LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adam's update of one block, with the moving average and the 16-bit copy."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < N
    # the gradient times the clip factor; zeros if its norm is not finite
    finite = tl.load(SCALARS + 4)
    grad = tl.load(GRAD + offsets, mask=inside, other=0.0).to(tl.float32)
    grad = tl.where(finite > 0, grad, 0.0) * tl.load(SCALARS + 1)
    param = tl.load(PARAM + offsets, mask=inside, other=0.0)
    exp_avg = tl.load(EXP_AVG + offsets, mask=inside, other=0.0)
    exp_avg_sq = tl.load(EXP_AVG_SQ + offsets, mask=inside, other=0.0)
    exp_avg += (grad - exp_avg) * (step1 * finite)
    exp_avg_sq += (grad * grad - exp_avg_sq) * (step2 * finite)
    tl.store(EXP_AVG + offsets, exp_avg, mask=inside)
    tl.store(EXP_AVG_SQ + offsets, exp_avg_sq, mask=inside)
    denominator = tl.sqrt(exp_avg_sq) * tl.load(SCALARS + 3) + eps
    param -= tl.load(SCALARS + 2) * exp_avg / denominator
    tl.store(PARAM + offsets, param, mask=inside)
    if HAS_EMA:
        ema = tl.load(EMA + offsets, mask=inside, other=0.0)
        ema += (param - ema) * (ema_step * finite)
        tl.store(EMA + offsets, ema, mask=inside)
    if HAS_LOW:
        tl.store(LOW + offsets, param.to(LOW.dtype.element_ty), mask=inside)
