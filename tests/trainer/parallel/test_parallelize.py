"""The model shared by several ranks, and runs whose ranks share samples, against one rank."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import exit_code, once_a_run
from tests.trainer.forked import run_ranks
from tests.trainer.parallel.ranks import STEPS, config, fused_rows, in_chunks, main, small_stack
from tests.trainer.synthetic_batch import synthetic_batch, synthetic_complex
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evofeed.base.run_files import RUN
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.model.alphafold import AlphaFold, features_of_cycle
from evofeed.trainer.parallel import rows
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.stacks import add_templates, msa_rows
from evofeed.trainer.presets import tiny, tiny_multimer
from evofeed.trainer.run.checkpoint import newest_checkpoint
from evofeed.trainer.run.train import train

# Of the largest value; the models of the first are in float64, the fused block in float32.
EXACT, FUSED = 1e-12, 2e-4


@pytest.fixture(scope="session")
def four_ranks(tiny_dataset: str) -> Path:
    """The folder that `ranks.py` filled: `cases.json`, and a run in `run`."""

    def make(out: Path) -> None:
        run_ranks(4, main, out, tiny_dataset, folder=out / "logs")

    return once_a_run("four-ranks", make)


@pytest.fixture
def cases(four_ranks: Path) -> dict[str, dict[str, float]]:
    """Differences by case and name."""
    return json.loads((four_ranks / "cases.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", ["other", "odd", "few"])
def test_outputs_and_every_gradient_are_those_of_one_rank(
    cases: dict[str, dict[str, float]], case: str
) -> None:
    """On two ranks in the other order, with checkpoints and masked transitions; on three odd
    numbers of residues, rows and templates with recycling; on four fewer rows than ranks."""
    assert len(cases[case]) > 300
    assert {n: d for n, d in cases[case].items() if not d < EXACT} == {}


def test_so_they_are_on_fused_operators(cases: dict[str, dict[str, float]]) -> None:
    assert len(cases["fused"]) > 90
    assert {n: d for n, d in cases["fused"].items() if not d < FUSED} == {}


@pytest.mark.parametrize("ranks", [1, 3])
def test_predicting_by_rows_and_in_chunks_is_predicting_at_once(
    cases: dict[str, dict[str, float]], ranks: int
) -> None:
    """Each rank has only its rows of the pairs, which are compared."""
    alone = Axis(group=None, rank=0, size=1)
    differences = in_chunks(alone) if ranks == 1 else cases["chunks"]
    assert len(differences) == 2 * (8 + 9) and max(differences.values()) < EXACT


def test_a_chain_of_fewer_residues_than_ranks_is_predicted(
    cases: dict[str, dict[str, float]],
) -> None:
    differences = cases["few residues"]
    assert len(differences) == 6 and max(differences.values()) < EXACT


@pytest.mark.parametrize("ranks", [1, 2])
def test_so_it_is_on_fused_operators_with_the_pairs_overwritten(
    cases: dict[str, dict[str, float]], ranks: int
) -> None:
    alone = Axis(group=None, rank=0, size=1)
    differences = fused_rows(alone) if ranks == 1 else cases["fused rows"]
    assert len(differences) == 4 and max(differences.values()) < FUSED


class Alive(TorchDispatchMode):
    """Peak bytes of the tensors alive at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._nbytes: Any = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves((args, result)):
            if isinstance(x, torch.Tensor):
                self._nbytes[x.untyped_storage()] = x.untyped_storage().nbytes()
        self.peak = max(self.peak, sum(self._nbytes.values()))
        return result


@pytest.fixture
def four_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks of about four rows of a small chain."""
    monkeypatch.setattr(rows, "CPU_BYTES", 100_000)
    rows._budget.cache_clear()
    yield
    rows._budget.cache_clear()


@pytest.mark.usefixtures("four_rows")
def test_overwritten_pairs_are_in_memory_once() -> None:
    """Next to them there is one side of a triangle's product, as large, and some rows."""
    stack, (m, z, *masks) = small_stack(2, 96)
    axis = Axis(group=None, rank=0, size=1, in_place=True)
    with torch.no_grad(), Alive() as alive:
        msa_rows(stack.eval(), axis, m, z, *masks, mask_trans=True)
    assert 2 * z.nbytes < alive.peak <= 2.6 * z.nbytes


@pytest.mark.slow
@pytest.mark.usefixtures("four_rows")
def test_templates_take_the_memory_that_the_documents_say() -> None:
    """Of a chain all of them, of a complex their sum and the last one."""
    N, templates = 32, 4
    sizes = {"num_seq": 1, "num_extra_seq": 1, "num_templates": templates}
    for preset, batch in (
        (tiny().model, synthetic_batch(num_res=N, **sizes)),
        (tiny_multimer().model, synthetic_complex(num_res=N, num_chains=2, **sizes)),
    ):
        model, axis = AlphaFold(preset).eval(), Axis(group=None, rank=0, size=1, in_place=True)
        feats = features_of_cycle(batch, 0)
        z, mask = torch.randn(1, N, N, preset.c_z), torch.ones(1, N, N)
        inputs = sum(x.nbytes for x in batch.values()) + sum(p.nbytes for p in model.parameters())
        with torch.no_grad(), Alive() as alive:
            add_templates(model.template_embedder, axis, feats, z, mask, False)  # type: ignore[arg-type]
        assert preset.template is not None
        stored = templates if preset.multimer is None else min(templates, 2)
        channels = preset.c_z + stored * preset.template.c_t + preset.template.c_hidden_tri_mul
        expected = 4 * N * N * channels  # float32
        assert alive.peak <= 1.25 * expected + inputs, preset


def test_both_ways_to_multiply_triangles_are_the_whole_product(
    cases: dict[str, dict[str, float]],
) -> None:
    differences = cases["products"]
    assert len(differences) == 8 and max(differences.values()) < EXACT


def test_exchanges_through_memory_are_those_through_messages(
    cases: dict[str, dict[str, float]],
) -> None:
    """Odd sizes and empty parts; bfloat16 of three parts is rounded once, so once is allowed.

    A run tests the memory first, and does not use it if a sum is wrong.
    """
    differences = cases["memory"]
    assert len(differences) == 14
    assert {n: d for n, d in differences.items() if not d < (1e-2 if "bf" in n else 1e-6)} == {}
    assert all(d == 0 for n, d in differences.items() if n.startswith(("exchange", "gather")))


def test_parts_differ_by_one_at_most_and_may_be_empty() -> None:
    axis = Axis(group=None, rank=1, size=3)
    assert axis.lengths(11) == [4, 4, 3] and axis.lengths(2) == [1, 1, 0]
    assert axis.part(torch.arange(11)[:, None], -2).flatten().tolist() == [4, 5, 6, 7]


def test_two_times_two_ranks_then_four_together_are_one_rank(
    four_ranks: Path, tiny_dataset: str, tmp_path: Path
) -> None:
    """Two ranks a sample, a checkpoint, then four a sample: the same samples, dropout, weights."""
    shared, alone = four_ranks / "run", tmp_path
    train(
        config(accumulate=2, steps=STEPS, validate_every=STEPS), tiny_dataset, out=alone,
        validation=tiny_dataset, device="cpu",
    )  # fmt: skip
    ours, theirs = read_steps(shared), read_steps(alone)
    assert len(ours) == len(theirs) == STEPS
    for name in ("loss", "norm"):
        expected = [line[name] for line in theirs]
        assert [line[name] for line in ours] == pytest.approx(expected, rel=1e-4)
    assert ours[-1]["metrics"] == pytest.approx(theirs[-1]["metrics"], rel=1e-3, abs=1e-4)
    single, sharded = (newest_checkpoint(folder / "checkpoints") for folder in (alone, shared))
    assert single is not None and sharded is not None
    assert single.state["loader"] == sharded.state["loader"]
    facts = json.loads((shared / RUN).read_text())
    assert facts["samples_per_step"] == 2 and facts["world_size"] == 4


def test_ranks_predict_a_chain_together(
    four_ranks: Path, tiny_dataset: str, tmp_path: Path
) -> None:
    (shared,) = four_ranks.glob("*.pdb")
    alone = tmp_path / shared.name
    chain, checkpoint = shared.stem, str(four_ranks / "run")
    words = ["predict", tiny_dataset, chain, "--checkpoint", checkpoint, "--device", "cpu"]
    assert exit_code(*words, "--out", str(alone)) == 0
    ours, theirs = (
        np.array([[float(line[n : n + 8]) for n in (30, 38, 46)] for line in lines])
        for lines in (_atoms(shared), _atoms(alone))
    )
    assert len(ours) > 50 and np.abs(ours - theirs).max() < 0.01


def _atoms(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("ATOM")]


def test_an_axis_without_ranks_for_it_is_refused(
    tiny_dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("preset: tiny\naxial: 2\n")
    words = ["train", str(run), "--dataset", tiny_dataset, "--out", str(tmp_path / "run")]
    assert exit_code(*words) == 1
    assert "axial is 2, which does not divide 1 rank: use one of 1, or" in capsys.readouterr().err
