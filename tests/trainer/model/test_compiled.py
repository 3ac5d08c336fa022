"""Operators compiled in runs with CUDA graphs give the numbers of the plain ones."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.trainer.forked import run_ranks
from tests.trainer.synthetic_batch import synthetic_batch
from torch import Tensor

from evofeed.trainer import AlphaFold, AlphaFoldLoss, tiny
from evofeed.trainer.model.compiled import compile_structure


def compare() -> None:
    """Structure module and losses plain, compiled, and compiled but told to be eager.

    In a separate process: the shape checks of a test run cannot be traced. Graphs run as they
    were traced: the code generator's compiler is not what is tested.
    """
    torch.compile = partial(torch.compile, backend="aot_eager")
    torch.manual_seed(0)
    config = tiny()
    model, loss = AlphaFold(config.model).eval(), AlphaFoldLoss(config.loss)
    batch = synthetic_batch(num_res=12, num_seq=4, num_extra_seq=4, num_templates=2)
    with torch.no_grad():
        for parameter in model.structure_module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))

    def values() -> list[Tensor]:
        total, _ = loss(model(batch), batch)
        parameters = list(model.structure_module.parameters())
        grads = torch.autograd.grad(total, parameters, allow_unused=True)
        return [total.detach(), *(g for g in grads if g is not None)]

    plain = values()
    compile_structure(model.structure_module)
    counted: Any = torch._dynamo.utils.counters
    counted.clear()
    compiled = values()
    graphs = counted["stats"]["unique_graphs"]
    with torch.compiler.set_stance("force_eager"):
        eager = values()
    pairs = zip(compiled, plain, strict=True)
    worst = max(float((a - b).norm() / b.norm().clamp(min=1e-6)) for a, b in pairs)
    same = all(torch.equal(a, b) for a, b in zip(eager, plain, strict=True))
    print(json.dumps({"numbers": len(plain), "worst": worst, "graphs": graphs, "eager": same}))


def test_the_compiled_structure_and_its_losses_give_equal_numbers(tmp_path: Path) -> None:
    report = json.loads(run_ranks(1, compare, folder=tmp_path).splitlines()[-1])
    assert report["numbers"] > 30 and report["graphs"] >= 7
    assert report["worst"] < 1e-3
    assert report["eager"]
