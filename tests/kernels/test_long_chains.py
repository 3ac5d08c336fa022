"""Every op with tensors just below and just above 2^31 numbers, where 32-bit offsets would end.

On a GPU the sizes are those of chains of about 3,000 residues; on a CPU the same checks run at
a size that means nothing there but proves the references. A few lines of each result are
compared with the reference on the lines that they depend on, and so are the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from evofeed.kernels import layer_norm, masked_softmax, pair_bias, reference
from evofeed.kernels.ops.attention.op import biased_attention
from evofeed.kernels.ops.gated_attention.op import gated_attention
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.global_attention.op import global_column_attention
from evofeed.kernels.ops.optimizer.op import FusedAdamEMA
from evofeed.kernels.ops.outer_product_mean.op import outer_product_mean
from evofeed.kernels.ops.outer_product_mean.reference import OuterWeights
from evofeed.kernels.ops.transition.op import transition
from evofeed.kernels.ops.transition.reference import TransitionWeights
from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights

GPU = torch.cuda.is_available()
LIMIT = 2**31 if GPU else 2**12
STEP = 8 if GPU else 1  # the kernels for Hopper cards take such sizes
NEAR = 3e-2  # of 16 bits; a wrong address gives 1 and more
NEAR_GRADIENT = 0.1  # where a relu of few rows may fall to its other side

Sizes = dict[str, int]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One op at one size.

    Attributes:
        inputs: tensors in 16 bits; those named `mask` have no gradient.
        run: the op on them.
        take: the lines of its result that are compared.
        expected: these lines from the inputs in float32, by the reference.
        part: the lines of the first input whose gradient is compared, all others being 0,
            or None for all of it.
    """

    inputs: Tensors
    run: Callable[[Tensors], Tensor]
    take: Callable[[Tensor], Tensor]
    expected: Callable[[Tensors], Tensor]
    part: Callable[[Tensor], Tensor] | None = None


def _rand(*shape: int, scale: float = 1.0) -> Tensor:
    """In 16 bits, made a piece at a time."""
    dtype, device = (torch.bfloat16, "cuda") if GPU else (torch.float16, "cpu")
    out = torch.empty(shape, dtype=dtype, device=device)
    for piece in out.view(-1).split(1 << 28):
        piece.normal_(0, scale)
    return out


def _weight(n: int, k: int) -> Tensor:
    return _rand(n, k, scale=k**-0.5)


def _lines(n: int) -> list[int]:
    return [0, n // 2, n - 1]


def _square(per: int, above: bool) -> int:
    """R, so that R * R * per is just below or above the limit."""
    below = math.isqrt((LIMIT - 1) // per) // STEP * STEP
    return below + STEP if above else below


def _rows(per: int, above: bool) -> int:
    """M, so that M * per is just below or above the limit."""
    below = (LIMIT - 1) // per // STEP * STEP
    return below + STEP if above else below


C, HEADS, WIDTH = 64, 4, 16


def _attention_weights(pair: bool) -> Tensors:
    k = HEADS * WIDTH
    made = {name: _weight(k, C) for name in "qkvg"}
    made |= {"norm_weight": _rand(C), "norm_bias": _rand(C), "g_bias": _rand(k)}
    made |= {"o": _weight(C, k), "o_bias": _rand(C)}
    return made | ({"pair": _weight(HEADS, C)} if pair else {})


def _attention_of(t: Tensors) -> AttentionWeights:
    return AttentionWeights(**{n: v for n, v in t.items() if n not in ("x", "mask")})


def _triangle_attention(above: bool, ending: bool) -> Case:
    R = _square(4 * HEADS * WIDTH, above)
    axis = 2 if ending else 1
    lines = _lines(R)

    def expected(t: Tensors) -> Tensor:
        w = dict(t)
        x, pair = w.pop("x"), w.pop("pair")
        x = x.transpose(1, 2) if ending else x
        bias = reference.pair_bias(x, w["norm_weight"], w["norm_bias"], pair)
        return reference.gated_attention(x[:, lines], _attention_of(w), HEADS, bias=bias)

    return Case(
        {"x": _rand(1, R, R, C), **_attention_weights(pair=True)},
        lambda t: gated_attention(t["x"], _attention_of(t), HEADS, columns=ending),
        lambda out: out.movedim(axis, 1)[:, lines],
        expected,
    )


def _column_attention(above: bool) -> Case:
    R = 256 if GPU else 8
    S = _rows(4 * HEADS * WIDTH * R, above)
    S, R = R, S  # few sequences, long chains
    lines = _lines(R)
    mask = (torch.rand(1, S, R, device=_rand(1).device) > 0.1).float()
    return Case(
        {"x": _rand(1, S, R, C), "mask": mask, **_attention_weights(pair=False)},
        lambda t: gated_attention(
            t["x"], _attention_of(t), HEADS, mask=t["mask"], columns=True, residual=True
        ),
        lambda out: out[:, :, lines],
        lambda t: reference.gated_attention(
            t["x"][:, :, lines], _attention_of(t), HEADS, mask=t["mask"][:, :, lines],
            columns=True, residual=True,
        ),
    )  # fmt: skip


def _global_attention(above: bool) -> Case:
    R = 4096 if GPU else 8
    S = _rows(C * R, above)
    lines = _lines(R)
    weights = _attention_weights(pair=False)
    weights |= {name: _weight(WIDTH, C) for name in "kv"}
    mask = (torch.rand(1, S, R, device=_rand(1).device) > 0.1).float()
    return Case(
        {"x": _rand(1, S, R, C), "mask": mask, **weights},
        lambda t: global_column_attention(t["x"], _attention_of(t), HEADS, t["mask"]),
        lambda out: out[:, :, lines],
        lambda t: reference.global_column_attention(
            t["x"][:, :, lines], _attention_of(t), HEADS, t["mask"][:, :, lines]
        ),
    )


def _triangle_multiplication(above: bool, outgoing: bool) -> Case:
    """Four templates: only the last one's numbers lie beyond the limit."""
    R, B = _square(4 * C, above), 4
    names = TriangleWeights.__slots__

    def weight(name: str) -> Tensor:
        return _rand(C) if name.endswith("bias") or name.startswith("norm") else _weight(C, C)

    def of(t: Tensors) -> TriangleWeights:
        return TriangleWeights(**{n: t[n] for n in names})

    return Case(
        {"pairs": _rand(B, R, R, C), **{n: weight(n) for n in names}},
        lambda t: triangle_multiplication(t["pairs"], of(t), outgoing=outgoing),
        lambda out: out[-1:, _lines(R)],
        lambda t: reference.triangle_multiplication(t["pairs"][-1:], of(t), outgoing=outgoing)[
            :, _lines(R)
        ],
        lambda pairs: pairs[-1:],
    )


def _transition(above: bool) -> Case:
    M, some = _rows(4 * C, above), slice(-64 if GPU else -4, None)
    weights = {"norm_weight": _rand(C), "norm_bias": _rand(C), "w1": _weight(4 * C, C)}
    weights |= {"b1": _rand(4 * C), "w2": _weight(C, 4 * C), "b2": _rand(C)}

    def of(t: Tensors) -> TransitionWeights:
        return TransitionWeights(**{n: v for n, v in t.items() if n != "x"})

    return Case(
        {"x": _rand(M, C), **weights},
        lambda t: transition(t["x"], of(t), residual=True),
        lambda out: out[some],
        lambda t: reference.transition(t["x"][some], of(t), residual=True),
        lambda x: x[some],
    )


def _outer_product_mean(above: bool) -> Case:
    E, S = 16, 8
    R = _square(E * E, above)
    lines = _lines(R)
    weights = {"norm_weight": _rand(C), "norm_bias": _rand(C), "w1": _weight(E, C)}
    weights |= {"b1": _rand(E), "w2": _weight(E, C), "b2": _rand(E)}
    weights |= {"out": _weight(C, E * E), "out_bias": _rand(C)}
    mask = torch.ones(1, S, R, device=_rand(1).device)

    def of(t: Tensors) -> OuterWeights:
        return OuterWeights(**{n: v for n, v in t.items() if n not in ("m", "mask")})

    def expected(t: Tensors) -> Tensor:
        w = of(t)
        mn = reference.layer_norm(t["m"], w.norm_weight, w.norm_bias)
        a = torch.nn.functional.linear(mn[:, :, lines], w.w1, w.b1)
        b = torch.nn.functional.linear(mn, w.w2, w.b2)
        outer = torch.einsum("bsic,bsje->bijce", a, b).flatten(-2)
        return torch.nn.functional.linear(outer, w.out, w.out_bias) / (S + 1e-3)

    return Case(
        {"m": _rand(1, S, R, C), "mask": mask, **weights},
        lambda t: outer_product_mean(t["m"], of(t), t["mask"]),
        lambda out: out[:, lines],
        expected,
    )


def _pair_bias(above: bool) -> Case:
    R = _square(C, above)
    lines = _lines(R)
    return Case(
        {"z": _rand(1, R, R, C), "gamma": _rand(C), "beta": _rand(C), "w": _weight(HEADS, C)},
        lambda t: pair_bias(*t.values()),
        lambda out: out[:, :, lines],
        lambda t: reference.pair_bias(t["z"][:, lines], t["gamma"], t["beta"], t["w"]),
        lambda z: z[:, lines],
    )


def _layer_norm(above: bool) -> Case:
    M, some = _rows(C, above), slice(-64 if GPU else -4, None)
    return Case(
        {"x": _rand(M, C), "w": _rand(C), "b": _rand(C)},
        lambda t: layer_norm(*t.values()),
        lambda out: out[some],
        lambda t: reference.layer_norm(t["x"][some], t["w"], t["b"]),
        lambda x: x[some],
    )


def _masked_softmax(above: bool) -> Case:
    N = 512 if GPU else 8
    R = _rows(HEADS * N * N, above)
    some = [0, R - 1]
    return Case(
        {"x": _rand(1, R, HEADS, N, N), "bias": _rand(1, HEADS, N, N)},
        lambda t: masked_softmax(t["x"], None, t["bias"]),
        lambda out: out[:, some],
        lambda t: reference.masked_softmax(t["x"][:, some], None, t["bias"]),
        lambda x: x[:, some],
    )


def _biased_attention(above: bool) -> Case:
    N = 256 if GPU else 8
    R = _rows(HEADS * WIDTH * N, above)
    some = [0, R - 1]
    shape = (1, R, N, HEADS, WIDTH)
    return Case(
        {"q": _rand(*shape), "k": _rand(*shape), "v": _rand(*shape), "b": _rand(1, HEADS, N, N)},
        lambda t: biased_attention(*t.values()),
        lambda out: out[:, some],
        lambda t: reference.biased_attention(
            *(t[n][:, some] for n in "qkv"), t["b"]
        ),
        lambda x: x[:, some],
    )  # fmt: skip


CASES: dict[str, Callable[[bool], Case]] = {
    "starting node": lambda above: _triangle_attention(above, ending=False),
    "ending node": lambda above: _triangle_attention(above, ending=True),
    "column attention": _column_attention,
    "global column attention": _global_attention,
    "triangle multiplication, outgoing": lambda above: _triangle_multiplication(above, True),
    "triangle multiplication, incoming": lambda above: _triangle_multiplication(above, False),
    "transition": _transition,
    "outer product mean": _outer_product_mean,
    "pair bias": _pair_bias,
    "layer norm": _layer_norm,
    "masked softmax": _masked_softmax,
    "biased attention": _biased_attention,
}


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """One case fills most of a card."""
    yield
    if GPU:
        torch.cuda.empty_cache()


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """So that what is made on the way to one number about them all is small."""
    return tensor.reshape(-1).split(1 << 27)


def _count_nonzero(tensor: Tensor) -> int:
    return sum(int(torch.count_nonzero(piece)) for piece in _pieces(tensor))


def _error(ours: Tensor, exact: Tensor) -> float:
    wrong = size = 0.0
    for a, b in zip(_pieces(ours), _pieces(exact), strict=True):
        assert torch.isfinite(a).all()
        wrong += float((a.float() - b).norm()) ** 2
        size += float(b.norm()) ** 2
    return math.sqrt(wrong / max(size, 1e-60))


SIDES = [False, True] if GPU else [True]


@pytest.mark.gpu
@pytest.mark.parametrize("above", SIDES)
@pytest.mark.parametrize("name", list(CASES))
def test_an_op_reads_and_writes_its_own_numbers_on_either_side_of_the_limit(
    name: str, above: bool
) -> None:
    case = CASES[name](above)
    with torch.no_grad():
        alone = case.take(case.run(case.inputs)).clone()  # as inference runs it
    leaves = {n: t.requires_grad_("mask" not in n) for n, t in case.inputs.items()}
    taken = case.take(case.run(leaves))
    assert torch.equal(taken, alone)
    # Ours is done and gone before the reference begins: together they fill more than 80 GB.
    cotangent, taken_of = torch.randn_like(taken), taken.detach()
    active = [n for n, t in leaves.items() if t.requires_grad]
    ours = torch.autograd.grad(taken, [leaves[n] for n in active], cotangent)
    changed = _count_nonzero(ours[0])
    if case.part is not None:
        ours = (case.part(ours[0]).clone(), *ours[1:])
    del taken
    wide = {n: t.detach().float().requires_grad_(t.requires_grad) for n, t in leaves.items()}
    exact = case.expected(wide)
    assert _error(taken_of, exact.detach()) < NEAR
    theirs = torch.autograd.grad(exact, [wide[n] for n in active], cotangent.float())
    largest = max(float(t.norm()) for t in theirs[1:])
    for number, (n, a, b) in enumerate(zip(active, ours, theirs, strict=True)):
        if number == 0 and case.part is not None:
            assert changed <= _count_nonzero(b) * 1.01
            b = case.part(b)
        if number and float(b.norm()) < 1e-3 * largest:  # a shift of all logits changes nothing
            continue
        assert _error(a, b) < NEAR_GRADIENT, n


@pytest.mark.gpu
@pytest.mark.parametrize("above", SIDES)
def test_an_optimizer_updates_the_last_of_its_weights(above: bool) -> None:
    size = _rows(1, above) + 1  # an odd tail
    device = _rand(1).device
    param, grad = torch.empty(size, device=device), torch.empty(size, device=device)
    param.normal_()
    grad.normal_()
    moments = [torch.zeros(size, device=device) for _ in range(2)]
    last = [t[-100_000:].clone() for t in (param, grad)]
    optimizer = FusedAdamEMA(param, grad, *moments, max_norm=math.inf)
    optimizer.rate.fill_(0.1)
    norm = optimizer.step()
    assert float(norm) == pytest.approx(float(grad.norm()), rel=1e-3)
    few = [torch.zeros_like(last[0]) for _ in range(2)]
    small = FusedAdamEMA(*last, *few, max_norm=math.inf)
    small.rate.fill_(0.1)
    small.step()
    assert torch.equal(param[-100_000:], last[0])
