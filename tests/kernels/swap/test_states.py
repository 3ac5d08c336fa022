# mypy: disable-error-code="no-untyped-call"
"""Swapped modules: under transforms, with odd weights and inputs, swapped in odd surroundings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from tests.kernels.af3 import boltz, openfold3
from tests.kernels.weights import results
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

from evofeed.kernels import to_fused
from evofeed.kernels.fused_module import Fused
from evofeed.kernels.swap import trial

pytestmark = pytest.mark.gpu
C, N = 16, 4
MAKERS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: openfold3.TriangleAttention(C, 8, 2),
    "multiplication": lambda: boltz.TriangleMultiplicationIncoming(C),
    "transition": lambda: openfold3.SwiGLUTransition(C, 2),
    "outer product": lambda: openfold3.OuterProductMean(C, C, 16),
}
makers = pytest.mark.parametrize("name", list(MAKERS))


def _two(name: str, device: str) -> tuple[nn.Module, nn.Module]:
    """The module with random weights and the same swapped."""
    torch.manual_seed(0)
    module = MAKERS[name]()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.dim() == 1))
    fused = to_fused(copy.deepcopy(module))
    assert isinstance(fused, Fused)
    return module.to(device), fused.to(device)


def _inputs(device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(1, N, N, C, device=device), torch.ones(1, N, N, device=device)


def _close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def _loss(module: nn.Module, weights: dict[str, Tensor], x: Tensor, mask: Tensor) -> Tensor:
    out: Tensor = functional_call(module, weights, (x, mask))
    return out.sin().sum()


def _weights_gradient(module: nn.Module, x: Tensor, mask: Tensor) -> Any:
    return grad(lambda w: _loss(module, w, x, mask))(dict(module.named_parameters()))


def _each_samples_gradient(module: nn.Module, x: Tensor, mask: Tensor) -> Any:
    of_one = grad(lambda w, x_: _loss(module, w, x_, mask))
    return vmap(of_one, (None, 0))(dict(module.named_parameters()), torch.stack([x, 2 * x]))


def _gradients(call: Any, x: Tensor, mask: Tensor) -> list[Tensor]:
    weights = [*call.parameters()] if isinstance(call, nn.Module) else []
    return results(call, [x.requires_grad_(), mask], weights)


def _forward_ad(module: nn.Module, x: Tensor, mask: Tensor) -> Any:
    with forward_ad.dual_level():
        return [*forward_ad.unpack_dual(module(forward_ad.make_dual(x, x.cos()), mask))]


TRANSFORMS: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "grad": _weights_gradient,
    "grad of each sample": _each_samples_gradient,
    "vmap": lambda m, x, mask: vmap(lambda x_: m(x_, mask))(torch.stack([x, 2 * x])),
    "jvp": lambda m, x, mask: jvp(lambda x_: m(x_, mask), (x,), (x.cos(),)),
    "forward mode": _forward_ad,
    "trace": lambda m, x, mask: torch.jit.trace(m, (x, mask), check_trace=False)(x, mask),
    "an empty batch": lambda m, x, mask: _gradients(m, x[:0], mask[:0]),
    "a result changed in place": lambda m, x, mask: _gradients(
        lambda *given: m(*given).mul_(2.0), x, mask
    ),
    "a mask that is learned": lambda m, x, mask: results(
        m, [x, (0.5 * mask).requires_grad_()], [*m.parameters()]
    ),
}


@makers
@pytest.mark.parametrize("transform", list(TRANSFORMS))
@pytest.mark.filterwarnings("ignore")  # of torch.jit
def test_however_it_is_called_it_gives_what_the_modules_own_forward_gives(
    name: str, transform: str, device: str
) -> None:
    module, fused = _two(name, device)
    run = TRANSFORMS[transform]
    _close(run(fused, *_inputs(device)), run(module, *_inputs(device)))


@makers
def test_weights_may_have_strides(name: str, device: str) -> None:
    """A column of a larger matrix, or a matrix stored the other way round."""
    module, fused = _two(name, device)
    for parameter in (*module.parameters(), *fused.parameters()):
        turned = parameter.dim() == 2
        stored = parameter.data.t().contiguous().t() if turned else parameter.data.expand(2, -1)
        parameter.data = stored if turned else stored.t().contiguous()[:, 0]
    assert not any(p.is_contiguous() for p in fused.parameters())
    _close(_gradients(fused, *_inputs(device)), _gradients(module, *_inputs(device)))


def _default_dtype() -> AbstractContextManager[Any]:
    torch.set_default_dtype(torch.float64)
    return nullcontext()


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64 by default": _default_dtype,
    "no device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "fake tensors": lambda: FakeTensorMode(allow_non_fake_inputs=True),
}


@pytest.mark.parametrize("where", list(SURROUNDINGS))
@makers
def test_what_is_swapped_does_not_depend_on_where_it_is(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_verdicts", {})
    model = nn.Sequential(MAKERS[name](), openfold3.LayerNorm(C))
    try:
        with SURROUNDINGS[where]():
            to_fused(model)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(isinstance(module, Fused) for module in model)
