"""Chains are assigned as brute force did it in the recorded cases, and many copies quickly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import golden_files
from torch import Tensor

from evofeed.trainer.losses.permutation import ChainAlignment, align_chains, gather_labels
from evofeed.trainer.losses.rigid_fit import fit_rmsd, fit_sums

CASES = golden_files("multimer/permutation/*.npz")
LABELS = golden_files("multimer/permutation/labels/*.npz")
IDS = ("asym_id", "entity_id", "residue_index")
EXACT, GROWN = 5040, 1
UP = np.array([0.0, 0.0, 1.0])


def _recorded(path: Path, max_assignments: int) -> tuple[ChainAlignment, dict[str, np.ndarray]]:
    with np.load(path) as file:
        z = {name: file[name] for name in file.files}

    def ids(prefix: str) -> dict[str, Tensor]:
        return {name: torch.from_numpy(z[f"in.{prefix}{name}"]).long()[None] for name in IDS}

    atoms = [
        torch.from_numpy(z[f"in.{name}"])[None]
        for name in ("pred_ca", "pred_mask", "true_ca", "true_mask")
    ]
    no_chains = int(max(z["in.true_asym_id"].max(), z["in.asym_id"].max()))
    return (
        align_chains(
            *atoms[:2], ids(""), *atoms[2:], ids("true_"),
            no_chains=no_chains, max_assignments=max_assignments,
        ),
        z,
    )  # fmt: skip


@pytest.mark.parametrize("max_assignments", [EXACT, GROWN])
def test_every_recorded_case_is_right(max_assignments: int) -> None:
    assert CASES
    wrong = []
    for path in CASES:
        alignment, z = _recorded(path, max_assignments)
        chosen = [int(alignment.chain[0, p - 1]) + 1 for p in z["out.pred_asym"]]
        right = chosen in z["out.ties"].tolist()
        if not right or abs(float(alignment.rmsd) - float(z["out.rmsd"])) > 1e-4:
            wrong.append(path.stem)
        if chosen == z["out.true_asym"].tolist():
            truth = {name: torch.from_numpy(z[f"in.true_{name}"])[None] for name in ("ca", "mask")}
            labels = gather_labels(truth, alignment)
            assert np.array_equal(labels["ca"][0].numpy(), z["out.label_ca"]), path.stem
            assert np.array_equal(labels["mask"][0].numpy(), z["out.label_mask"]), path.stem
    assert not wrong


@pytest.mark.parametrize("path", LABELS, ids=lambda path: str(path.stem))
def test_labels_of_a_given_assignment_are_the_recorded_ones(golden: Path, path: Path) -> None:
    with np.load(path) as file:
        z = {name: file[name] for name in file.files}
    meta: dict[str, Any] = json.loads(str(z["meta"]))
    folder = golden / "multimer" / "data" / "golden"
    with np.load(folder / Path(meta["ground_truth"]).name) as file:
        truth = {n[3:]: torch.from_numpy(file[n])[None] for n in file.files if n[:3] == "gt."}
    asym = torch.from_numpy(z["in.asym_id"]).long()
    index = torch.from_numpy(z["in.residue_index"]).long()
    to = dict(zip(z["in.pred_asym"].tolist(), z["in.true_asym"].tolist(), strict=True))
    starts = {a: int(torch.argmax((truth["asym_id"][0] == a).int())) for a in to.values()}
    rows = torch.tensor([starts[to[int(a)]] + int(r) if a else 0 for a, r in zip(asym, index)])  # noqa: B905
    alignment = ChainAlignment(torch.empty(0), torch.empty(0), rows[None], (asym > 0)[None])
    shape = truth["asym_id"].shape
    labels = gather_labels({n: v for n, v in truth.items() if v.shape[:2] == shape}, alignment)
    compared = 0
    for name, expected in z.items():
        if name.startswith("out.") and name[4:] in labels:
            assert np.array_equal(labels[name[4:]][0].numpy(), expected), name
            compared += 1
    assert compared > 5


def kabsch(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    u, s, vt = np.linalg.svd(x.T @ y)
    s[2] *= np.sign(np.linalg.det(u @ vt))
    return float(np.sqrt(max((x**2).sum() + (y**2).sum() - 2 * s.sum(), 0) / len(x)))


def test_the_fit_of_sums_is_that_of_points_also_of_mirror_images_and_planes() -> None:
    rng = np.random.default_rng(0)
    for i in range(50):
        x = rng.normal(size=(20, 3)) * 10
        y = rng.normal(size=(20, 3)) * 10 if i % 2 else x * [1, 1, -1] + rng.normal(size=(20, 3))
        if i % 5 == 0:
            x[:, 2:], y[:, 2:] = 0, 0
        weight = torch.ones(20, dtype=torch.float64)
        sums = fit_sums(torch.from_numpy(x), torch.from_numpy(y), weight).sum(0)
        assert abs(float(fit_rmsd(sums)) - kabsch(x, y)) < 1e-6


def _ring(copies: int) -> np.ndarray:
    return np.stack([_turn(UP, 2 * np.pi * copy / copies) for copy in range(copies)])


def _dihedral(copies: int) -> np.ndarray:
    """Two rings, one on the other's head."""
    ring = _ring(copies // 2)
    return np.concatenate([ring, ring @ _turn(np.array([1.0, 0.0, 0.0]), np.pi)])


def _turn(axis: np.ndarray, angle: float) -> np.ndarray:
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)


def _many_copies(turns: np.ndarray, seed: int, shown: int) -> tuple[dict[str, Any], float]:
    """A symmetric complex, `shown` chains of it predicted 1 ångström off, moved and shuffled.

    Returns:
        What `align_chains` takes, and how far the prediction is from the copies it was made of.
    """
    rng, length, copies = np.random.default_rng(seed), 20, len(turns)
    chain = np.cumsum(rng.normal(size=(length, 3)) * 2.2, axis=0) + np.array([25.0, 9.0, 40.0])
    truth = np.einsum("tij,rj->tri", turns, chain)
    made_of = rng.permutation(copies)[:shown]
    moved = truth[made_of] + rng.normal(size=(shown, length, 3)) / 3**0.5
    start = _turn(rng.normal(size=3), rng.uniform(0, 3))
    ids = np.array([(c + 1, 1, i) for c in range(copies) for i in range(length)])
    numbers = {name: torch.from_numpy(ids[None, :, i]) for i, name in enumerate(IDS)}
    atoms = {
        "pred_ca": moved.reshape(-1, 3) @ start.T + 50.0,
        "pred_mask": np.ones(shown * length),
        "true_ca": truth.reshape(-1, 3),
        "true_mask": np.ones(copies * length),
    }
    pose: dict[str, Any] = {name: torch.from_numpy(value[None]) for name, value in atoms.items()}
    pose |= {
        "pred": {name: value[:, : shown * length] for name, value in numbers.items()},
        "true": numbers,
    }
    return pose, kabsch(moved.reshape(-1, 3), truth[made_of].reshape(-1, 3))


SYMMETRIES = {"C24": _ring(24), "D30": _dihedral(60)}


@pytest.mark.parametrize("name", SYMMETRIES)
@pytest.mark.parametrize("shown", [None, 5])
def test_copies_of_large_complexes_and_crops_of_them_are_assigned(
    name: str, shown: int | None
) -> None:
    turns = SYMMETRIES[name]
    assert len(turns) == {"C24": 24, "D30": 60}[name]
    pose, noise = _many_copies(turns, 0, shown or len(turns))
    alignment = align_chains(**pose, no_chains=len(turns))
    chains = alignment.chain[0, : shown or len(turns)].tolist()
    assert len(set(chains)) == len(chains)
    assert float(alignment.rmsd) < noise + 0.05
