"""Modules that look like a known one but compute something else keep their forward."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.af3 import boltz, openfold3, protenix
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from evofeed.base.errors import KernelError
from evofeed.kernels import LayerNorm, SwapReport, to_fused, to_torch
from evofeed.kernels.fused_module import Fused
from evofeed.kernels.swap import tokens

C, N = 16, 4


def _kind(base: type[nn.Module], forward: Callable[..., Any], name: str = "Other") -> Any:
    """A sub-class of the same arguments with a forward of its own."""
    return type(name, (base,), {"forward": forward})


_plain = boltz.TriangleAttention.forward


def _keeping(self: Any, x: Tensor, mask: Tensor) -> Tensor:
    self.last = _plain(self, x, mask)
    return self.last  # type: ignore[no-any-return]


def _fails(self: Any, x: Tensor, mask: Tensor) -> Tensor:
    raise RuntimeError("no GPU")


class Counting(boltz.TriangleAttention):
    """Counts its calls."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, mask: Tensor, chunk_size: int | None = None) -> Tensor:  # type: ignore[override]
        self.calls += 1
        return super().forward(x, mask)


class Adapted(nn.Module):
    """A linear layer as LoRA wraps it: the weight that it shows is not all it does."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


class Gated(protenix.TriangleMultiplicationOutgoing):
    """Its forward takes one argument more."""

    def forward(self, z: Tensor, mask: Tensor | None = None, temperature: float = 1.0) -> Tensor:  # type: ignore[override]
        return super().forward(z, mask) * temperature


def _attention(inf: float = 1e9) -> Any:
    return boltz.TriangleAttention(C, 8, 2, inf=inf)


def _adapted(module: nn.Module | None = None) -> nn.Module:
    return _put(module or _attention(), "mha.linear_q", Adapted(nn.Linear(C, 16, bias=False)))


def _hooked() -> nn.Module:
    module = _attention()
    module.mha.linear_v.register_forward_hook(lambda layer, given, out: 2 * out)
    return module  # type: ignore[no-any-return]


def _patched() -> nn.Module:
    """As libraries do that move weights or profile: a forward in place of one module's own."""
    module = _attention()
    return _put(module, "forward", partial(type(module).forward, module))


def _put(module: nn.Module, name: str, value: Any) -> nn.Module:
    """The module with one attribute, maybe of a module inside, put in or replaced."""
    above, _, last = name.rpartition(".")
    setattr(module.get_submodule(above), last, value)
    return module


def _weighed(weight: Tensor) -> nn.Module:
    """Its first layer has another weight."""
    given = nn.Parameter(weight, requires_grad=weight.is_floating_point())
    return _put(_attention(), "mha.linear_q.weight", given)


def _another_eps() -> nn.Module:
    return _put(openfold3.TriangleMultiplicationOutgoing(C, C), "layer_norm_out.eps", 0.1)


def _block() -> Any:
    return openfold3.PairBlock(C, C, 8, 2, 2, 0.25)


OUT, IN = boltz.TriangleMultiplicationOutgoing, boltz.TriangleMultiplicationIncoming


class Forgetful(openfold3.TurningPairBlock):
    """Its ending node is not told to transpose its bias, as OpenFold3 has it since 0.5."""

    def tri_att_start_end(self, z: Tensor, pair_mask: Tensor) -> Tensor:
        return z + self.tri_att_end(z, pair_mask)


class Undecided(openfold3.TurningPairBlock):
    """Its ending node is told not to."""

    def tri_att_start_end(self, z: Tensor, pair_mask: Tensor) -> Tensor:
        return z + self.tri_att_end(z, pair_mask, transpose_bias=False)


class Elsewhere(openfold3.TurningPairBlock):
    """Its forward runs on its own device only."""

    def tri_att_start_end(self, z: Tensor, pair_mask: Tensor) -> Tensor:
        assert z.is_cuda, "no kernels for this device"
        return super().tri_att_start_end(z, pair_mask)


class ByPosition(openfold3.TurningPairBlock):
    """It says so without a name, in a method of another name."""

    def _attend(self, z: Tensor, mask: Tensor) -> Tensor:
        z = z + self.ps_dropout_row_layer(self.tri_att_start(z, mask))
        update = self.tri_att_end(z.transpose(-2, -3), mask.transpose(-1, -2), True)
        return (z.transpose(-2, -3) + self.ps_dropout_row_layer(update)).transpose(-2, -3)


FORWARDS: dict[str, tuple[Callable[..., Any], str]] = {
    "a forward of its own": (lambda m, x, mask: 2 * _plain(m, x, mask), "computes something else"),
    "dropout of its own": (
        lambda m, x, mask: nn.functional.dropout(_plain(m, x, mask), 0.2, m.training),
        "something else in training",
    ),
    "a stopped gradient": (
        lambda m, x, mask: _plain(m, x.detach(), mask), "computes something else",
    ),
    "no gradients": (torch.no_grad()(_plain), "computes something else"),
    "a result left behind": (_keeping, "sets last"),
}  # fmt: skip
CASES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    **{
        name: (partial(_kind(boltz.TriangleAttention, forward), C, 8, 2), reason)
        for name, (forward, reason) in FORWARDS.items()
    },
    "a count of calls": (lambda: Counting(C, 8, 2), "sets calls"),
    "a patched forward": (_patched, "is patched"),
    "an adapter that wants a GPU": (
        lambda: _adapted(_kind(boltz.TriangleAttention, _fails, "TriangleAttention")(C, 8, 2)),
        "linear_q is more than one layer",
    ),
    "inside a block": (
        lambda: _put(_block(), "tri_mul_in", _another_eps()), "tri_mul_in|computes something else",
    ),
    "a layer with an adapter": (_adapted, "computes something else"),
    "a hook inside": (_hooked, "mha.linear_v has hooks"),
    "weights of several tensors": (
        lambda: _weighed(TwoTensor(torch.zeros(C, C), torch.zeros(C, C))),
        "linear_q.weight is a TwoTensor",
    ),
    "whole numbers": (
        lambda: _weighed(torch.zeros(C, C, dtype=torch.int8)),
        "mha.linear_q.weight is of type int8",
    ),
    "masks that let through": (lambda: _attention(2.0), "computes something else"),
    "norms with two eps": (_another_eps, "computes something else"),
    "another activation": (
        lambda: _put(boltz.Transition(C, 32), "silu", nn.GELU()), "computes something else",
    ),
    "dropout of single numbers": (
        lambda: _put(_block(), "ps_dropout_row_layer", nn.Dropout(0.25)), "has dropout that no",
    ),
    "a bias of q": (
        lambda: _put(boltz.TriangleAttention(C, 8, 2), "mha.linear_q", nn.Linear(C, 16)),
        "linear_q has a bias",
    ),
    "a layer more": (
        lambda: _put(openfold3.TriangleAttention(C, 8, 2), "linear_more", nn.Linear(C, C)),
        "has linear_more",
    ),
    "a layer fewer": (lambda: _put(boltz.TriangleMultiplicationIncoming(C), "g_out", None), "^$"),
    "another width": (
        lambda: _put(
            protenix.Transition(C, 4), "linear_no_bias_b", nn.Linear(C, 48, bias=False)
        ),
        r"linear_no_bias_b's weight is \[48, 16\]",
    ),
    "a norm without offset": (
        lambda: _put(boltz.Transition(C, 32), "norm", nn.LayerNorm(C, bias=False)),
        "norm has no bias",
    ),
    "an argument more": (lambda: Gated(C, C), "temperature"),
    "an order of its own": (
        lambda: _put(_block(), "tri_mul_first", False), "computes something else",
    ),
    **{
        f"a bias that is not transposed, {kind.__name__}": (partial(kind, C, C, 8, 2), reason)
        for kind, reason in (
            (Forgetful, "computes something else"), (Undecided, "computes something else"),
            (Elsewhere, "transpose its ending node's bias"),
        )
    },
    "dropped paths": (
        lambda: _put(
            protenix.DiffusionTransformerBlock(C, C, C, 2), "drop_path", nn.Dropout(0.1)
        ),
        "drop_path is a Dropout",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_a_module_that_computes_something_else_stays_as_it_is(name: str) -> None:
    make, reason = CASES[name]
    module, report = make(), SwapReport()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    own = set(vars(module))
    to_fused(module, report)
    assert not isinstance(module, Fused)
    assert re.search(reason, report.kept.get("", "")), report.kept
    assert set(vars(module)) == own
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class Boltz1Layer(boltz.PairformerNoSeqLayer):
    """Boltz-1's `PairformerLayer`: no norm of s before its attention, which has its own."""

    def __init__(self, c_s: int, c_z: int) -> None:
        super().__init__(c_z, 0.0, 8, 2)
        self.attention = boltz.AttentionPairBiasV1(c_s, c_z, 2)
        self.transition_s = boltz.Transition(c_s, 4 * c_s)

    def forward(  # type: ignore[override]
        self, s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor,
        chunk_size_tri_attn: int | None = None, use_kernels: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        z = boltz.pairs(self, z, pair_mask)
        s = s + self.attention(s, z, mask)
        return s + self.transition_s(s), z


def test_a_block_of_boltz_1_is_taken(device: str) -> None:
    report = SwapReport()
    module = to_fused(Boltz1Layer(32, C), report)
    assert {"", "attention"} <= set(report.swapped) and not report.kept
    s, z, mask = torch.randn(1, N, 32), torch.randn(1, N, N, C), torch.ones(1, N)
    given = [t.to(device) for t in (s, z, mask, mask[:, None] * mask[..., None])]
    ours = module.to(device)(*given)
    for a, b in zip(ours, to_torch(module)(*given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fusion", [False, True])
def test_protenix_predicts_in_place_and_with_pairs_normalised_before(
    fusion: bool, device: str
) -> None:
    torch.manual_seed(0)
    block = to_fused(protenix.DiffusionTransformerBlock(32, C, C, 2)).to(device).eval()
    a, s = (torch.randn(2, N, width, device=device) for width in (32, C))
    z = torch.randn(N, N, C, device=device)
    given = {
        "z": F.layer_norm(z, (C,)).movedim(-1, 0).contiguous() if fusion else z,
        "inplace_safe": True, "enable_efficient_fusion": fusion,
    }  # fmt: skip
    with torch.no_grad():
        made = tokens.run_protenix_diffusion_block(block, a, s, **given)
        again = block(a, s, **given)
        theirs = to_torch(block)(a, s, **given)
    assert made is not None
    for ours in (made, again):
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-4)


def test_swapping_again_finds_a_layer_that_was_wrapped_since() -> None:
    module = to_fused(_attention())
    module.mha.linear_q = Adapted(module.mha.linear_q)
    report = SwapReport()
    assert not isinstance(to_fused(module, report), Fused)
    assert "something else" in report.kept[""] and "" not in report.swapped


def test_swapping_again_finds_a_layer_that_was_exchanged_since() -> None:
    """One without the bias that the kernels need: deep inside, and known to parts and block."""
    block = to_fused(protenix.DiffusionTransformerBlock(C, C, C, 2))
    norm = block.attention_pair_bias.layernorm_a
    assert isinstance(block, Fused) and isinstance(norm, Fused)
    norm.linear_s = nn.Linear(C, C, bias=False)
    report = SwapReport()
    to_fused(block, report)
    assert not isinstance(block, Fused) and not isinstance(norm, Fused)
    assert isinstance(block.conditioned_transition_block, Fused), report


def test_a_norm_whose_weight_is_of_several_tensors_stays_with_pytorch() -> None:
    norm, report = nn.LayerNorm(C), SwapReport()
    norm.weight = nn.Parameter(TwoTensor(torch.ones(C), torch.ones(C)))
    assert not isinstance(to_fused(norm, report), Fused) and "TwoTensor" in report.kept[""]


class Sub(LayerNorm):
    """Somebody's own sub-class of a drop-in."""


def test_swapping_again_leaves_sub_classes_of_drop_ins() -> None:
    model = nn.Sequential(Sub(C), LayerNorm(C), LayerNorm(C, bias=False), nn.LayerNorm(C))
    kinds = [type(module) for module in to_fused(model)]
    assert kinds == [Sub, LayerNorm, LayerNorm, LayerNorm]
    assert [type(module) for module in to_fused(model)] == kinds


@pytest.mark.parametrize(
    "make",
    [
        _block, lambda: boltz.DiffusionTransformerLayer(2, C, C), lambda: ByPosition(C, C, 8, 2),
        lambda: ByPosition(C, C, 8, 2).bfloat16(), *(partial(kind, C) for kind in (OUT, IN)),
    ],
)  # fmt: skip
def test_a_trial_changes_nothing(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    module = make().train()
    next(iter(module.children())).eval()
    modes = [inner.training for inner in module.modules()]
    values = {name: value.clone() for name, value in module.state_dict().items()}
    parameters = [id(p) for p in module.parameters()]
    before = torch.random.get_rng_state()
    assert isinstance(to_fused(module), Fused)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [inner.training for inner in module.modules()] == modes
    assert [id(p) for p in module.parameters()] == parameters
    assert all(torch.equal(values[name], value) for name, value in module.state_dict().items())
    assert not any(inner._forward_pre_hooks for inner in module.modules())


def test_boltz_triangles_that_need_a_gpu_are_taken_at_their_name() -> None:
    for direction in ("Outgoing", "Incoming"):
        name = f"TriangleMultiplication{direction}"
        module = _kind(getattr(boltz, name), _fails, name)(C)
        assert to_fused(module).form.options == {"outgoing": direction == "Outgoing"}


def _same(module: nn.Module, device: str, *given: Any, **named: Any) -> None:
    fused, plain = to_fused(copy.deepcopy(module)).to(device), module.to(device)
    assert isinstance(fused, Fused)
    torch.testing.assert_close(fused(*given, **named), plain(*given, **named), rtol=1e-4, atol=1e-4)


TOKENS, PAIRS = [(1, N, C), (2, N, C)], (1, N, N, C)
BROADCAST: list[tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = [
    # smaller masks, one number of memory among them
    (lambda: openfold3.TriangleAttention(C, 8, 2), [(2, N, N, C), (1, N, N)]),
    (lambda: openfold3.TriangleMultiplicationOutgoing(C, C), [(2, N, N, C), (N, N)]),
    (lambda: boltz.TriangleMultiplicationIncoming(C), [(2, N, N, C), (1, N, N)]),
    (lambda: openfold3.OuterProductMean(C, C, 16), [(2, N, N, C), (1, 1, N)]),
    (lambda: boltz.OuterProductMean(C, 16, C), [(2, N, N, C), (1, N, N)]),
    (lambda: openfold3.SwiGLUTransition(C, 2), [PAIRS, (1, 1, 1)]),
    (lambda: openfold3.ConditionedTransitionBlock(C, C, 2), [(1, 3, 1, C)] * 2 + [(1, 1, 1)]),
    # a larger mask or condition, which makes the result larger
    (lambda: openfold3.TriangleAttention(C, 8, 2), [PAIRS, (2, N, N)]),
    (lambda: boltz.TriangleMultiplicationIncoming(C), [PAIRS, (2, N, N)]),
    (lambda: openfold3.SwiGLUTransition(C, 2), [PAIRS, (2, N, N)]),
    (lambda: openfold3.ConditionedTransitionBlock(C, C, 2), [*TOKENS, (2, N)]),
    (lambda: openfold3.AdaLN(C, C), TOKENS),
    (lambda: boltz.PairWeightedAveraging(C, C, 8, 2), [(2, 3, N, C), PAIRS, (2, N, N)]),
]


@pytest.mark.parametrize(("make", "shapes"), BROADCAST)
def test_axes_are_broadcast_as_a_module_does_itself(
    make: Callable[[], nn.Module], shapes: list[tuple[int, ...]], device: str
) -> None:
    given = [torch.randn(shape, device=device) for shape in shapes]
    for mask in given:
        if mask.shape[-1] < C:
            mask.fill_(1.0)
            mask[..., 1:2] = 0.0
    _same(make(), device, *given)


def test_tensors_of_two_types_are_left_to_pytorch(device: str) -> None:
    module = openfold3.AdaLN(C, C).to(device)
    a, s = torch.randn(2, 1, N, C, device=device)
    expected = module(a.half(), s)
    ours = to_fused(module)(a.half(), s)
    assert ours.dtype is expected.dtype and torch.equal(ours, expected)


def test_a_16_bit_attention_of_tokens_runs(device: str) -> None:
    module = boltz.AttentionPairBias(32, C, 2).to(device).half()
    s, z, mask = (torch.randn(1, N, *size, device=device).half() for size in ((32,), (N, C), ()))
    out = to_fused(module)(s, z, torch.ones_like(mask), s)
    assert out.dtype is torch.float16 and out.isfinite().all()


def test_second_derivatives_are_refused_not_left_out(device: str) -> None:
    z = torch.randn(1, N, N, C, device=device, requires_grad=True)
    out = to_fused(openfold3.SwiGLUTransition(C, 2)).to(device)(z)
    with pytest.raises(KernelError, match="second derivatives"):
        torch.autograd.grad(out.sum(), z, create_graph=True)


def test_a_module_beside_an_unknown_one_is_fused() -> None:
    block = to_fused(_put(_block(), "tri_mul_first", False))
    inside = {n for n, m in block.named_children() if isinstance(m, Fused)}
    wanted = {"tri_mul_out", "tri_mul_in", "tri_att_start", "tri_att_end", "pair_transition"}
    assert inside == wanted
    z = torch.randn(1, 5, 5, C)
    assert block(z, torch.ones(1, 5, 5)).shape == z.shape


@pytest.mark.parametrize(
    ("kind", "outgoing"),
    [
        (OUT, True),
        (IN, False),
        (_kind(OUT, lambda m, x, mask: m._run(x, mask, False)), False),
        (_kind(OUT, lambda m, x, mask: m._run(x, mask, True) + m._run(x, mask, False)), None),
        (_kind(IN, lambda m, x, mask: x), None),
        (_kind(IN, _fails), None),
    ],
    ids=["out", "in", "in, whatever its name says", "both", "neither", "it fails"],
)
def test_boltz_direction_is_what_its_forward_does_not_its_name(
    kind: type[nn.Module], outgoing: bool | None
) -> None:
    report = SwapReport()
    fused: Any = to_fused(kind(C), report)
    if outgoing is None:
        assert not isinstance(fused, Fused)
        assert re.search("direction|something else", report.kept[""])
    else:
        assert fused.form.options == {"outgoing": outgoing} and "" in report.swapped
