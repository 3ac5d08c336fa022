"""All parameters under OpenFold's names, as drawn, and AF2-multimer's weights in and out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import golden_json
from tests.trainer.model.openfold_config import (
    loss_config_from_openfold,
    model_config_from_openfold,
)

from evofeed.trainer import (
    AlphaFold,
    ModelConfig,
    finetuning,
    initial_training,
    multimer,
    tiny_multimer,
)
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


def test_names_shapes_and_counts_of_all_parameters_are_openfolds(golden: Path) -> None:
    listed = golden_json(golden / "model" / "full_model_params.json")
    with torch.device("meta"):
        model = AlphaFold(initial_training(ptm=True).model)
    assert (
        sum(p.numel() for p in model.parameters()) == (listed["totals"]["finetuning_ptm"]["numel"])
    )
    bare = [p for n, p in model.named_parameters() if not n.startswith("template_embedder.")]
    assert sum(p.numel() for p in bare) == listed["totals"]["finetuning_no_templ_ptm"]["numel"]
    head = "aux_heads.tm."  # alone is besides what a model without pTM has
    state = {n: list(v.shape) for n, v in model.state_dict().items() if not n.startswith(head)}
    assert state == {entry["name"]: entry["shape"] for entry in listed["params"]}
    assert replace(initial_training(ptm=True).model, tm_bins=None) == initial_training().model
    assert finetuning().model == initial_training().model


def test_fresh_weights_follow_the_recorded_laws_within_sampling_error(golden: Path) -> None:
    listed = golden_json(golden / "model" / "init_stats.json")["params"]
    # 48 and 4 equal blocks say no more than two of each, and take most of the time.
    small = initial_training().model
    small = replace(
        small,
        evoformer=replace(small.evoformer, no_blocks=2),
        extra_msa=replace(small.extra_msa, no_blocks=2),
    )
    torch.manual_seed(0)
    state = AlphaFold(small).state_dict()
    checked = 0
    for entry in listed:
        if entry["name"] not in state:
            continue
        value = state[entry["name"]].double()
        checked += 1
        if not entry.get("expected_std"):
            assert value.min() == pytest.approx(entry["min"], abs=1e-7), entry["name"]
            assert value.max() == pytest.approx(entry["max"], abs=1e-7), entry["name"]
            continue
        count, sigma = value.numel(), entry["expected_std"]
        assert abs(float(value.mean())) < 5 * sigma / count**0.5, entry["name"]
        assert abs(float(value.std()) / sigma - 1) < 5 / count**0.5, entry["name"]
        if entry["init"] != "normal":  # all other laws are bounded
            bound = 1.02 * max(entry["max"], -entry["min"]) if count > 1000 else float("inf")
            assert float(value.abs().max()) < bound, entry["name"]
    assert checked == len(state)


def test_so_are_those_of_the_model_of_complexes(golden: Path) -> None:
    listed = golden_json(golden / _FOLDER / "full_model_params_multimer.json")
    with torch.device("meta"):
        model, old = AlphaFold(multimer().model), AlphaFold(_unfused(multimer().model))
    state = {name: list(value.shape) for name, value in model.state_dict().items()}
    assert state == {entry["name"]: entry["shape"] for entry in listed["params"]}
    for variant, name in ((model, "model_1_multimer_v3"), (old, "model_1_multimer")):
        assert sum(p.numel() for p in variant.parameters()) == listed["totals"][name]["numel"]
        assert len(variant.state_dict()) == listed["totals"][name]["tensors"]


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


def test_openfolds_settings_of_complexes_are_its_presets_but_for_its_faults(golden: Path) -> None:
    path = golden / _FOLDER / "full_model_params_multimer.json"
    listed = golden_json(path)
    theirs = model_config_from_openfold(listed["config_model"])
    assert replace(theirs, activation_checkpointing=True) == multimer().model
    losses = loss_config_from_openfold(listed["config_loss"])
    assert losses == replace(
        multimer().loss,
        chain_center_of_mass=0.05,
        bonds_across_chains=True,
        same_number_never_clashes=True,
    )
