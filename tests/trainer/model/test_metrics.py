"""Metrics of structures: known answers, invariance to rigid motions; implausible structures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.trainer.synthetic_batch import synthetic_batch
from torch import Tensor

from evofeed.protein.residues import ATOM_ORDER
from evofeed.trainer.losses.metrics import structure_metrics, superpose
from evofeed.trainer.model.rigid import quaternion_to_matrix
from evofeed.trainer.predict.plausible import implausible


@pytest.fixture
def chain() -> tuple[Tensor, Tensor]:
    batch = synthetic_batch(num_res=60, num_seq=1, num_extra_seq=1, num_templates=0, batch_size=2)
    return batch["all_atom_positions"], batch["all_atom_mask"]


def _moved(positions: Tensor) -> Tensor:
    quaternion = torch.nn.functional.normalize(torch.tensor([0.3, -0.5, 0.7, 0.2]), dim=0)
    return positions @ quaternion_to_matrix(quaternion).T + torch.tensor([10.0, -20.0, 5.0])


def test_a_moved_copy_is_perfect(chain: tuple[Tensor, Tensor]) -> None:
    positions, mask = chain
    metrics = structure_metrics(_moved(positions), positions, mask)
    assert torch.allclose(metrics["lddt_ca"], torch.ones(2).double())
    assert torch.allclose(metrics["tm_score"], torch.ones(2).double(), atol=1e-6)
    assert metrics["rmsd_ca"].max() < 1e-4
    assert metrics["drmsd_ca"].max() < 1e-4


def test_a_mirror_image_fools_distances_but_not_the_superposition(
    chain: tuple[Tensor, Tensor],
) -> None:
    positions, mask = chain
    metrics = structure_metrics(positions * torch.tensor([1.0, 1.0, -1.0]), positions, mask)
    assert metrics["drmsd_ca"].max() < 1e-4
    assert metrics["rmsd_ca"].min() > 1
    assert metrics["tm_score"].max() < 0.9


def test_noise_of_known_size_gives_its_rmsd_and_masked_atoms_do_not_count(
    chain: tuple[Tensor, Tensor],
) -> None:
    positions, mask = chain
    generator = torch.Generator().manual_seed(0)
    noisy = _moved(positions) + 0.5 * torch.randn(positions.shape, generator=generator)
    mask = mask.clone()
    mask[:, 50:] = 0
    noisy[:, 50:] += 100
    metrics = structure_metrics(noisy, positions, mask)
    expected = 0.5 * math.sqrt(3)
    assert torch.allclose(metrics["rmsd_ca"], torch.full([2], expected).double(), rtol=0.2)
    assert ((metrics["tm_score"] > 0.7) & (metrics["tm_score"] < 1)).all()
    assert ((metrics["lddt_ca"] > 0.5) & (metrics["lddt_ca"] < 1)).all()


def test_superposing_weighs_points(chain: tuple[Tensor, Tensor]) -> None:
    ca = chain[0][..., ATOM_ORDER["CA"], :].double()
    broken = ca.clone()
    broken[:, 30:] += 200
    weight = torch.ones(ca.shape[:-1]).double()
    weight[:, 30:] = 0
    assert torch.allclose(superpose(broken, ca, weight)[:, :30], ca[:, :30], atol=1e-6)


def test_a_prediction_that_is_not_finite_has_no_score_and_spares_the_others(
    chain: tuple[Tensor, Tensor],
) -> None:
    positions, mask = chain
    broken = positions.clone()
    broken[0, 3, ATOM_ORDER["CA"], 1] = math.inf
    for name, value in structure_metrics(broken, positions, mask).items():
        assert value[0].isnan(), name
        assert value[1] == structure_metrics(positions, positions, mask)[name][1]


HELIX = np.array(
    [[2.3 * np.cos(1.745 * i), 2.3 * np.sin(1.745 * i), 1.5 * i] for i in range(40)]
)  # CA atoms of an alpha helix: 3.8 ångström apart


def said(ca: np.ndarray) -> str:
    return implausible(ca, np.arange(len(ca)), np.zeros(len(ca)))


def test_a_helix_is_a_protein() -> None:
    assert said(HELIX) == ""


@pytest.mark.parametrize(
    ("ca", "words"),
    [
        (np.zeros((34, 3)), "collapsed: consecutive CA atoms are 0.00 Å"),
        (HELIX * 0.1, "collapsed"),
        (HELIX * 2.0, "physically impossible: only 0% of consecutive"),
        (np.concatenate([HELIX, HELIX[::-1] + np.array([0.0, 0.0, 0.1])]), "within 2.0 Å"),
    ],
)
def test_what_no_protein_has_is_named(ca: np.ndarray, words: str) -> None:
    assert words in said(ca)


def test_chains_and_gaps_are_not_bonded() -> None:
    two = np.concatenate([HELIX, HELIX + 100.0])
    number = np.tile(np.arange(40), 2)
    assert implausible(two, number, np.repeat([0, 1], 40)) == ""
    gapped = np.concatenate([np.arange(40), np.arange(60, 100)])
    assert implausible(two, gapped, np.zeros(80)) == ""
