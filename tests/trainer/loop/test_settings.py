"""A run's configuration: presets, YAML, and what is refused by name before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evofeed.base.errors import InputError
from evofeed.trainer.config import save_config
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.run.settings import load_config, parts_of


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_all_its_parts_and_is_the_same_when_read_from_yaml(
    tmp_path: Path, name: str
) -> None:
    settings = PRESETS[name]().train
    parts = parts_of(settings)
    assert parts.loader.max_templates > 0
    learns_by_heart = name == "overfit"
    assert (parts.model.evoformer.pair_dropout == 0) == learns_by_heart
    assert (parts.loss.masked_msa < 1) == learns_by_heart
    assert bool(settings.fixed_batches) == learns_by_heart
    changed = settings.replace(model={"c_m": 64}, seed=3)
    save_config(changed, tmp_path / "run.yaml")
    assert load_config(str(tmp_path / "run.yaml")) == changed


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": {"c_m": "wide"}}, r"model\.c_m is 'wide' and must be a whole number"),
        ({"model": {"evoformer": 3}}, r"model\.evoformer is 3 and must be names and values"),
        ({"model": {"evoformer": {"blocks": 3}}}, r"no setting model\.evoformer\.blocks"),
        ({"loader": {"crop_size": -4}}, "loader: crop_size is -4, but must be at least 1"),
        ({"model": {"structure_module": {"no_blocks": 0}}}, r"structure_module\.no_blocks must be"),
        ({"model": {"plddt_bins": 0}}, "model: plddt_bins must be at least 1, is 0"),
        ({"model": {"evoformer": {"msa_dropout": 15.0}}}, r"evoformer\.msa_dropout must be in"),
        ({"loss": {"fape": -1.0}}, r"loss: fape is -1\.0, but must be at least 0"),
        ({"optim": {"beta2": 1.0}}, r"beta2 is 1\.0, but must be at least 0 and below 1"),
        ({"optim": {"decay_factor": 0.0}}, r"decay_factor is 0\.0, but must be above 0"),
        ({"optim": {"clip": "hard"}}, r"optim: clip is 'hard'"),
        ({"optim": {"clip": "per_example"}, "loader": {"batch_size": 2}}, "accumulate 2 passes"),
        ({"gradients": {"mode": "zip"}}, "mode is 'zip', but must be one of none, bf16, hier"),
        ({"gradients": {"mode": "topk", "density": 0}}, "density is 0.0, but must be above 0"),
        ({"gradients": {"ranks": 3}}, r"no setting gradients\.ranks; did you mean rank\?"),
        ({"step": 3}, r"no setting step; did you mean steps\? there are accumulate, "),
        ({"precision": "fp8"}, "fp8"),
        ({"preset": "huge"}, "huge"),
        ({"steps": 1.5}, "must be a whole number"),
        ({"steps": None}, "must be a whole number"),
        ({"deterministic": "yes, please"}, "must be true or false"),
        ({"shares": 0.5}, "shares is 0.5 and must be a list"),
        ({"shares": ["half"]}, r"shares\[0\] is 'half' and must be a number"),
        ({"shares": [-1]}, "must be above 0"),
    ],
)
def test_a_wrong_value_is_named_with_its_file_before_anything_starts(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps({"preset": "tiny", **changes}))
    with pytest.raises(InputError, match=says) as refused:
        load_config(str(file))
    assert refused.value.path == str(file)


def test_a_rate_may_be_written_as_people_do_and_what_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("preset: tiny\noptim: {learning_rate: 5e-4, max_norm: 1}\n")
    optim = load_config(str(path)).optim
    assert (optim.learning_rate, optim.max_norm) == (5e-4, 1.0)
    path.write_text("preset: tiny\nsteps: [1\n")
    with pytest.raises(InputError, match=r"run\.yaml:3"):
        load_config(str(path))
    path.write_bytes(b"\x80\x02\xff\xfe")
    with pytest.raises(InputError, match=r"run\.yaml: not text"):
        load_config(str(path))
