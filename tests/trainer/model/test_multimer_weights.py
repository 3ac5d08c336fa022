"""The model of complexes: all parameters, and AF2-multimer's weights in and out of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import golden_json

from evofeed.trainer import AlphaFold, ModelConfig, multimer, tiny_multimer
from evofeed.trainer.formats.alphafold_params import alphafold_params, load_alphafold_params

_FOLDER = "multimer/model"


def _unfused(config: ModelConfig) -> ModelConfig:
    """As versions 1 and 2 are."""
    assert config.template is not None
    return replace(
        config,
        template=replace(config.template, fuse_projection_weights=False),
        extra_msa=replace(config.extra_msa, fuse_projection_weights=False),
        evoformer=replace(config.evoformer, fuse_projection_weights=False),
    )


def test_names_shapes_and_count_of_all_parameters_are_openfolds(golden: Path) -> None:
    listed = golden_json(golden / _FOLDER / "full_model_params_multimer.json")
    with torch.device("meta"):
        model, old = AlphaFold(multimer().model), AlphaFold(_unfused(multimer().model))
    state = {name: list(value.shape) for name, value in model.state_dict().items()}
    assert state == {entry["name"]: entry["shape"] for entry in listed["params"]}
    for one, name in ((model, "model_1_multimer_v3"), (old, "model_1_multimer")):
        assert sum(p.numel() for p in one.parameters()) == listed["totals"][name]["numel"]
        assert len(one.state_dict()) == listed["totals"][name]["tensors"]


def _to_openfold(array: np.ndarray, row: dict[str, Any]) -> np.ndarray:
    """The recorded transform of one block's array, which ends in the OpenFold tensor."""
    transform = row["transform"]
    if transform == "LinearBiasMHA":
        array = array.reshape(-1)
    elif transform == "LinearWeight":
        array = array[:, None] if array.ndim == 1 else array.T
    elif transform == "LinearWeightMHA":
        array = array.reshape(array.shape[0], -1).T
    elif transform in ("LinearMHAOutputWeight", "LinearWeightOPM"):
        array = array.reshape(-1, array.shape[-1]).T
    else:
        assert transform == "Other", transform
    if row["swap_halves"]:
        array = np.concatenate(np.split(array, 2)[::-1])
    return array


@pytest.mark.parametrize("fused", [True, False])
def test_every_array_of_the_published_files_goes_where_the_recorded_table_says(
    golden: Path, fused: bool
) -> None:
    table = golden_json(golden / _FOLDER / "npz_mapping_multimer.json")
    rows = table["rows" if fused else "rows_model_1_multimer_and_v2"]
    config = tiny_multimer().model if fused else _unfused(tiny_multimer().model)
    torch.manual_seed(0)
    model = AlphaFold(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    arrays, state = alphafold_params(model), model.state_dict()
    assert set(arrays) == {row["npz"] for row in rows}
    reached = set()
    for row in rows:
        array = arrays[row["npz"]]
        blocks = range(len(array)) if row["stacked"] else [None]
        for block in blocks:
            name = row["openfold"].format(b=block)
            part = array if block is None else array[block]
            assert np.array_equal(_to_openfold(part, row), state[name].numpy()), name
            reached.add(name)
    assert reached == set(state)
    fresh = AlphaFold(config)
    assert load_alphafold_params(fresh, arrays) == []
    assert all(torch.equal(value, state[name]) for name, value in fresh.state_dict().items())
