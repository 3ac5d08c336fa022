"""Reads a run's configuration from a preset or YAML file, and derives its parts' configurations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from evofeed.base.configs import replaced
from evofeed.base.errors import InputError
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.presets import PRESETS, Preset

_REMOVED: Final = frozenset({"hang_factor", "overlap"})
"""Removed settings, which files of older runs may have."""


def load_config(source: str) -> TrainConfig:
    """The configuration of a preset or a YAML file.

    Raises:
        InputError: neither a preset nor a readable YAML file of known names.
    """
    if source.replace("-", "_") in PRESETS:
        return PRESETS[source.replace("-", "_")]().train
    path = Path(source)
    if not path.is_file():
        raise InputError(
            f"{source!r} is neither a file nor a preset; the presets are {', '.join(PRESETS)}"
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
        raise InputError("must have names and values, such as `preset: tiny`", path=source)
    if (name := str(values.get("preset", "initial_training"))) not in PRESETS:
        presets = ", ".join(PRESETS)
        raise InputError(f"preset is {name!r}, but must be one of {presets}", path=source)
    try:
        config = replaced(
            PRESETS[name]().train, {key: values[key] for key in values if key not in _REMOVED}
        )
    except ValueError as error:
        raise InputError(str(error), path=source) from error
    parts_of(config, path=source)  # raises for wrong settings of its parts
    return config


def parts_of(config: TrainConfig, readers: int = 1, path: str | None = None) -> Preset:
    """The configurations of a run's parts: the preset's, with the run's changes.

    Args:
        readers: ranks that read different samples; all samples of a step have equal recycles.
        path: the file of the run, for messages.

    Raises:
        InputError: model, losses or loader do not accept a setting; names it.
    """
    changes = {"model": config.model, "loss": config.loss, "loader": config.loader}
    try:
        parts = replaced(PRESETS[config.preset](), changes)
    except ValueError as error:
        raise InputError(str(error), path=path) from error
    loader = parts.loader
    if config.optim.clip == "per_example" and loader.batch_size > 1:
        raise InputError(
            f"optim.clip is per_example, but a pass of loader.batch_size {loader.batch_size} has "
            f"one gradient for all: use batch_size 1 and accumulate {loader.batch_size} passes",
            path=path,
        )
    if not loader.global_batch_size:
        batch = config.accumulate * readers * loader.batch_size
        loader = loader.replace(global_batch_size=batch)
    return replace(parts, loader=loader, train=config)
