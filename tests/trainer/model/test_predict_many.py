"""Several predictions: files, ranking, resume, comparison with the truth, relaxation."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from tests.conftest import SMALL_PACK, exit_code
from tests.loader.recorded import record_of
from tests.service.test_browser import VIEWS, watched
from tests.trainer.conftest import small_run
from tests.trainer.synthetic_batch import synthetic_complex
from tests.trainer.synthetic_records import synthetic_record

from evofeed.base.errors import CheckpointError, InputError
from evofeed.loader import record_batch
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import UNKNOWN
from evofeed.protein.structure_text import Structure, ca_of_mmcif
from evofeed.store import Dataset, DatasetWriter
from evofeed.trainer import AlphaFold, initial_training, tiny, tiny_multimer
from evofeed.trainer.formats.openfold_checkpoint import save_openfold_checkpoint
from evofeed.trainer.predict.compare import compare_to_known
from evofeed.trainer.predict.many import make_tasks, write_prediction
from evofeed.trainer.predict.prediction import Prediction, predict_structure, prediction_batch
from evofeed.trainer.predict.relax import relaxed
from evofeed.trainer.predict.weights import describe_model, load_model
from evofeed.trainer.presets import multimer
from evofeed.trainer.report.page import write_page
from evofeed.trainer.run.train import train

NAMES = ["syn0000_A", "syn0001_A"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = str(tmp_path_factory.mktemp("data") / "set")
    writer = DatasetWriter(uri)
    for number, num_res in enumerate((14, 17)):
        writer.add(synthetic_record(number, num_res=num_res, num_rows=12, num_templates=1))
    writer.commit()
    return uri


@pytest.fixture(scope="module")
def runs(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run of one step, and a copy of it."""
    folder = tmp_path_factory.mktemp("runs")
    crop = {"crop_size": 12, "max_msa_clusters": 4, "max_extra_msa": 4, "max_templates": 1}
    train(small_run(steps=1, loader=crop), dataset, out=folder / "first")
    shutil.copytree(folder / "first", folder / "second")
    return [folder / "first", folder / "second"]


def _predict(*arguments: object) -> int:
    return exit_code("predict", *map(str, arguments), "--recycles", "0", "--device", "cpu")


def test_names_by_weights_by_seeds_are_ranked_and_a_second_run_makes_what_is_missing(
    dataset: str, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [word for run in runs for word in ("--weights", run)]
    rest = (*weights, "--seed", 3, "--seed", 4, "--out", tmp_path / "out")
    assert _predict(dataset, "--all", *rest, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted({row["name"] for row in rows}) == NAMES
    assert len(rows) == 8
    for name in NAMES:
        ranking = json.loads((tmp_path / "out" / name / "ranking.json").read_text())
        assert [row["rank"] for row in ranking] == [1, 2, 3, 4]
        confidences = [row["ranking_confidence"] for row in ranking]
        assert confidences == sorted(confidences, reverse=True)
        assert {(Path(row["weights"]).name, row["seed"]) for row in ranking} == {
            (run, seed) for run in ("first", "second") for seed in (3, 4)
        }
    removed = tmp_path / "out" / NAMES[0] / "first_seed3_scores.json"
    before = removed.read_text()
    removed.unlink()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.cif")}
    assert _predict(dataset, *NAMES, *rest) == 0
    said = capsys.readouterr().out
    assert said.count("(already there)") == 7
    assert json.loads(removed.read_text()) == json.loads(before)
    rewritten = [path.name for path, time in times.items() if path.stat().st_mtime_ns != time]
    assert rewritten == ["first_seed3.cif"]


def test_a_page_shows_two_weights_on_the_known_structure(
    dataset: str, runs: list[Path], tmp_path: Path
) -> None:
    weights = [word for run in runs for word in ("--weights", run)]
    rest = (*weights, "--out", tmp_path / "out", "--distogram", "--html")
    assert _predict(dataset, NAMES[0], *rest) == 0
    page = (tmp_path / "out" / NAMES[0] / "predictions.html").read_text()
    body = page.partition("<script")[0]
    (data,) = re.findall(r'data-structure="(.*?)"', body)
    models = json.loads(html.unescape(data))["models"]
    assert [model["name"] for model in models] == ["first_seed0", "second_seed0", "known structure"]
    assert [model["plddt"] for model in models] == [True, True, False]
    assert len({model["colour"] for model in models}) == 3
    record = Dataset.open(dataset)[NAMES[0]]
    assert record.all_atom_positions is not None and record.all_atom_mask is not None
    resolved = record.all_atom_mask[:, 1] > 0
    rotation, shift = (np.array(part) for part in models[0]["placed"])
    moved = ca_of_mmcif(models[0]["cif"])[1] @ rotation.reshape(3, 3) + shift
    error = ((moved - record.all_atom_positions[:, 1])[resolved] ** 2).sum(-1).mean() ** 0.5
    scores = json.loads((tmp_path / "out" / NAMES[0] / "first_seed0_scores.json").read_text())
    assert error == pytest.approx(scores["known_structure"]["rmsd_ca"], abs=0.02)
    titles = re.findall(r"<figcaption>([^<]*?) ?<", body)
    assert [title for title in titles if title.startswith("distances")] == [
        "distances of CA atoms, first_seed0", "distances of CA atoms, second_seed0",
        "distances of CA atoms, known",
    ]  # fmt: skip
    assert {"mean of the distogram, first_seed0", f"alignment of {NAMES[0]}"} <= set(titles)
    assert "pLDDT by residue" in titles


@pytest.mark.slow
def test_the_pages_of_predictions_and_of_a_run_have_no_fault_in_a_browser(
    dataset: str, runs: list[Path], tmp_path: Path, browser: Browser
) -> None:
    rest = ("--weights", runs[0], "--out", tmp_path / "a.cif", "--distogram", "--html")
    assert _predict(dataset, NAMES[0], *rest) == 0
    write_page([runs[0]], tmp_path / "run.html")
    for view, options in VIEWS.items():
        context = browser.new_context(**options)  # type: ignore[arg-type]
        page = context.new_page()
        said = watched(page)
        for name in ("a.html", "run.html"):
            page.goto(f"file://{tmp_path / name}")
            if name == "a.html":
                expect(page.locator("figure.structure canvas").first).to_be_visible()
            assert not Axe().run(page).response["violations"], (view, name)
            wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wider <= 0, (view, name)
        context.close()
        assert not said, view


def test_weights_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two of the weights are called w1"):
        make_tasks(["a"], [Path("x/w1.npz"), Path("y/w1.npz")], [0], tmp_path, "cif")


def test_a_fasta_names_the_chains_and_another_sequence_is_refused(
    dataset: str, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [synthetic_record(n, num_res=r, num_rows=1, num_templates=1) for n, r in ((0, 14),)]
    fasta = tmp_path / "two.fasta"
    fasta.write_text(f">{NAMES[0]} first\n{records[0].sequence}\n>{NAMES[1]}\nACDE\n")
    assert _predict(dataset, "--fasta", fasta, "--weights", runs[0], "--out", tmp_path / "out") == 1
    said = capsys.readouterr().out
    assert "syn0000_A, 14 residues, mean pLDDT" in said
    assert "syn0001_A has 4 residues here, and another sequence of 17 in the dataset" in said
    assert (tmp_path / "out" / NAMES[0] / "first_seed0.cif").is_file()
    assert not (tmp_path / "out" / NAMES[1] / "first_seed0.cif").exists()


def test_contradictory_options_are_refused_before_the_model_is_read(
    dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        ((dataset, NAMES[0], "--out", tmp_path), "--weights"),
        ((dataset, "--weights", "x", "--out", tmp_path), "--all"),
        ((dataset, *NAMES, "--weights", "x", "--out", tmp_path / "a.pdb"), "give a folder"),
        ((dataset, NAMES[0], "--weights", "x", "--out", "nowhere/a.pdb"), "there is no folder"),
        ((dataset, NAMES[0], "--weights", "x", "--out", "a.pdb", "--html"), "--html shows .cif"),
    ):
        assert _predict(*arguments) == 2
        assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_file_without_weights_is_named_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "params_model_1.npz"
    broken.write_bytes(b"PK\x03\x04 not really")
    for path, reason in (
        (broken, "cannot read it as AlphaFold's"),
        (tmp_path / "x.npz", "no such"),
    ):
        with pytest.raises(CheckpointError, match=reason) as raised:
            load_model(path)
        assert path.name in str(raised.value)


def _complex() -> Prediction:
    torch.manual_seed(0)
    batch = synthetic_complex(num_chains=2, num_res=24, num_seq=5, num_extra_seq=6, num_templates=2)
    return predict_structure(AlphaFold(tiny_multimer().model), batch, name="two")


def test_aligned_errors_and_scores_are_in_the_forms_of_alphafold_db_and_colabfold(
    tmp_path: Path,
) -> None:
    prediction = _complex()
    summary = write_prediction(prediction, tmp_path / "two.cif", facts={"seed": 1}, distogram=True)
    assert summary["ranking_confidence"] == pytest.approx(prediction.scores["ranking"], abs=1e-4)
    assert prediction.pae is not None
    assert ca_of_mmcif((tmp_path / "two.cif").read_text())[0][::23] == ["A 1", "B 12"]
    (afdb,) = json.loads((tmp_path / "two_predicted_aligned_error.json").read_text())
    assert np.array_equal(afdb["predicted_aligned_error"], prediction.pae.round())
    assert afdb["max_predicted_aligned_error"] == 31.75
    scores = json.loads((tmp_path / "two_scores.json").read_text())
    assert np.allclose(scores["pae"], prediction.pae, atol=0.006)
    assert np.allclose(scores["plddt"], prediction.plddt, atol=0.006)
    assert scores["max_pae"] == pytest.approx(prediction.pae.max(), abs=0.006)
    assert {"ptm", "iptm", "seed"} <= set(scores)
    with np.load(tmp_path / "two_distogram.npz") as arrays:
        assert arrays["bin_edges"].shape == (63,)
        assert np.allclose(arrays["probs"], prediction.distogram, atol=1e-3)


def _as_prediction(record: ChainRecord, num_res: int) -> Prediction:
    """The first residues of a known structure."""
    assert record.all_atom_positions is not None and record.all_atom_mask is not None
    structure = Structure(
        name="real", aatype=record.aatype[:num_res], residue_index=np.arange(num_res),
        positions=record.all_atom_positions[:num_res], mask=record.all_atom_mask[:num_res],
        confidence=np.full(num_res, 90.0),
    )  # fmt: skip
    pairs = np.ones((num_res, num_res))
    return Prediction(
        structure=structure, plddt=structure.confidence, distogram=pairs[..., None], contacts=pairs
    )


def test_the_truth_itself_scores_one() -> None:
    record = synthetic_record(5, num_res=30, num_rows=4, num_templates=1)
    prediction = _as_prediction(record, 30)
    assert compare_to_known(prediction, record) == {"lddt_ca": 1.0, "tm_score": 1.0, "rmsd_ca": 0.0}
    unknown = dataclasses.replace(record, all_atom_positions=None, all_atom_mask=None)
    assert compare_to_known(prediction, unknown) == {}


def test_relaxation_lowers_the_energy_and_keeps_heavy_atoms_near() -> None:
    crystal = record_of(SMALL_PACK / "data/golden/102m_A.det.npz")
    prediction = _as_prediction(crystal, 20)
    structure = prediction.structure
    noise = np.random.default_rng(0).normal(size=structure.positions.shape) * 0.1
    moved = dataclasses.replace(structure, positions=structure.positions + noise)
    shaken = dataclasses.replace(prediction, structure=moved)
    after, facts = relaxed(shaken)
    assert facts["energy_after"] < facts["energy_before"]
    assert 0 < facts["moved"] < 0.5
    mask = structure.mask > 0
    assert np.abs(after.structure.positions - shaken.structure.positions)[mask].max() < 2
    unknown = dataclasses.replace(structure, aatype=np.full(20, UNKNOWN))
    with pytest.raises(InputError, match="residue 1 is unknown"):
        relaxed(dataclasses.replace(prediction, structure=unknown))
    collapsed = dataclasses.replace(structure, positions=1e-3 * structure.positions)
    with pytest.raises(InputError, match="cannot be minimised"):
        relaxed(dataclasses.replace(prediction, structure=collapsed))


def test_weights_that_are_loaded_are_not_drawn_first_and_their_kind_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tiny.safetensors"
    torch.manual_seed(0)
    model = AlphaFold(tiny().model)
    save_openfold_checkpoint(model, path)
    state = torch.get_rng_state()
    loaded = load_model(path, config=tiny().model)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    drawn = AlphaFold(tiny().model).evoformer.blocks[0].state_dict()
    assert all(value.isfinite().all() for value in drawn.values())
    assert describe_model(initial_training(ptm=True).model) == "AlphaFold2 with templates and pTM"
    assert describe_model(multimer().model) == "AlphaFold-Multimer v3"
    assert describe_model(tiny().model).endswith("not of AF2's size")


def test_padding_rows_of_an_alignment_are_omitted_on_a_cpu_and_change_nothing() -> None:
    torch.manual_seed(0)
    model = AlphaFold(tiny().model).double()
    record = synthetic_record(3, num_res=20, num_rows=9, num_templates=1)
    pairs = []
    for clusters, extra in ((6, 8), (12, 7)):  # with extra rows, and with none
        sizes = {"max_msa_clusters": clusters, "max_extra_msa": extra, "max_templates": 1}
        unpadded = prediction_batch(record, model, no_recycling_iters=1, **sizes)
        padded = record_batch(record, no_recycling_iters=1, **sizes)
        assert unpadded["msa_feat"].shape[2] == min(clusters, 9)
        assert unpadded["extra_msa"].shape[2] == max(1, 9 - clusters)
        with torch.no_grad():
            for batch in (unpadded, padded):
                doubled = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
                pairs.append(model.eval()(doubled)["pair"])
        torch.testing.assert_close(pairs[-2], pairs[-1], rtol=1e-9, atol=1e-9)
