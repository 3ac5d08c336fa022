"""A chain and a checkpoint give a structure file that others can read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.trainer.synthetic_batch import synthetic_batch
from tests.trainer.synthetic_records import synthetic_record

from evofeed.loader import record_batch
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import RESTYPE_3, UNKNOWN
from evofeed.protein.structure_text import Structure, to_mmcif, to_pdb
from evofeed.trainer import AlphaFold, tiny
from evofeed.trainer.config import save_config
from evofeed.trainer.formats.openfold_checkpoint import save_openfold_checkpoint
from evofeed.trainer.parallel.rows import out_of_memory
from evofeed.trainer.predict.prediction import Prediction, predict_structure, prepare_model
from evofeed.trainer.predict.weights import load_model, trained_sizes
from evofeed.trainer.presets import PRESETS

pytestmark = pytest.mark.slow

L = 24
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def record() -> ChainRecord:
    record = synthetic_record(0, num_res=L, num_rows=7, num_templates=2)
    aatype, msa = record.aatype.copy(), record.msa.copy()
    aatype[3] = msa[0, 3] = UNKNOWN
    sequence = f"{record.sequence[:3]}X{record.sequence[4:]}"
    return replace(record, aatype=aatype, msa=msa, sequence=sequence).validate()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_openfold_checkpoint(AlphaFold(tiny().model), path)
    return path


def _atoms_of_pdb(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("ATOM")]


@pytest.fixture(scope="module")
def prediction(record: ChainRecord, checkpoint: Path) -> Prediction:
    model = load_model(checkpoint, config=tiny().model)
    return predict_structure(model, record_batch(record, no_recycling_iters=1), name="test_A")


def test_a_record_becomes_a_pdb_with_plddt_in_the_b_column(
    record: ChainRecord, prediction: Prediction
) -> None:
    text = prediction.text()
    with pytest.raises(ValueError, match="use 'pdb' or 'cif'"):
        prediction.text("xyz")
    atoms = _atoms_of_pdb(text)
    assert all(len(line) == 80 for line in text.splitlines())
    assert len(atoms) == int(prediction.structure.mask.sum())
    assert {int(line[22:26]) for line in atoms} == set(range(1, L + 1)) - {4}  # X has no atoms
    for line in atoms:
        i = int(line[22:26]) - 1
        assert line[17:20] == RESTYPE_3[record.aatype[i]]
        assert float(line[60:66]) == pytest.approx(prediction.plddt[i], abs=0.006)
        assert line[76:78].strip() == line[12:16].strip()[0]


def test_contacts_and_distogram_are_probabilities_and_symmetric(prediction: Prediction) -> None:
    assert prediction.distogram.shape == (L, L, 64)
    assert np.allclose(prediction.distogram.sum(-1), 1, atol=1e-5)
    assert np.allclose(prediction.contacts, prediction.contacts.T, atol=1e-6)
    assert ((prediction.contacts >= 0) & (prediction.contacts <= 1)).all()
    assert ((prediction.plddt >= 0) & (prediction.plddt <= 100)).all()


def test_padding_of_a_batch_is_left_out(checkpoint: Path) -> None:
    batch = synthetic_batch(num_res=12, num_seq=3, num_extra_seq=3, num_templates=1)
    batch["seq_mask"][:, -4:] = 0
    text = predict_structure(load_model(checkpoint, config=tiny().model), batch).text()
    assert {int(line[22:26]) for line in _atoms_of_pdb(text)} == set(range(1, 9))


def test_what_does_not_fit_into_pdb_columns_is_refused_and_fits_mmcif() -> None:
    structure = Structure(
        name="far away!",
        aatype=np.zeros(1, np.int64),
        residue_index=np.zeros(1, np.int64),
        positions=np.full((1, 37, 3), 12345.678),
        mask=np.eye(37)[:1],
        confidence=np.full(1, 50.0),
    )
    with pytest.raises(ValueError, match=r"atom 1 of residue 1 .* write mmCIF"):
        to_pdb(structure)
    assert "12345.678 12345.678 12345.678 1.00 50.00" in to_mmcif(structure)
    assert to_mmcif(structure).startswith("data_far_away_\n")


def test_a_run_predicts_with_the_sizes_it_was_trained_with(tmp_path: Path) -> None:
    changes = {"max_templates": 3, "max_recycling_iters": 1}
    save_config(PRESETS["tiny"]().train.replace(loader=changes), tmp_path / "config.yaml")
    checkpoint = tmp_path / "checkpoints" / "step_00000001"
    checkpoint.mkdir(parents=True)
    sizes = {
        "max_msa_clusters": 16,
        "max_extra_msa": 32,
        "max_templates": 3,
        "no_recycling_iters": 1,
    }
    assert trained_sizes(tmp_path) == trained_sizes(checkpoint) == sizes
    assert trained_sizes(tmp_path / "weights.npz") == {}


def test_out_of_memory_differs_from_other_errors() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.81 GiB\nmore")
    assert out_of_memory(error) == "CUDA out of memory. Tried to allocate 3.81 GiB"
    assert out_of_memory(RuntimeError("shapes")) == ""


@pytest.mark.parametrize("num_res", [8, 2000], ids=["at once", "in chunks"])
def test_progress_reports_every_block_of_every_pass(record: ChainRecord, num_res: int) -> None:
    sizes = tiny().model
    sizes = replace(sizes, structure_module=replace(sizes.structure_module, no_blocks=1))
    model, reported = AlphaFold(sizes), []
    batch = record_batch(record, no_recycling_iters=1)
    model = prepare_model(model, num_res)
    predict_structure(model, batch, progress=lambda *counts: reported.append(counts))
    total = 2 * (len(model.evoformer.blocks) + len(model.extra_msa_stack.blocks))
    assert reported == [(done, total) for done in range(1, total + 1)]
    predict_structure(model, batch)
    assert len(reported) == total
