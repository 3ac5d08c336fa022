"""Hugging Face's loader takes the folder that `evofeed.kernels.hub` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evofeed.kernels.hub import build

USE = """
import sys
from pathlib import Path

import torch
from kernels import get_local_kernel

ours = get_local_kernel(Path(sys.argv[1]))
x, weight, bias = torch.randn(5, 8), torch.randn(8), torch.randn(8)
assert torch.equal(ours.layer_norm(x, weight, bias), torch.nn.functional.layer_norm(x, (8,), weight, bias))
assert hasattr(getattr(torch.ops, ours.__name__), "layer_norm_backward")
model, report = torch.nn.Sequential(torch.nn.LayerNorm(8)), ours.SwapReport()
before = model(x)
ours.to_fused(model, report)
assert type(model[0]).__module__.startswith(ours.__name__) and torch.equal(model(x), before)
import evofeed.kernels.ops.swiglu.op  # an installed one beside it: no name is taken twice
print(ours.__name__)
"""  # noqa: E501


def test_the_loader_of_hugging_face_takes_the_folder(tmp_path: Path) -> None:
    variant = build(tmp_path / "made")
    assert variant == build(tmp_path / "made")  # in place of the first, from the same text
    assert not list(variant.rglob("hub.py"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", USE, str(tmp_path / "made")], cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("evofeed_kernels_")
