"""Schedule, clipping, Adam and EMA against the golden pack and against torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import golden_files
from torch import nn

from evofeed.kernels.ops.optimizer.reference import adam_update, ema_update, global_norm
from evofeed.trainer.config import OptimConfig
from evofeed.trainer.run.flat import FlatOptimizer, clip_coefficient, learning_rate

ONE = torch.tensor(1.0)


def _cases(kind: str) -> list[Path]:
    return [path for path in golden_files("model/optim*.npz") if _meta(path)["kind"] == kind]


def _meta(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return json.loads(str(arrays["meta"]))


def _config(hparams: dict[str, Any]) -> OptimConfig:
    return OptimConfig(
        learning_rate=hparams["max_lr"],
        warmup_steps=hparams["warmup_no_steps"],
        decay_after=hparams["start_decay_after_n_steps"],
        decay_every=hparams["decay_every_n_steps"],
        decay_factor=hparams["decay_factor"],
        eps=hparams.get("eps", 1e-5),
        ema_decay=hparams.get("ema_decay", 0.0),
        clip="none",
    )


def test_the_schedule_is_openfolds_at_every_recorded_step(golden: Path) -> None:
    assert _cases("lr_schedule")
    for path in _cases("lr_schedule"):
        config = _config(_meta(path)["hparams"])
        with np.load(path) as arrays:
            for step, rate in zip(arrays["steps"], arrays["lr"], strict=True):
                assert learning_rate(int(step), config) == pytest.approx(rate, rel=1e-12), step


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_adam_and_average_follow_the_recorded_steps(golden: Path, dtype: torch.dtype) -> None:
    assert _cases("adam_ema_lr")
    for path in _cases("adam_ema_lr"):
        config = _config(_meta(path)["hparams"])
        with np.load(path) as arrays:
            for name in ("w", "b"):
                _replay(arrays, name, config, dtype)


def _replay(arrays: Any, name: str, config: OptimConfig, dtype: torch.dtype) -> None:
    param = torch.tensor(arrays[f"init.{name}"], dtype=dtype)
    ema, exp_avg, exp_avg_sq = param.clone(), torch.zeros_like(param), torch.zeros_like(param)
    steps = sorted(key.split(".")[0] for key in arrays if key.endswith(f".grad.{name}"))
    assert len(steps) >= 10
    for number, step in enumerate(steps):
        adam_update(
            param,
            torch.tensor(arrays[f"{step}.grad.{name}"], dtype=dtype),
            exp_avg,
            exp_avg_sq,
            updates=torch.tensor(number + 1, dtype=torch.float64),
            rate=learning_rate(number, config),
            beta1=config.beta1,
            beta2=config.beta2,
            eps=config.eps,
            finite=ONE,
        )
        ema_update(ema, param, decay=config.ema_decay, finite=ONE)
        ours = {"param": param, "ema": ema, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
        for role, value in ours.items():
            expected = torch.tensor(arrays[f"{step}.{role}.{name}"], dtype=dtype)
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7, msg=f"{step} {role}")


def test_both_ways_of_clipping_give_the_recorded_gradients(golden: Path) -> None:
    assert _cases("grad_clip")
    for path in _cases("grad_clip"):
        meta = _meta(path)
        limit = meta["hparams"]["max_norm"]
        with np.load(path) as arrays:
            samples = sorted({key.split(".")[0] for key in arrays if key.startswith("sample")})
            grads = [
                [torch.tensor(arrays[f"{sample}.grad.{name}"]) for name in ("w", "b")]
                for sample in samples
            ]
            norms = [global_norm(pair).item() for pair in grads]
            assert norms == pytest.approx(meta["sample_norms"], rel=1e-6)
            clipped = [
                [g * clip_coefficient(global_norm(pair), limit) for g in pair] for pair in grads
            ]
            mean = [torch.stack(list(column)).mean(0) for column in zip(*grads, strict=True)]
            assert global_norm(mean).item() == pytest.approx(meta["mean_norm"], rel=1e-6)
            coefficient = clip_coefficient(global_norm(mean), limit)
            for index, name in enumerate(("w", "b")):
                mean_of_clipped = torch.stack([pair[index] for pair in clipped]).mean(0).double()
                expected = torch.tensor(arrays[f"per_sample_then_mean.{name}"])
                torch.testing.assert_close(mean_of_clipped, expected, rtol=1e-6, atol=1e-9)
                torch.testing.assert_close(
                    mean[index] * coefficient,
                    torch.tensor(arrays[f"mean_then_clip.{name}"]),
                    rtol=1e-6,
                    atol=1e-9,
                )


def _linear_pair() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))


def test_parameters_stay_views_and_per_example_clipping_weighs_samples_alike() -> None:
    model = _linear_pair()
    flat = FlatOptimizer(model, OptimConfig(clip="per_example", max_norm=0.1))
    flat.zero_grad()
    for scale in (1.0, 1000.0):
        (scale * model(torch.ones(1, 5)).sum()).backward()
        flat.end_sample()
    flat.gather(2)
    assert global_norm([flat.grad]).item() == pytest.approx(0.1, rel=1e-3)
    flat.param.zero_()
    assert all(not parameter.any() for parameter in model.parameters())
    names = [name for name, _ in flat.views(flat.param)]
    assert names == [name for name, _ in model.named_parameters()]
    with pytest.raises(ValueError, match="bfloat16"):
        FlatOptimizer(nn.Linear(2, 2).bfloat16(), OptimConfig())


def test_gradients_put_in_place_all_at_once_are_those_added_one_by_one() -> None:
    models = [_linear_pair(), _linear_pair()]
    at_once, one_by_one = (FlatOptimizer(model, OptimConfig()) for model in models)
    for scale in (1.0, 3.0):  # the second adds to the first
        for model, flat in zip(models, (at_once, one_by_one), strict=True):
            loss = (scale * model(torch.ones(2, 5))).square().sum()
            flat.backward(loss) if flat is at_once else loss.backward()
    assert at_once.grad.any() and torch.equal(at_once.grad, one_by_one.grad)
    at_once.zero_grad()
    at_once.backward(models[0][0](torch.ones(2, 5)).sum())  # the second layer gets none
    assert models[0][0].weight.grad.any() and not models[0][1].weight.grad.any()
    with pytest.raises(RuntimeError, match="does not require grad"):
        at_once.backward(torch.ones(()))
    at_once.grad.fill_(2.0)
    assert all((p.grad == 2).all() for p in models[0].parameters())
