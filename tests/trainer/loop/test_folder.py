"""A run's folder has one writer, and a run continues with the data it began with."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from tests.conftest import exit_code
from tests.trainer.forked import fork

from evofeed.base.errors import InputError, TrainerError
from evofeed.store import Dataset, copy_dataset, remove_chains
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.report.run_report import make_report
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.folder import at_run_snapshot, sole_writer, source_of


def hold(out: Path) -> None:
    with sole_writer(out, World()):
        (out / "held").touch()
        time.sleep(600)


def test_a_second_process_may_not_train_into_the_folder_of_a_running_one(tmp_path: Path) -> None:
    out = tmp_path / "run"
    holder = fork(hold, out, log=tmp_path / "log")
    while not (out / "held").exists():
        assert holder.is_alive()
        time.sleep(0.01)
    refused = pytest.raises(TrainerError, match="another process is training into this folder")
    with refused, sole_writer(out, World()):
        pass
    holder.kill()
    holder.join()
    with sole_writer(out, World()):
        pass  # whoever was killed is in nobody's way


def test_a_run_reads_the_ref_it_is_given_and_continues_with_the_snapshot_it_began_with(
    tiny_dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out, recipe = str(tmp_path / "data"), tmp_path / "run", tmp_path / "recipe.yaml"
    copy_dataset(tiny_dataset, data)
    chains = list(Dataset.open(data))
    table = tmp_path / "clusters.tsv"
    table.write_text("".join(f"{chain}\t{chain}\n" for chain in chains))
    split = ["snapshots", "split", data, "--clusters", str(table), "--share", "unseen=0.3"]
    assert exit_code(*split) == 0
    part, unseen = (Dataset.open(data, ref) for ref in ("train", "unseen"))
    assert {*part} | {*unseen} == {*chains} and not {*part} & {*unseen}
    recipe.write_text(
        "preset: tiny\nsteps: 1\nvalidate_every: 1\nvalidate_batches: 1\nprofile_steps: 0\n"
        "loader: {crop_size: 16, max_msa_clusters: 4, max_extra_msa: 4, max_templates: 1}\n"
        "model: {evoformer: {no_blocks: 1}, structure_module: {no_blocks: 1}}\n"
    )
    words = ["train", str(recipe), "--dataset", f"{data}@train", "--validation", f"{data}@unseen"]
    options = ["--out", str(out), "--device", "cpu"]
    assert exit_code(*words, *options) == 0
    began = {"dataset": [part.digest]}
    assert began.items() <= json.loads((out / "run.json").read_text()).items()
    assert "metrics" in read_steps(out)[0]
    remove_chains(data, [next(iter(part))], ref="train")
    assert Dataset.open(data, "train").digest != part.digest
    datasets = at_run_snapshot(f"{data}@train", out, World())
    assert [dataset.digest for dataset in datasets] == [part.digest]
    assert exit_code("train", "--resume", *options, "--steps", "2") == 0
    first, second = read_steps(out)
    assert "metrics" in second and second["terms"].keys() == first["terms"].keys()
    assert began.items() <= json.loads((out / "run.json").read_text()).items()

    shutil.rmtree(data)
    (out / "report.json").unlink()
    (out / "report.json").mkdir()  # nobody can write it: the run is in somebody else's folder
    capsys.readouterr()
    assert exit_code("report", str(out), "--json") == 0
    assert json.loads(capsys.readouterr().out)["figures"]["iterations"] == 2


def test_a_resume_without_a_run_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="no run to continue: give --dataset"):
        source_of(tmp_path)


def test_a_damaged_file_of_facts_is_named_with_what_mends_it(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"dataset": ')
    with pytest.raises(InputError, match=r"run\.json: .*--resume") as caught:
        make_report(tmp_path)
    assert caught.value.path == str(tmp_path / "run.json")


@pytest.mark.parametrize("facts", ["", "[]", '{"dataset": ["a", "b"]}', '{"dataset": null}'])
def test_without_a_run_to_go_on_with_a_uri_stays_as_it_is(tmp_path: Path, facts: str) -> None:
    (tmp_path / "run.json").write_text(facts)
    assert at_run_snapshot(["data/"], tmp_path, World()) == ["data/"]
    assert at_run_snapshot("data/", tmp_path / "none", World()) == "data/"
