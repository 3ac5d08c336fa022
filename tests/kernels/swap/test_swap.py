from __future__ import annotations

import subprocess
import sys

import torch
from torch import Tensor, nn

from evofeed.kernels import to_fused, to_torch
from evofeed.kernels.fused_module import Fused
from evofeed.kernels.swap.swap import SwapReport


class Doubled(nn.LayerNorm):
    """A sub-class with its own forward: not ours to replace."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Renamed(nn.LayerNorm):
    """A sub-class that changes nothing."""


def _local_layer_norm() -> type[nn.Module]:
    class LayerNorm(nn.Module):
        def __init__(self, c_in: int) -> None:
            super().__init__()
            self.eps = 1e-5
            self.weight = nn.Parameter(torch.ones(c_in))
            self.bias = nn.Parameter(torch.zeros(c_in))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)

    return LayerNorm


def _model() -> nn.Sequential:
    shared = nn.LayerNorm(16)
    return nn.Sequential(
        nn.Linear(16, 16), shared, nn.ModuleDict({"a": Renamed(16), "b": Doubled(16)})["a"],
        nn.Sequential(_local_layer_norm()(16), shared), Doubled(16), nn.LayerNorm(16, bias=False),
    )  # fmt: skip


def test_a_swap_keeps_outputs_keys_and_parameters(device: str) -> None:
    model = _model().to(device)
    x = torch.randn(5, 16, device=device)
    before, keys = model(x), list(model.state_dict())
    parameters = [id(p) for p in model.parameters()]
    report = SwapReport()
    fused = to_fused(model, report)
    assert fused is model and report.swapped == ["1", "2", "3.0"]
    assert set(report.kept) == {"4", "5"} and "Doubled" in report.kept["4"]
    assert list(model.state_dict()) == keys
    assert [id(p) for p in model.parameters()] == parameters
    torch.testing.assert_close(model(x), before)


def test_swapping_twice_and_back_leaves_the_first_classes() -> None:
    model = _model()
    classes = [type(m) for m in model.modules()]
    to_fused(to_fused(model))
    assert sum(isinstance(m, Fused) for m in model.modules()) == 3
    assert [type(m) for m in to_torch(to_torch(model)).modules()] == classes


def test_tied_modules_stay_tied_and_isinstance_holds() -> None:
    model = to_fused(_model())
    assert model[1] is model[3][1]
    assert isinstance(model[1], nn.LayerNorm) and isinstance(model[2], Renamed)


def test_the_share_of_swapped_modules_is_measured(device: str) -> None:
    wide = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4096, bias=False)).to(device)
    report = SwapReport()
    to_fused(wide, report)
    x = torch.randn(64, 16, device=device, requires_grad=True)
    share = report.measure(wide, lambda: wide(x).sum().backward())
    assert share == report.gpu_share and 0.01 < share < 0.999
    assert f"{share:.1%}" in repr(report)
    assert not wide[0]._forward_hooks and not wide[0]._forward_pre_hooks
    plain = nn.Linear(16, 16).to(device)
    assert SwapReport().measure(plain, lambda: plain(x).sum().backward()) == 0.0
    norm = to_fused(nn.LayerNorm(16)).to(device)  # its backward counts too
    assert SwapReport().measure(norm, lambda: norm(x)) > 0.3


def test_the_package_imports_without_triton_and_without_a_gpu() -> None:
    script = """
import sys
sys.modules["triton"] = None
import evofeed.kernels
assert "torch" not in sys.modules
import torch
from evofeed.kernels import to_fused, to_torch, layer_norm
model = torch.nn.LayerNorm(8); x = torch.randn(2, 8)
before = model(x)
assert torch.equal(to_fused(model)(x), before)
assert torch.equal(layer_norm(x, model.weight, model.bias), before)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_public_names_stay_what_they_are_when_every_module_is_imported() -> None:
    import importlib
    import pkgutil
    import types

    from evofeed import kernels

    for module in pkgutil.walk_packages(kernels.__path__, "evofeed.kernels."):
        importlib.import_module(module.name)
    hidden = [
        name for name in kernels.__all__ if isinstance(getattr(kernels, name), types.ModuleType)
    ]
    assert hidden == [], f"importing a module of the same name hides {hidden}"


def test_a_layer_norm_of_other_axes_stays_whatever_it_is_called() -> None:
    class LayerNorm(nn.Module):
        """ConvNeXt's: of the channels, which come first."""

        def __init__(self, channels: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(channels))
            self.bias = nn.Parameter(torch.zeros(channels))
            self.eps = 1e-6

        def forward(self, x: Tensor) -> Tensor:
            x = x - x.mean(1, keepdim=True)
            x = x / torch.sqrt(x.square().mean(1, keepdim=True) + self.eps)
            return self.weight[:, None, None] * x + self.bias[:, None, None]

    module, report = LayerNorm(16), SwapReport()
    to_fused(module, report)
    assert type(module) is LayerNorm and "last axis" in report.kept[""]
