"""Recorded draws, replayed, give the recorded features: integers exactly, floats to 1e-5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import golden_files
from tests.loader.made import KNOWN
from tests.loader.recorded import Case, RecordedDraws, load_case, record_of
from torch import Tensor

from evofeed.loader.batch import empty_batch, put
from evofeed.loader.config import LoaderConfig
from evofeed.loader.draws import Crop
from evofeed.loader.features import constant_features, recycle_features
from evofeed.loader.from_record import chain_tensors
from evofeed.loader.transforms import structure

DRAWS = golden_files("data/golden/*.draws.npz")
STRUCTURES = golden_files("data/golden/**/*.det.npz")
CHAINS = golden_files("data/golden/*.det.npz")


@pytest.fixture(params=DRAWS, ids=lambda path: path.name)
def case(request: pytest.FixtureRequest, golden: Path) -> Case:
    return load_case(request.param)


def same(got: Tensor, want: np.ndarray, name: str, atol: float = 1e-5) -> None:
    expected = torch.from_numpy(want)
    assert got.shape == expected.shape, name
    if expected.is_floating_point():
        torch.testing.assert_close(
            got, expected, rtol=1e-5, atol=atol, msg=lambda m: f"{name}: {m}"
        )
    else:
        assert torch.equal(got.long(), expected.long()), name


def test_every_recorded_feature_comes_out_of_the_replay(case: Case) -> None:
    draws = RecordedDraws(case.draws, case.config)
    num_res = case.config.crop_size or case.chain.num_res
    batch = empty_batch(
        case.config, num_res=num_res, batch_size=1, recycles=1, device=torch.device("cpu")
    )
    put(batch, constant_features(case.chain, case.crop, case.config), 0)
    put(batch, recycle_features(case.chain, case.crop, draws, case.config), 0, 0)
    batch["seq_length"][:] = case.crop.length
    batch["resolution"][:] = case.chain.resolution
    batch["is_distillation"][:] = case.chain.is_distillation
    features = as_recorded(batch, case.final)
    assert len(features) > 20
    all_same(features, case.final, list(features))
    made_besides = set(batch) - set(case.final) - {"use_clamped_fape"}
    assert not {name for name in made_besides if case.config.supervised}


def as_recorded(batch: dict[str, Tensor], final: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """The recorded features of a batch of one sample and one recycle."""
    features = {name: batch[name][0].cpu() for name in final}
    return {name: v[0] if v.dim() == final[name].ndim + 1 else v for name, v in features.items()}


def all_same(
    features: dict[str, Any],
    want: dict[str, Any],
    names: list[str],
    masked: Callable[[str], bool] = lambda name: "sin_cos" in name,
) -> None:
    """Asserts that named features equal the recorded ones; angles only where they are defined."""
    for name in names:
        if masked(name):
            is_known = want[KNOWN[name]] == 1
            same(features[name][torch.from_numpy(is_known)], want[name][is_known], name, atol=1e-4)
        else:
            same(features[name], want[name], name)


@pytest.mark.parametrize("path", STRUCTURES, ids=lambda path: str(path.name))
def test_structure_features_of_each_recorded_chain_are_reproduced(path: Path, golden: Path) -> None:
    want = dict(np.load(path))
    raw = dict(np.load(path.with_name(path.name.replace(".det.", ".raw."))))
    aatype = torch.from_numpy(want["aatype"]).long()
    tables = structure.ResidueTables(aatype)
    features: dict[str, Any] = structure.make_atom14_masks(tables)
    if "all_atom_positions" in raw:
        positions = torch.from_numpy(raw["all_atom_positions"])
        mask = torch.from_numpy(raw["all_atom_mask"])
        features |= structure.structure_features(aatype, tables, positions, mask)
        features |= structure.atom37_to_torsion_angles(tables, positions, mask)
    names = [name for name in want if name in features and want[name].size]
    assert len(names) >= 4
    all_same(features, want, names)


@pytest.mark.parametrize("path", CHAINS, ids=lambda path: str(path.name))
def test_what_is_made_before_any_draw_is_reproduced(path: Path, golden: Path) -> None:
    want, record = dict(np.load(path)), record_of(path)
    crop = Crop(0, record.num_res, tuple(range(record.num_templates)))
    config = LoaderConfig.prediction(max_templates=record.num_templates)
    chain = chain_tensors(record, crop.templates, supervised=True)
    features = constant_features(chain, crop, config) | {
        "msa": chain.msa,
        "hhblits_profile": chain.profile_counts / len(chain.msa),
        "msa_row_mask": torch.ones(len(chain.msa)),
        "num_alignments": torch.tensor(len(chain.msa)),
        "seq_length": torch.tensor(chain.num_res),
        "between_segment_residues": torch.zeros(chain.num_res, dtype=torch.int64),
        "resolution": torch.tensor(chain.resolution),
        "is_distillation": torch.tensor(float(chain.is_distillation)),
    }
    names = [name for name in want if name in features]
    assert {"msa", "hhblits_profile", "template_torsion_angles_sin_cos"} <= set(names)
    all_same(features, want, names)
