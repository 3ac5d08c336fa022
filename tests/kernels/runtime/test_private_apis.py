"""What PyTorch and Triton do not promise: the versions it holds for, and what it does."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evofeed.kernels.runtime import private_apis as private

ROOT = Path(__file__).resolve().parents[3]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


@pytest.mark.parametrize("package", list(private.VERSIONS))
def test_they_were_read_for_the_installed_version(package: str) -> None:
    least, most = map(_number, private.VERSIONS[package])
    installed = importlib.metadata.version(package)
    assert least <= _number(installed) <= most, (
        f"{package} {installed}: read kernels/runtime/private_apis.py beside its source, run the "
        "GPU tests, and widen VERSIONS"
    )


def test_no_other_file_of_the_kernels_uses_a_private_name() -> None:
    private_name = re.compile(r"\btorch(\.\w+)*\._\w+|from torch\S* import _|unittest.mock|pickle")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "kernels").rglob("*.py"))
        if path.name != "private_apis.py"
        for line in path.read_text().splitlines()
        if private_name.search(line)
    ]
    assert not [line for line in found if "pickle and deepcopy" not in line]


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        assert private.backward_runs()
        return 2 * grad


def test_apply_is_the_functions_own_and_a_backward_pass_is_seen() -> None:
    x = torch.ones(3, requires_grad=True)
    assert not private.backward_runs()
    private.function_apply(_Double)(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]


def test_transforms_and_hooks_are_seen() -> None:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append(private.functorch_active())
        return x.sum()

    look(torch.ones(2))
    torch.func.grad(look)(torch.ones(2))
    assert seen == [False, True]
    assert not private.saved_tensor_hooks_active()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert private.saved_tensor_hooks_active()


def test_many_tensors_at_once() -> None:
    source = [torch.randn(2, 3), torch.randn(4)]
    to = [torch.empty_like(t) for t in source]
    private.copy_all(to, source)
    flat = torch.cat([t.reshape(-1) for t in source])
    for a, b, c in zip(source, to, private.unflatten(flat, source), strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
    a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    torch.testing.assert_close(private.product_relu(bias, a, b), torch.relu(a @ b + bias))


@pytest.mark.gpu
def test_a_compiled_kernel_runs_again_at_another_address(device: str) -> None:
    from evofeed.kernels.ops.softmax.triton import softmax_forward_kernel

    if device != "cuda":
        pytest.skip("needs a GPU")
    x, y = torch.randn(2, 1, 1, 1, 1, 16, device=device), torch.zeros(2, 16, device=device)
    meta = {"BLOCK_Q": 1, "BLOCK_K": 16, "HAS_BIAS": False, "HAS_MASK": False}
    meta["STAGES"] = 1
    numbers = (0, 0, 1, 1, 1, 16, 1)
    compiled = softmax_forward_kernel[(1, 1, 1)](x[0], None, None, y[0], *numbers, **meta)
    private.repeat(
        private.repeatable(compiled), (1, 1, 1), 0, x[1].data_ptr(), None, None, y[1].data_ptr(),
        *numbers, *meta.values(),
    )  # fmt: skip
    torch.testing.assert_close(y, x.view(2, 16).softmax(-1))
