"""The real model on the real loader: tiny preset, synthetic chains, CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import exit_code
from tests.trainer.conftest import SMALL, small_run
from tests.trainer.forked import run_ranks
from tests.trainer.synthetic_batch import synthetic_batch

from evofeed.base.errors import CannotResume, CheckpointError, InputError, TrainerError
from evofeed.base.run_files import STRUCTURE
from evofeed.cli import main
from evofeed.protein.residues import ATOM_ORDER
from evofeed.store import Dataset
from evofeed.trainer.config import OptimConfig, TrainConfig, save_config
from evofeed.trainer.formats.openfold_checkpoint import save_openfold_checkpoint
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.losses import AlphaFoldLoss
from evofeed.trainer.model.alphafold import last_recycle
from evofeed.trainer.report.run_report import make_report, report_rows
from evofeed.trainer.run.build import build_model
from evofeed.trainer.run.checkpoint import CheckpointWriter, newest_checkpoint
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.flat import FlatOptimizer
from evofeed.trainer.run.gradients import find_untouched
from evofeed.trainer.run.result import TrainResult
from evofeed.trainer.run.train import train
from evofeed.trainer.run.validation import held_out, validator

CROP = {"crop_size": 16, "max_msa_clusters": 4, "max_extra_msa": 6, "max_templates": 1}


def config(steps: int, **changes: Any) -> TrainConfig:
    optim = OptimConfig(warmup_steps=4, learning_rate=2e-3, ema_decay=0.9)
    return small_run(**{"steps": steps, "loader": CROP, "optim": optim, **changes})


@pytest.fixture(autouse=True)
def _precision_as_before() -> Any:
    yield
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")


@pytest.mark.slow
def test_resume_equals_never_having_stopped_bit_for_bit(tiny_dataset: str, tmp_path: Path) -> None:
    uninterrupted = train(config(4, deterministic=True), tiny_dataset, out=tmp_path / "whole")
    first = train(config(2, deterministic=True), tiny_dataset, out=tmp_path / "parts")
    second = train(config(4, deterministic=True), tiny_dataset, out=tmp_path / "parts", resume=True)
    assert second.first_step == 2
    assert first.losses + second.losses == uninterrupted.losses
    a, b = (newest_checkpoint(tmp_path / name / "checkpoints") for name in ("whole", "parts"))
    assert a is not None and b is not None
    for file in ("model", "ema", "optimizer"):
        expected = a.tensors(file)
        assert all(torch.equal(v, expected[k]) for k, v in b.tensors(file).items()), file


@pytest.mark.slow
def test_the_loss_of_a_few_chains_falls_in_bfloat16(tiny_dataset: str, tmp_path: Path) -> None:
    larger = {"crop_size": 24, "max_msa_clusters": 8, "max_extra_msa": 12, "epoch_len": 2}
    model = {"evoformer": {"no_blocks": 1}, "structure_module": {"no_blocks": 2}}
    settings = config(40, precision="bf16", loader={**CROP, **larger}, model=model)
    result = train(settings, tiny_dataset, out=tmp_path)
    lines = read_steps(tmp_path)
    for term in ("loss", "distogram"):
        values = [line["terms"][term] for line in lines]
        assert sum(values[-8:]) < 0.95 * sum(values[:8]), term
    assert not result.skipped and not result.untouched


@pytest.mark.slow
def test_a_run_handed_from_one_rank_to_two_is_the_same_run(
    tiny_dataset: str, tmp_path: Path
) -> None:
    alone = train(config(3, accumulate=2), tiny_dataset, out=tmp_path / "alone").losses
    out, path = tmp_path / "stitched", tmp_path / "two.yaml"
    train(config(1, accumulate=2), tiny_dataset, out=out)
    save_config(config(3), path)
    where = ["--dataset", tiny_dataset, "--out", str(out), "--resume", "--device", "cpu"]
    run_ranks(2, main, ["train", str(path), *where, "--json"], folder=tmp_path)
    lines = read_steps(out)
    assert [line["loss"] for line in lines] == pytest.approx(alone, rel=1e-5)
    norms = [line["norm"] for line in read_steps(tmp_path / "alone")]
    assert [line["norm"] for line in lines] == pytest.approx(norms, rel=1e-3)


@pytest.mark.parametrize("name", ["run", "run/checkpoints/step_00000007", "a.npz"])
def test_a_run_starts_from_the_weights_of_another(tmp_path: Path, name: str) -> None:
    trained = build_model(config(1, seed=5), torch.device("cpu"))[0]
    save_openfold_checkpoint(trained, tmp_path / "a.npz")
    writer = CheckpointWriter(tmp_path / "run" / "checkpoints")
    writer.save(FlatOptimizer(trained, OptimConfig()), 7, {})
    writer.wait()
    model, _ = build_model(config(1), torch.device("cpu"), tmp_path / name)
    expected = trained.state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in model.state_dict().items())
    larger = config(1, model={**SMALL, "c_m": 48})
    with pytest.raises(CheckpointError, match=r"configuration|shape"):
        build_model(larger, torch.device("cpu"), tmp_path / name)


def test_every_loss_preset_touches_every_parameter(tmp_path: Path) -> None:
    model, loss = build_model(config(1), torch.device("cpu"))
    assert isinstance(loss, AlphaFoldLoss)
    batch = synthetic_batch(num_res=8, num_seq=3, num_extra_seq=4, num_templates=1)

    def terms(outputs: Any, batch: Any) -> Any:
        tensors = {k: v for k, v in outputs.items() if isinstance(v, torch.Tensor)}
        return loss.terms(tensors, outputs["sm"], last_recycle(batch))

    weights = dict.fromkeys(terms(model(batch), batch), 1.0)
    assert find_untouched(model, batch, terms, weights) == []
    named = find_untouched(model, batch, terms, {"fape": 1.0})
    heads = {entry.name: entry.terms for entry in named}
    assert heads["aux_heads.distogram.linear.weight"] == ("distogram",)
    assert not any(name.startswith("evoformer") for name in heads)


@pytest.mark.slow
def test_the_command_trains_reports_and_refuses_what_does_not_fit(
    tiny_dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = tmp_path / "run.yaml"
    save_config(config(3), path)
    arguments = ["train", str(path), "--dataset", tiny_dataset, "--out", str(tmp_path / "run")]
    assert exit_code(*arguments, "--json", "--tensorboard") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["figures"]["iterations"] == 3
    assert report["run"]["dataset"][0]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert {"train/loss", "train/norm", "time/step", "terms/fape"} <= set(events.Tags()["scalars"])
    structure, picture = tmp_path / "chain.pdb", tmp_path / "chain.png"
    checkpoint = str(tmp_path / "run")
    predict = ["predict", tiny_dataset, "syn0003_A", "--checkpoint", checkpoint]
    predict += ["--out", str(structure), "--picture", str(picture), "--recycles", "0"]
    assert exit_code(*predict, "--json") == 0
    reported = json.loads(capsys.readouterr().out)
    assert structure.read_text().count(" CA ") == reported["residues"] > 30
    assert picture.stat().st_size > 10_000
    with pytest.raises(TrainerError, match="seed"):
        train(config(5, seed=7), tiny_dataset, out=tmp_path / "run", resume=True)
    with pytest.raises(TrainerError, match=r"took 1 samples, .* take 3 .*change accumulate"):
        train(config(5, accumulate=3), tiny_dataset, out=tmp_path / "run", resume=True)
    with pytest.raises(CannotResume, match="config"):
        train(
            config(5, loader={**CROP, "num_blocks": 1}), tiny_dataset, out=tmp_path / "run",
            resume=True,
        )  # fmt: skip


@pytest.mark.slow
def test_validation_measures_the_same_chains_every_time(tiny_dataset: str, tmp_path: Path) -> None:
    settings = config(2, validate_every=1, validate_batches=2)
    train(settings, tiny_dataset, validation=tiny_dataset, out=tmp_path / "run")
    first, second = (line["metrics"] for line in read_steps(tmp_path / "run") if "metrics" in line)
    structure = {name for name in first if not name.startswith("violations_")}
    assert structure == {"lddt_ca", "drmsd_ca", "rmsd_ca", "tm_score"}
    assert len(first) == 9 and all(0 <= first[name] <= 1 for name in first.keys() - structure)
    assert 0 < first["lddt_ca"] < 1
    untrained = build_model(settings, torch.device("cpu"))[0].eval()
    chains = held_out(settings, Dataset.open(tiny_dataset), World())
    validate = validator(settings, untrained, chains, World())
    assert validate() == validate()
    assert first != second


def test_a_model_that_gives_nan_is_validated_as_that(tiny_dataset: str, tmp_path: Path) -> None:
    settings = config(1, validate_batches=1)
    model = build_model(settings, torch.device("cpu"))[0].eval()
    next(model.parameters()).data.fill_(torch.nan)
    chains = held_out(settings, Dataset.open(tiny_dataset), World())
    metrics = validator(settings, model, chains, World(), tmp_path / "structure.npz")()
    assert metrics and all(np.isnan(value) for value in metrics.values())
    assert not list(tmp_path.iterdir())  # no structure to show


def test_validation_takes_every_chain_once_whichever_are_trained_on(tiny_dataset: str) -> None:
    dataset = Dataset.open(tiny_dataset)
    trained = {"chains": ("another",), "released_until": "1970-01-01"}
    settings = config(1, validate_batches=100, loader={**CROP, **trained})
    for size in (1, 2):
        worlds = [World(rank=rank, size=size) for rank in range(size)]
        by_rank = [list(held_out(settings, dataset, world)()) for world in worlds]
        assert [len(batches) for batches in by_rank] == [-(-len(dataset.index) // size)] * size
        # The best template every time: training draws whether there is one.
        assert all(batch["template_mask"].all() for batches in by_rank for batch in batches)


@pytest.mark.slow
def test_fixed_batches_of_a_mixture_are_measured_without_a_validation_set(
    tiny_dataset: str, tmp_path: Path
) -> None:
    settings = config(2, fixed_batches=1, validate_every=1, shares=(0.25, 0.75))
    with pytest.raises(InputError, match="2 shares for 1 datasets"):
        train(settings, tiny_dataset, out=tmp_path / "wrong")
    train(settings, [tiny_dataset, tiny_dataset], out=tmp_path / "run")
    lines = read_steps(tmp_path / "run")
    report = make_report(tmp_path / "run")
    assert [entry["step"] for entry in report["validation"]] == [1, 2]
    assert any("lddt_ca" in text for _, text in report_rows(report))
    with np.load(tmp_path / "run" / STRUCTURE) as traces:
        assert traces["pred"].shape == traces["true"].shape and len(traces["true"]) > 10
        assert traces["first"].shape == traces["pred"].shape  # of the first validation
        assert not np.array_equal(traces["first"], traces["pred"])
        ca = ATOM_ORDER["CA"]
        error = ((traces["pred"] - traces["true"])[:, ca] ** 2).sum(-1).mean() ** 0.5
    assert error == pytest.approx(lines[-1]["metrics"]["rmsd_ca"], rel=1e-3)
    assert all("metrics" in line for line in lines)
    assert len({line["recycles"] for line in lines}) == 1
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert len(run["dataset"]) == 2


def test_the_command_hands_on_datasets_shares_and_chains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    received: list[Any] = []

    def note(*arguments: Any, **options: Any) -> TrainResult:
        received.extend(arguments)
        return TrainResult(out=options["out"])

    monkeypatch.setattr("evofeed.trainer.run.train.train", note)
    mixture = ["--dataset", "pdb", "--share", "0.25", "--dataset", "distilled", "--share", "0.75"]
    exit_code("train", "overfit", *mixture, "--chain", "1abc_A", "--out", str(tmp_path))
    settings, datasets = received
    assert datasets == ["pdb", "distilled"] and settings.shares == (0.25, 0.75)
    assert settings.loader == {"chains": ("1abc_A",)}
    for words, says in (
        (["train", "tiny", "--dataset", "data", "--out", "out", "--share", "-1"], "above 0"),
        (["train", "tiny"], "--dataset"),
    ):
        assert exit_code(*words) == 2
        assert says in capsys.readouterr().err
