"""Private names of PyTorch and Triton: their versions, and the file that uses them."""

from __future__ import annotations

import importlib.metadata
import os
import re
from functools import partial
from pathlib import Path

import pytest
import torch

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


@pytest.mark.parametrize("before", [None, ":4096:8"])
def test_a_product_without_a_workspace_leaves_the_next_its_own(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delattr(torch.backends.cuda, "cublas_workspace_size", raising=False)
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.delenv(name, raising=False)
    if before:
        monkeypatch.setenv(name, before)
    with pytest.raises(RuntimeError, match="refused"), private._no_workspace():
        assert os.environ[name] == ":0:0"
        raise RuntimeError("refused")
    assert os.environ.get(name) == before


@pytest.mark.gpu
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("shape", "columns"),
    [((128, 256, 256), 256), ((1 << 16, 128), 528), ((33_792, 1024), 256), ((1, 8192, 132), 8192)],
)
def test_a_recorded_product_scheduled_ahead_has_no_memset_and_the_same_bits(
    device: str, shape: tuple[int, ...], columns: int, ahead: bool
) -> None:
    from evofeed.kernels import record_graph

    if device != "cuda":
        pytest.skip("needs a GPU")
    a = torch.randn(*shape, device=device, dtype=torch.bfloat16)
    b = torch.randn(*shape[:-2], columns, shape[-1], device=device, dtype=torch.bfloat16).mT
    product = partial(private.scheduled_ahead, torch.matmul) if ahead else torch.matmul
    expected = torch.matmul(a, b)
    made, replay = record_graph(a.device, None, lambda: product(a, b))
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        replay()
        torch.cuda.synchronize()
    assert torch.equal(made, expected)
    assert not (ahead and any("Memset" in event.name for event in profile.events()))


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
    private.launch_compiled(
        private.launcher_of(compiled), (1, 1, 1), 0, x[1].data_ptr(), None, None, y[1].data_ptr(),
        *numbers, *meta.values(),
    )  # fmt: skip
    torch.testing.assert_close(y, x.view(2, 16).softmax(-1))
