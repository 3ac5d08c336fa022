"""From a preset's name or a YAML file to a run, and from a run to its parts' configurations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from evofeed.base.configs import replaced
from evofeed.base.errors import InputError
from evofeed.loader import LoaderConfig
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.model.config import LossConfig, ModelConfig
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.run.distributed import World

_C = TypeVar("_C", bound=Any)
_GONE: Final = frozenset({"hang_factor", "overlap"})
"""Settings that runs of before have written down."""


def from_dict(values: Mapping[str, Any], path: str | None = None) -> TrainConfig:
    """A run from plain values over its preset's.

    Raises:
        InputError: a name is unknown or a value is refused; says which.
    """
    values = {name: value for name, value in values.items() if name not in _GONE}
    if (name := str(values.get("preset", "initial_training"))) not in PRESETS:
        known = ", ".join(PRESETS)
        raise InputError(f"preset is {name!r}, but must be one of {known}", path=path)
    return _changed(PRESETS[name]().train, values, path=path)


def load_config(source: str) -> TrainConfig:
    """The run named by a preset or described by a YAML file.

    Raises:
        InputError: neither a preset nor a readable YAML file of known names.
    """
    if source.replace("-", "_") in PRESETS:
        return PRESETS[source.replace("-", "_")]().train
    path = Path(source)
    if not path.is_file():
        raise InputError(
            f"{source!r} is no file and no preset; the presets are {', '.join(PRESETS)}"
        )
    import yaml

    try:
        values = yaml.safe_load(path.read_text())
    except UnicodeDecodeError as error:
        raise InputError("not text: a run is a preset or a YAML file", path=source) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        raise InputError(
            f"not YAML: {getattr(error, 'problem', error)}", path=source, line=line
        ) from error
    if not isinstance(values, dict):
        raise InputError("must hold names and values, `preset: tiny` for one", path=source)
    config = from_dict(values, path=source)
    try:
        check_parts(config)
    except InputError as error:
        raise InputError(error.message, path=source) from error
    return config


def model_config(config: TrainConfig) -> ModelConfig:
    """The model configuration of a run: its preset's, with the run's own changes."""
    return _changed(PRESETS[config.preset]().model, config.model, "model.")


def loss_config(config: TrainConfig) -> LossConfig:
    """The loss configuration of a run: its preset's, with the run's own changes."""
    return _changed(PRESETS[config.preset]().loss, config.loss, "loss.")


def check_parts(config: TrainConfig) -> None:
    """Whether model, losses and loader take what a run asks of them.

    Raises:
        InputError: they do not; names the setting.
    """
    model_config(config)
    loss_config(config)
    loader_config(config, World())


def loader_config(config: TrainConfig, world: World) -> LoaderConfig:
    """The loader configuration of a run; all samples of a step share their recycles."""
    base = _changed(PRESETS[config.preset]().loader, config.loader, "loader.")
    if config.optim.clip == "per_example" and base.batch_size > 1:
        raise InputError(
            f"optim.clip is per_example, but a pass of loader.batch_size {base.batch_size} has one "
            f"gradient for all: use batch_size 1 and accumulate {base.batch_size} passes"
        )
    batch = config.accumulate * world.readers * base.batch_size
    return base if base.global_batch_size else base.replace(global_batch_size=batch)


def _changed(base: _C, changes: Mapping[str, Any], prefix: str = "", path: str | None = None) -> _C:
    try:
        return replaced(base, changes, prefix)
    except ValueError as error:
        raise InputError(str(error), path=path) from error
