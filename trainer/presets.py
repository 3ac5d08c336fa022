"""Presets: AF2's two training stages, its model of complexes, and small models. Each has the
configurations of model, loss, loader and run; their values are in `presets.yaml`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from evofeed.base.configs import replaced
from evofeed.loader import LoaderConfig
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.model.config import LossConfig, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The configurations that a name such as `finetuning` stands for."""

    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


def initial_training(*, ptm: bool = False) -> Preset:
    """AF2's initial training: 93,229,082 parameters, crop 256 (AF2 SI table 4)."""
    return _read("initial_training", ptm)


def finetuning(*, ptm: bool = False) -> Preset:
    """AF2's fine-tuning: the same parameters, crop 384, losses of violations and resolved atoms.

    Half the learning rate, no warm-up and no decay (AF2 SI table 4).
    """
    return _read("finetuning", ptm)


def multimer() -> Preset:
    """AF2-multimer v3: 93,223,705 parameters, crop 640, 508 + 2,048 rows, 4 templates.

    Source: AlphaFold-Multimer, Evans et al. 2021, and OpenFold's `model_1_multimer_v3`.
    """
    return _read("multimer")


def overfit() -> Preset:
    """Initial training's model, set to overfit one batch in a few hundred steps."""
    return _read("overfit")


def tiny() -> Preset:
    """For a laptop: every block once or twice, a few channels wide, float32, 50 steps."""
    return _read("tiny")


def tiny_multimer() -> Preset:
    """The model of complexes, as small as `tiny`."""
    return _read("tiny_multimer")


PRESETS: Final[dict[str, Callable[[], Preset]]] = {
    preset.__name__: preset
    for preset in (initial_training, finetuning, tiny, overfit, multimer, tiny_multimer)
}


@cache
def _read(name: str, ptm: bool = False) -> Preset:
    """The preset of a name; with `ptm` as for AF2's pTM models."""
    import yaml

    values: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())[name]
    base_name, batches = values.pop("preset", ""), values.pop("batches", "")
    base = _read(base_name) if base_name else Preset()
    if batches:
        base = replace(base, loader=LoaderConfig.preset(batches))
    parts = {part: values.pop(part, {}) for part in ("model", "loss", "loader")}
    preset = replaced(base, parts | {"train": values | {"preset": name}})
    return replaced(preset, {"model": {"tm_bins": 64}, "loss": {"tm": 0.1}}) if ptm else preset
