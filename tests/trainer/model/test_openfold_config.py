"""Our presets of complexes are OpenFold's but for its faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.conftest import golden_json
from tests.trainer.model.openfold_config import (
    loss_config_from_openfold,
    model_config_from_openfold,
)

from evofeed.trainer import multimer


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
