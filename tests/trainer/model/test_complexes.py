"""Complexes from batch to loss, scores and files: labels, DockQ, training, prediction."""

from __future__ import annotations

from typing import Any

import gemmi
import numpy as np
import pytest
import torch
from tests.trainer.model.test_permutation import kabsch
from tests.trainer.synthetic_batch import synthetic_complex
from torch import Tensor

from evofeed.featurize.structures.mmcif import _local_plddt
from evofeed.protein.features import SUPERVISED
from evofeed.protein.structure_text import chain_name
from evofeed.trainer import AlphaFold, AlphaFoldLoss, tiny_multimer
from evofeed.trainer.losses.chain_labels import GROUND_TRUTH, flat_batch, with_assigned_truth
from evofeed.trainer.losses.lddt import lddt
from evofeed.trainer.losses.metrics import dockq
from evofeed.trainer.predict.prediction import predict_structure

SIZES: dict[str, Any] = {"num_res": 24, "num_seq": 5, "num_extra_seq": 6, "num_templates": 2}
TRUTH = (*SUPERVISED, "aatype", "asym_id", "entity_id", "sym_id", "residue_index")


def _dimer(seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Two copies of one sequence in different shapes, and the truth of both."""
    batch: dict[str, Any] = synthetic_complex(num_chains=2, seed=seed, **SIZES | changes)
    batch["entity_id"] = torch.ones_like(batch["entity_id"])
    batch["sym_id"] = batch["asym_id"].clone()
    batch["gt_features"] = {name: batch[name] for name in TRUTH}
    return batch


def _swapped(value: Tensor) -> Tensor:
    return torch.cat([value[:, 12:], value[:, :12]], dim=1)


def test_a_prediction_with_its_copies_swapped_gets_the_labels_swapped_and_no_loss() -> None:
    batch = flat_batch(_dimer())
    assert batch[f"{GROUND_TRUTH}all_atom_positions"].shape[1] == 1024
    exact = {"final_atom_positions": _swapped(batch["all_atom_positions"])}
    for outputs, expected in (
        (exact, _swapped(batch["backbone_rigid_tensor"])),
        ({"final_atom_positions": batch["all_atom_positions"]}, batch["backbone_rigid_tensor"]),
    ):
        assigned = with_assigned_truth(outputs, batch, no_chains=4)
        assert torch.equal(assigned["backbone_rigid_tensor"], expected)
        assert torch.equal(assigned["all_atom_positions"], outputs["final_atom_positions"])
        assert torch.equal(assigned["asym_id"], batch["asym_id"])
        assert not any(name.startswith(GROUND_TRUTH) for name in assigned)


def test_the_loss_is_that_of_the_assigned_labels() -> None:
    torch.manual_seed(0)
    model = AlphaFold(tiny_multimer().model)
    batch = flat_batch(_dimer())
    outputs = model(batch)
    loss = AlphaFoldLoss(tiny_multimer().loss)
    assigned = with_assigned_truth(outputs, batch, no_chains=20)
    plain = {n: v for n, v in batch.items() if not n.startswith(GROUND_TRUTH)}
    swapped = {
        n: _swapped(v) if n in TRUTH and torch.is_floating_point(v) else v for n, v in plain.items()
    }
    values = [loss(outputs, b)[0].item() for b in (batch, assigned, plain, swapped)]
    assert values[0] == values[1]
    assert values[0] in values[2:]


def test_a_complex_is_written_with_its_chains_entities_and_scores() -> None:
    torch.manual_seed(0)
    model = AlphaFold(tiny_multimer().model)
    batch = synthetic_complex(num_chains=3, **SIZES)
    prediction = predict_structure(model, batch, name="three")
    assert set(prediction.scores) == {"ptm", "iptm", "ranking"}
    assert 0 <= prediction.scores["iptm"] <= 1
    pdb = prediction.text("pdb").splitlines()
    assert pdb[0].startswith("REMARK   1 ptm ")
    assert sum(line.startswith("TER") for line in pdb) == 3
    assert {line[21] for line in pdb if line.startswith("ATOM")} == {"A", "B", "C"}
    serials = [int(line[6:11]) for line in pdb if line.startswith(("ATOM", "TER"))]
    assert serials == list(range(1, len(serials) + 1))
    rows = [line.split() for line in prediction.text("cif").splitlines() if line.startswith("ATOM")]
    assert [row[6:8] for row in rows[:1]] == [["A", "1"]]
    assert {(row[6], row[7]) for row in rows} == {("A", "1"), ("B", "1"), ("C", "2")}
    assert all(row[16] == row[6] for row in rows)
    block = gemmi.cif.read_string(prediction.text("cif")).sole_block()
    local, structure = _local_plddt(block), prediction.structure  # as our own reader asks for it
    assert len(local) == len(prediction.plddt)
    for row, value in enumerate(prediction.plddt):
        key = structure.chain_and_entity(row)[0], int(structure.residue_index[row]) + 1
        assert local[key] == pytest.approx(value, abs=0.006)
    (global_plddt,) = block.find_values("_ma_qa_metric_global.metric_value")
    assert float(global_plddt) == pytest.approx(prediction.plddt.mean(), abs=0.006)
    entities = set(block.find_values("_entity_poly_seq.entity_id"))
    assert entities == set(block.find_values("_entity.id"))
    read = gemmi.read_pdb_string(prediction.text("pdb")), gemmi.make_structure_from_block(block)
    atoms = [
        [(c.chain.name, c.residue.name, c.residue.seqid.num, c.atom.name, *c.atom.pos.tolist(),
          c.atom.b_iso) for c in parsed[0].all()]
        for parsed in read
    ]  # fmt: skip
    assert atoms[0] == atoms[1] and len(atoms[0]) == int(structure.mask.sum())
    assert list(dict.fromkeys(atom[0] for atom in atoms[0])) == ["A", "B", "C"]
    assert sum(len(chain) for chain in read[1][0]) == 24


def test_a_complex_without_templates_has_the_result_of_an_empty_slot() -> None:
    torch.manual_seed(0)
    preset = tiny_multimer()
    model = AlphaFold(preset.model).eval()
    batch = synthetic_complex(num_chains=2, **SIZES | {"num_res": 12, "num_templates": 1})
    templates = {name for name in batch if name.startswith("template_")}
    slot = {name: torch.zeros_like(v) if name in templates else v for name, v in batch.items()}
    cut = {name: v[:, :0] if name in templates else v for name, v in batch.items()}
    without = {name: v for name, v in batch.items() if name not in templates}
    positions = []
    for features in (slot, cut, without):
        outputs = model(features)
        loss, _ = AlphaFoldLoss(preset.loss)(outputs, features)
        assert torch.isfinite(loss)
        positions.append(outputs["final_atom_positions"])
    assert torch.equal(positions[0], positions[1]) and torch.equal(positions[0], positions[2])


def test_chains_are_named_past_the_alphabet() -> None:
    assert [chain_name(n) for n in (1, 26, 27, 28, 53)] == ["A", "Z", "AA", "BA", "AB"]


def _two_walls(gap: float) -> tuple[Tensor, Tensor, Tensor]:
    """Two straight chains of CA-like residues side by side, `gap` ångström apart."""
    atoms = torch.zeros(40, 37, 3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    along = torch.arange(20) * 3.8
    for chain in range(2):
        part = atoms[20 * chain : 20 * chain + 20]
        part += torch.randn(part.shape, generator=generator, dtype=torch.float64) * 0.3
        part[..., 0] += along[:, None]
        part[..., 1] += gap * chain
    mask = torch.zeros(40, 37)
    mask[:, [0, 1, 2, 4]] = 1
    return atoms, mask, torch.arange(40) // 20 + 1


def test_dockq_of_the_truth_is_one_and_falls_as_the_ligand_moves_away() -> None:
    atoms, mask, asym_id = _two_walls(4.5)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    turn = turn * torch.sign(torch.linalg.det(turn))
    assert float(dockq(atoms @ turn + 5, atoms, mask, asym_id)) == pytest.approx(1.0, abs=1e-6)
    moved = atoms.clone()
    moved[20:, :, 1] += 8.5  # no contact is left, and the ligand is off by 8.5: that term is a half
    score = float(dockq(moved, atoms, mask, asym_id))
    x, y = (positions[:, [0, 1, 2, 4]].flatten(0, 1) for positions in (moved, atoms))
    interface = kabsch(x.numpy(), y.numpy())
    assert score == pytest.approx((0 + 1 / (1 + (interface / 1.5) ** 2) + 0.5) / 3, abs=1e-6)
    assert np.isnan(float(dockq(atoms, _two_walls(30.0)[0], mask, asym_id)))


def test_interface_lddt_counts_distances_between_chains_alone() -> None:
    atoms, mask, asym_id = _two_walls(4.5)
    moved = atoms.clone()
    moved[20:, :, 1] += 1.5  # distances within a chain stay, between them change up to 1.5
    ca, resolved = atoms[:, 1].double(), mask[:, 1].double()
    interface = lddt(moved[:, 1].double(), ca, resolved, per_residue=False, between=asym_id)
    inside = lddt(moved[:20, 1].double(), ca[:20], resolved[:20], per_residue=False)
    assert float(inside) == pytest.approx(1.0) and 0.4 < float(interface) < 0.9
    far = _two_walls(30.0)[0][:, 1].double()
    assert lddt(far, far, resolved, eps=0.0, per_residue=False, between=asym_id).isnan()
