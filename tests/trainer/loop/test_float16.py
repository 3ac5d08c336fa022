"""`precision: fp16`: a scale that finds its size, steps that overflow, products that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.loop.loop_standin import FAST, standin_loop
from tests.trainer.synthetic_batch import synthetic_batch
from torch import Tensor

from evofeed.trainer.losses import AlphaFoldLoss
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.primitives import FLOAT32_IN_FLOAT16
from evofeed.trainer.model.triangle import TriangleMultiplicationOutgoing
from evofeed.trainer.presets import tiny
from evofeed.trainer.run.loop import Loop
from evofeed.trainer.run.precision import LossScale, autocast


def loop(steps: int, out: Path, *, kind: str = "fp16", **changes: Any) -> Loop:
    return standin_loop(out, steps, precision=kind, **changes)


@pytest.mark.parametrize("clip", ["global", "per_example"])
def test_it_learns_what_float32_learns(tmp_path: Path, clip: str) -> None:
    optim = replace(FAST, clip=clip)
    half, exact = (
        loop(30, tmp_path / kind, kind=kind, accumulate=2, optim=optim).run()
        for kind in ("fp16", "fp32")
    )
    assert half.losses == pytest.approx(exact.losses, rel=0.02)
    assert half.losses != exact.losses and half.losses[-1] < half.losses[0]
    assert half.overflows == half.skipped == []


def test_a_step_that_overflows_changes_nothing_is_counted_and_halves_the_scale(
    tmp_path: Path,
) -> None:
    run = loop(8, tmp_path, size=2.0**7)
    result = run.run()
    scale = run.optimizer.scale
    assert scale is not None
    assert result.overflows == list(range(len(result.overflows))) and 1 < len(result.overflows) < 7
    assert float(scale.factor) == 2.0 ** (16 - len(result.overflows))
    assert run.optimizer.updates.item() == 8 - len(result.overflows)
    assert result.skipped == []
    assert all(bool(buffer.isfinite().all()) for buffer in run.optimizer.state().values())


def test_the_scale_grows_after_many_finite_steps_and_stays_in_its_range() -> None:
    scale = LossScale(torch.device("cpu"), patience=3)
    fine, broken = torch.ones(()), torch.tensor(torch.inf)
    factors = []
    for norm in (fine, fine, fine, fine, broken, fine, fine, fine):
        scale.update(norm)
        factors.append(float(scale.factor) / 2**16)
    assert factors == [1, 1, 2, 2, 1, 1, 1, 2]
    for _ in range(40):
        scale.update(broken)
    assert float(scale.factor) == 1.0 and bool(scale.is_least)
    for _ in range(100):
        scale.update(fine)
    assert float(scale.factor) == 2.0**24


def test_a_resumed_run_continues_with_its_scale_bit_for_bit(tmp_path: Path) -> None:
    uninterrupted = loop(12, tmp_path / "whole", size=2.0**8)
    expected = uninterrupted.run()
    first = loop(5, tmp_path / "parts", size=2.0**8).run()
    second = loop(12, tmp_path / "parts", size=2.0**8)
    assert second.resume() == 5
    assert first.losses + second.run().losses == expected.losses
    assert second.result.overflows == expected.overflows != []
    assert uninterrupted.optimizer.scale is not None and second.optimizer.scale is not None
    assert torch.equal(uninterrupted.optimizer.scale.state, second.optimizer.scale.state)
    other = loop(14, tmp_path / "parts", kind="fp32", size=2.0**8)  # and in another precision
    assert other.resume() == 12 and len(other.run().losses) == 2


def test_the_model_in_float16_is_finite_where_masks_hide_whole_rows_and_near_float32() -> None:
    preset = tiny()
    torch.manual_seed(0)
    model, loss = AlphaFold(preset.model).eval(), AlphaFoldLoss(preset.loss)
    batch = synthetic_batch(num_res=20, num_seq=6, num_extra_seq=9, num_templates=2, seed=1)
    batch["msa_mask"][..., -2:, :] = 0.0
    batch["extra_msa_mask"][..., -3:, :] = 0.0
    results = {}
    for kind in ("fp32", "fp16", "bf16"):
        model.zero_grad()
        with autocast(kind, "cpu"):
            outputs = model(batch)
        value, _ = loss(outputs, batch)
        (value * 2.0**10).backward()
        grads = [p.grad.flatten() / 2.0**10 for p in model.parameters() if p.grad is not None]
        results[kind] = float(value.detach()), torch.cat(grads)
    exact, grad = results["fp32"]
    apart = {
        kind: (abs(value - exact) / exact, float((result - grad).norm() / grad.norm()))
        for kind, (value, result) in results.items()
    }
    assert bool(results["fp16"][1].isfinite().all())
    assert apart["fp16"][0] < 2e-3 and apart["fp16"][1] < 0.03, apart
    assert apart["fp16"][1] < apart["bf16"][1], apart  # it has three digits more


def test_sums_past_float16s_range_stay_finite_by_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, z = TriangleMultiplicationOutgoing(8, 8), torch.randn(40, 40, 8)
    with torch.no_grad():  # products of 80 x 80, summed over 40
        for name in ("linear_a_p", "linear_b_p"):
            getattr(module, name).bias.fill_(80.0)
        for name in ("linear_a_g", "linear_b_g"):
            getattr(module, name).bias.fill_(10.0)
        module.linear_z.weight.normal_()
    exact = module(z)

    def half() -> Tensor:
        with autocast("fp16", "cpu"):
            return module(z.half()).float()

    assert float((half() - exact).norm().detach() / exact.norm().detach()) < 0.05
    primitives = "evofeed.trainer.model.primitives.FLOAT32_IN_FLOAT16"
    monkeypatch.setattr(primitives, FLOAT32_IN_FLOAT16 - {"triangle_product"})
    assert not bool(half().isfinite().all())
