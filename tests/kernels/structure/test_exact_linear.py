from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.weights import Check
from torch import Tensor

from evofeed.kernels.structure.exact_linear.op import (
    exact_bmm,
    exact_bmm_fits,
    exact_linear,
    exact_linear_fits,
)

pytestmark = pytest.mark.gpu

# rows, channels in and out: a transition's, invariant point attention's last and first layer, a
# backbone update's, angles' of all layers
SIZES = [(70, 48, 48), (34, 1200, 40), (66, 40, 100), (40, 32, 6), (130, 64, 32)]


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_as_exact_as_pytorch(
    sizes: tuple[int, int, int], relu: bool, device: str, three_way: Check
) -> None:
    M, K, N = sizes
    inputs = [torch.randn(2, M // 2, K), torch.randn(N, K) * K**-0.5, torch.randn(N)]
    inputs = [t.to(device) for t in inputs]
    assert exact_linear_fits(inputs[0], inputs[1])

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = F.linear(x, weight, bias)
        return torch.relu(out) if relu else out

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return exact_linear(x, weight, bias, relu)

    three_way(ours, plain, inputs, range(3))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.mT,
    "heads inside": lambda x: x.transpose(1, 2),
}


@pytest.mark.parametrize("views", [("whole", "whole"), ("heads inside", "transposed")])
@pytest.mark.parametrize("plus", [True, False])
@pytest.mark.parametrize("sizes", [(2, 3, 40, 40, 24), (1, 50, 12, 16, 70), (2, 12, 70, 33, 12)])
def test_products_of_views(
    sizes: tuple[int, ...], plus: bool, views: tuple[str, str], device: str, three_way: Check
) -> None:
    B, Z, M, N, K = sizes
    of_a, of_b = (VIEWS[name] for name in views)
    a, b = (
        torch.randn(B, Z, M, K),
        torch.randn(B, Z, N, K),
    )  # the views exchange axes: twice is once
    inputs = [t.to(device) for t in (of_a(a).contiguous(), of_b(b).contiguous())]
    inputs += [torch.randn(B, Z, M, N, device=device)] * plus

    def call(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda a, b, *more: product(of_a(a), of_b(b), *more)

    def plain(a: Tensor, b: Tensor, *more: Tensor) -> Tensor:
        assert a.dtype is torch.float64 or exact_bmm_fits(a, b)
        return a @ b.mT + sum(more)

    three_way(call(exact_bmm), call(plain), inputs, range(len(inputs)))


@pytest.mark.parametrize("change", [lambda x: x.double(), lambda x: x.half()])
def test_other_types_are_pytorchs(change: Callable[[Tensor], Tensor], device: str) -> None:
    x, weight, bias = (change(torch.randn(*n, device=device)) for n in ((5, 8), (4, 8), (4,)))
    assert not exact_linear_fits(x, weight)
    assert torch.equal(exact_linear(x, weight, bias), F.linear(x, weight, bias))
