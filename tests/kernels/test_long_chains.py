"""Every op with tensors just below and just above 2^31 numbers, where 32-bit offsets would end.

The sizes are those of chains of about 3,000 residues. A few lines of each result are compared
with the reference on the lines that they depend on, and so are the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LIMIT = 2**31
STEP = 8  # the kernels for Hopper cards take such sizes
NEAR = 3e-2  # of 16 bits; a wrong address gives 1 and more
NEAR_GRADIENT = 0.1  # where a relu of few rows may fall to its other side

Tensors = dict[str, Tensor]
Call = Callable[[Callable[..., Tensor], Tensors], Tensor]


@dataclass(frozen=True)
class Case:
    """One op at one size.

    Attributes:
        op: it, and what computes the same in plain PyTorch.
        inputs: tensors in 16 bits; those named `mask` have no gradient.
        call: either of them on these.
        lines: of the result, which are compared.
        axes: of the inputs, by name, and of the result (""), along which they lie.
        part: whether only these lines of the first input have a gradient.
        expected: the lines of the result in plain PyTorch, where other lines count too.
    """

    op: tuple[Callable[..., Tensor], Callable[..., Tensor]]
    inputs: Tensors
    call: Call
    lines: list[int]
    axes: dict[str, int]
    part: bool = False
    expected: Callable[[Tensors], Tensor] | None = None

    def run(self, t: Tensors) -> Tensor:
        return self._taken("", self.call(self.op[0], t))

    def plain(self, t: Tensors) -> Tensor:
        if self.expected is not None:
            return self.expected(t)
        return self.call(self.op[1], {n: self._taken(n, x) for n, x in t.items()})

    def part_of(self, gradient: Tensor) -> Tensor:
        return self._taken(next(iter(self.inputs)), gradient)

    def _taken(self, name: str, t: Tensor) -> Tensor:
        if name not in self.axes:
            return t
        return t[(slice(None),) * self.axes[name] + (self.lines,)]


def _rand(*shape: int, scale: float = 1.0) -> Tensor:
    """In 16 bits, made a piece at a time."""
    out = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    for piece in out.view(-1).split(1 << 28):
        piece.normal_(0, scale)
    return out


def _mask(*shape: int) -> Tensor:
    return (torch.rand(shape, device="cuda") > 0.1).float()


def _weights(**shapes: tuple[int, ...]) -> Tensors:
    """Matrices keep the size of what they multiply."""
    return {
        n: _rand(*shape, scale=shape[-1] ** -0.5 if len(shape) > 1 else 1.0)
        for n, shape in shapes.items()
    }


def _as(kind: type[Any], t: Tensors) -> Any:
    """The weights among the tensors."""
    return kind(**{n: t[n] for n in kind.__slots__ if n in t})


def _lines(n: int) -> list[int]:
    return [0, n // 2, n - 1]


def _last(n: int) -> list[int]:
    return list(range(n - 64, n))


def _square(per: int, above: bool) -> int:
    """R, so that R * R * per is just below or above the limit."""
    below = math.isqrt((LIMIT - 1) // per) // STEP * STEP
    return below + STEP if above else below


def _rows(per: int, above: bool) -> int:
    """M, so that M * per is just below or above the limit."""
    below = (LIMIT - 1) // per // STEP * STEP
    return below + STEP if above else below


C, HEADS, WIDTH = 64, 4, 16
K = HEADS * WIDTH
NORM = {"norm_weight": (C,), "norm_bias": (C,)}
ATTENTION = {
    **NORM, **dict.fromkeys("qkvg", (K, C)), "g_bias": (K,), "o": (C, K), "o_bias": (C,),
}  # fmt: skip


def _triangle_attention(above: bool, ending: bool) -> Case:
    R = _square(4 * K, above)
    lines = _lines(R)

    def expected(t: Tensors) -> Tensor:
        w = {n: v for n, v in t.items() if n != "pair"}
        x = t["x"].transpose(1, 2) if ending else t["x"]
        bias = reference.pair_bias(x, w["norm_weight"], w["norm_bias"], t["pair"])
        found = reference.gated_attention(x[:, lines], _as(AttentionWeights, w), HEADS, bias=bias)
        return found.transpose(1, 2) if ending else found

    return Case(
        (gated_attention, reference.gated_attention),
        {"x": _rand(1, R, R, C), **_weights(**ATTENTION, pair=(HEADS, C))},
        lambda op, t: op(t["x"], _as(AttentionWeights, t), HEADS, columns=ending),
        lines, {"": 2 if ending else 1}, expected=expected,
    )  # fmt: skip


def _column_attention(above: bool) -> Case:
    S = 256  # few sequences, long chains
    R = _rows(4 * K * S, above)
    return Case(
        (gated_attention, reference.gated_attention),
        {"x": _rand(1, S, R, C), "mask": _mask(1, S, R), **_weights(**ATTENTION)},
        lambda op, t: op(
            t["x"], _as(AttentionWeights, t), HEADS, mask=t["mask"], columns=True, residual=True
        ),
        _lines(R), {"x": 2, "mask": 2, "": 2},
    )  # fmt: skip


def _global_attention(above: bool) -> Case:
    R = 4096
    S = _rows(C * R, above)
    shapes = ATTENTION | {"k": (WIDTH, C), "v": (WIDTH, C)}
    return Case(
        (global_column_attention, reference.global_column_attention),
        {"x": _rand(1, S, R, C), "mask": _mask(1, S, R), **_weights(**shapes)},
        lambda op, t: op(t["x"], _as(AttentionWeights, t), HEADS, t["mask"]),
        _lines(R), {"x": 2, "mask": 2, "": 2},
    )  # fmt: skip


def _triangle_multiplication(above: bool, outgoing: bool) -> Case:
    """Four templates: only the last one's numbers lie beyond the limit."""
    R, B = _square(4 * C, above), 4
    vectors = [n for n in TriangleWeights.__slots__ if n.endswith("bias") or n.startswith("norm")]
    shapes = {n: (C,) if n in vectors else (C, C) for n in TriangleWeights.__slots__}
    return Case(
        (triangle_multiplication, reference.triangle_multiplication),
        {"pairs": _rand(B, R, R, C), **_weights(**shapes)},
        lambda op, t: op(t["pairs"], _as(TriangleWeights, t), outgoing=outgoing),
        [B - 1], {"pairs": 0, "": 0}, part=True,
    )  # fmt: skip


def _transition(above: bool) -> Case:
    M = _rows(4 * C, above)
    shapes = NORM | {"w1": (4 * C, C), "b1": (4 * C,), "w2": (C, 4 * C), "b2": (C,)}
    return Case(
        (transition, reference.transition), {"x": _rand(M, C), **_weights(**shapes)},
        lambda op, t: op(t["x"], _as(TransitionWeights, t), residual=True),
        _last(M), {"x": 0, "": 0}, part=True,
    )  # fmt: skip


def _outer_product_mean(above: bool) -> Case:
    E, S = 16, 8
    R = _square(E * E, above)
    lines = _lines(R)
    shapes = NORM | {"w1": (E, C), "b1": (E,), "w2": (E, C), "b2": (E,)}
    shapes |= {"out": (C, E * E), "out_bias": (C,)}
    mask = torch.ones(1, S, R, device="cuda")

    def expected(t: Tensors) -> Tensor:
        w = _as(OuterWeights, t)
        mn = reference.layer_norm(t["m"], w.norm_weight, w.norm_bias)
        a = torch.nn.functional.linear(mn[:, :, lines], w.w1, w.b1)
        b = torch.nn.functional.linear(mn, w.w2, w.b2)
        outer = torch.einsum("bsic,bsje->bijce", a, b).flatten(-2)
        return torch.nn.functional.linear(outer, w.out, w.out_bias) / (S + 1e-3)

    return Case(
        (outer_product_mean, reference.outer_product_mean),
        {"m": _rand(1, S, R, C), "mask": mask, **_weights(**shapes)},
        lambda op, t: op(t["m"], _as(OuterWeights, t), t["mask"]), lines, {"": 1},
        expected=expected,
    )  # fmt: skip


def _pair_bias(above: bool) -> Case:
    R = _square(C, above)
    return Case(
        (pair_bias, reference.pair_bias),
        {"z": _rand(1, R, R, C), **_weights(gamma=(C,), beta=(C,), w=(HEADS, C))},
        lambda op, t: op(*t.values()), _lines(R), {"z": 1, "": 2}, part=True,
    )  # fmt: skip


def _layer_norm(above: bool) -> Case:
    M = _rows(C, above)
    return Case(
        (layer_norm, reference.layer_norm), {"x": _rand(M, C), **_weights(w=(C,), b=(C,))},
        lambda op, t: op(*t.values()), _last(M), {"x": 0, "": 0}, part=True,
    )  # fmt: skip


def _masked_softmax(above: bool) -> Case:
    N = 512
    R = _rows(HEADS * N * N, above)
    return Case(
        (masked_softmax, reference.masked_softmax),
        {"x": _rand(1, R, HEADS, N, N), "bias": _rand(1, HEADS, N, N)},
        lambda op, t: op(t["x"], None, t["bias"]), [0, R - 1], {"x": 1, "": 1}, part=True,
    )  # fmt: skip


def _biased_attention(above: bool) -> Case:
    N = 256
    R = _rows(K * N, above)
    return Case(
        (biased_attention, reference.biased_attention),
        {**{n: _rand(1, R, N, HEADS, WIDTH) for n in "qkv"}, "b": _rand(1, HEADS, N, N)},
        lambda op, t: op(*t.values()), [0, R - 1], {"q": 1, "k": 1, "v": 1, "": 1}, part=True,
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


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("name", list(CASES))
def test_an_op_reads_and_writes_its_own_numbers_on_either_side_of_the_limit(
    name: str, above: bool
) -> None:
    case = CASES[name](above)
    with torch.no_grad():
        alone = case.run(case.inputs).clone()  # as inference runs it
    leaves = {n: t.requires_grad_("mask" not in n) for n, t in case.inputs.items()}
    taken = case.run(leaves)
    assert torch.equal(taken, alone)
    # Ours is done and gone before the reference begins: together they fill more than 80 GB.
    cotangent, taken_of = torch.randn_like(taken), taken.detach()
    active = [n for n, t in leaves.items() if t.requires_grad]
    ours = torch.autograd.grad(taken, [leaves[n] for n in active], cotangent)
    changed = _count_nonzero(ours[0])
    if case.part:
        ours = (case.part_of(ours[0]).clone(), *ours[1:])
    del taken
    wide = {n: t.detach().float().requires_grad_(t.requires_grad) for n, t in leaves.items()}
    exact = case.plain(wide)
    assert _error(taken_of, exact.detach()) < NEAR
    theirs = torch.autograd.grad(exact, [wide[n] for n in active], cotangent.float())
    largest = max(float(t.norm()) for t in theirs[1:])
    for number, (n, a, b) in enumerate(zip(active, ours, theirs, strict=True)):
        if number == 0 and case.part:
            assert changed <= _count_nonzero(b) * 1.01
            b = case.part_of(b)
        if number and float(b.norm()) < 1e-3 * largest:  # a shift of all logits changes nothing
            continue
        assert _error(a, b) < NEAR_GRADIENT, n


@pytest.mark.parametrize("above", [False, True])
def test_an_optimizer_updates_the_last_of_its_weights(above: bool) -> None:
    size = _rows(1, above) + 1  # an odd tail
    param, grad = (torch.empty(size, device="cuda") for _ in range(2))
    param.normal_()
    grad.normal_()
    moments = [torch.zeros(size, device="cuda") for _ in range(2)]
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
