"""OpenFold's settings become ours, and what ours cannot say is refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import golden_json

from evofeed.base.errors import InputError, TrainerError
from evofeed.trainer import multimer, tiny
from evofeed.trainer.formats.openfold_config import (
    loss_config_from_openfold,
    model_config_from_openfold,
    with_openfold_config,
)
from evofeed.trainer.run.settings import loss_config, model_config


def settings() -> dict[str, Any]:
    """A `loss` section in which no number is the default."""
    shared = {"eps": 1e-6, "weight": 0.25}
    judged = {**shared, "min_resolution": 0.2, "max_resolution": 4.0}
    fape = {"clamp_distance": 8.0, "weight": 0.4}
    return {
        "fape": {
            "weight": 0.9,
            "backbone": {**fape, "loss_unit_distance": 12.0},
            "sidechain": {**fape, "length_scale": 12.0},
        },
        "supervised_chi": {**shared, "chi_weight": 0.3, "angle_norm_weight": 0.02},
        "distogram": {**shared, "min_bin": 3.0, "max_bin": 20.0},
        "masked_msa": dict(shared),
        "plddt_loss": {**judged, "cutoff": 12.0},
        "experimentally_resolved": dict(judged),
        "tm": {**judged, "max_bin": 30, "enabled": True},
        "violation": {
            **shared,
            "violation_tolerance_factor": 9.0,
            "clash_overlap_tolerance": 1.2,
            "average_clashes": False,
        },
    }


def test_every_number_is_taken_over() -> None:
    config = loss_config_from_openfold(settings())
    assert (config.eps, config.min_resolution, config.max_resolution) == (1e-6, 0.2, 4.0)
    assert (config.fape_clamp_distance, config.fape_length_scale) == (8.0, 12.0)
    assert (config.distogram_min_bin, config.tm_max_bin, config.plddt_cutoff) == (3.0, 30.0, 12.0)
    assert (config.fape, config.fape_sidechain, config.tm) == (0.9, 0.4, 0.25)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        (["masked_msa"], "eps", 1e-4),
        (["fape", "sidechain"], "clamp_distance", 9.0),
        (["fape", "sidechain"], "length_scale", 9.0),
        (["experimentally_resolved"], "max_resolution", 3.0),
        (["tm"], "min_resolution", 0.0),
    ],
)
def test_what_would_be_lost_is_refused_by_name(section: list[str], name: str, value: Any) -> None:
    config = copy.deepcopy(settings())
    place = config
    for part in section:
        place = place[part]
    place[name] = value
    with pytest.raises(TrainerError, match=name):
        loss_config_from_openfold(config)


def test_openfolds_settings_of_complexes_are_its_presets_but_for_its_faults(golden: Path) -> None:
    path = golden / "multimer" / "model" / "full_model_params_multimer.json"
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


def test_a_term_that_is_off_may_differ() -> None:
    config = settings()
    config["tm"].update(enabled=False, eps=1e-3, max_resolution=1.0)
    assert loss_config_from_openfold(config).eps == 1e-6


def model_settings() -> dict[str, Any]:
    """A `model` section with sizes of its own."""
    block = {"no_blocks": 3, "msa_dropout": 0.1, "pair_dropout": 0.2}
    pointwise = {"c_hidden": 8, "no_heads": 2}
    template = {"template_pair_stack": {"no_blocks": 1}, "distogram": {"no_bins": 20}, "inf": 1e5}
    return {
        "input_embedder": {"c_m": 32, "c_z": 16},
        "heads": {"lddt": {"c_hidden": 64, "no_bins": 40}, "distogram": {"no_bins": 50}},
        "evoformer_stack": {"c_s": 48, **block},
        "recycling_embedder": {"no_bins": 12},
        "template": {**template, "enabled": True, "template_pointwise_attention": pointwise},
        "extra_msa": {"extra_msa_embedder": {"c_out": 24}, "extra_msa_stack": dict(block)},
        "structure_module": {"no_blocks": 5},
    }


def test_a_run_takes_model_and_losses_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "openfold.json"
    path.write_text(json.dumps({"model": model_settings(), "loss": settings()}))
    run = with_openfold_config(tiny().train, path)
    assert loss_config(run) == loss_config_from_openfold(settings())
    model = model_config(run)
    assert model == model_config_from_openfold(model_settings())
    assert (model.c_m, model.c_s, model.extra_msa.c_e, model.evoformer.no_blocks) == (32, 48, 24, 3)


@pytest.mark.parametrize(
    ("text", "says"),
    [("[", "no OpenFold configuration"), ("{}", "'model' is missing"), (None, "cannot be read")],
)
def test_a_file_that_is_none_of_openfolds_is_one_line(
    tmp_path: Path, text: str | None, says: str
) -> None:
    path = tmp_path / "openfold.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=says):
        with_openfold_config(tiny().train, path)
