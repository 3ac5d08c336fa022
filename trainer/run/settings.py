"""From a preset's name or a YAML file to a run, and from a run to its parts' configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from evofeed.base.configs import replaced
from evofeed.base.errors import InputError
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.presets import PRESETS, Preset

_GONE: Final = frozenset({"hang_factor", "overlap"})
"""Settings that runs of before have written down."""


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
        raise InputError("must hold names and values, `preset: tiny` for one", path=source)
    if (name := str(values.get("preset", "initial_training"))) not in PRESETS:
        known = ", ".join(PRESETS)
        raise InputError(f"preset is {name!r}, but must be one of {known}", path=source)
    try:
        config = replaced(
            PRESETS[name]().train, {name: values[name] for name in values if name not in _GONE}
        )
    except ValueError as error:
        raise InputError(str(error), path=source) from error
    parts_of(config, path=source)  # so that nothing is refused later
    return config


def parts_of(config: TrainConfig, readers: int = 1, path: str | None = None) -> Preset:
    """The parts of a run: its preset's, with the run's own changes.

    Args:
        readers: ranks that read samples of their own; all samples of a step share their recycles.
        path: the file that the run is from, for messages.

    Raises:
        InputError: model, losses or loader do not take what is asked of them; names the setting.
    """
    preset = PRESETS[config.preset]()
    try:
        model = replaced(preset.model, config.model, "model.")
        loss = replaced(preset.loss, config.loss, "loss.")
        loader = replaced(preset.loader, config.loader, "loader.")
    except ValueError as error:
        raise InputError(str(error), path=path) from error
    if config.optim.clip == "per_example" and loader.batch_size > 1:
        raise InputError(
            f"optim.clip is per_example, but a pass of loader.batch_size {loader.batch_size} has "
            f"one gradient for all: use batch_size 1 and accumulate {loader.batch_size} passes",
            path=path,
        )
    if not loader.global_batch_size:
        batch = config.accumulate * readers * loader.batch_size
        loader = loader.replace(global_batch_size=batch)
    return Preset(model=model, loss=loss, loader=loader, train=config)
