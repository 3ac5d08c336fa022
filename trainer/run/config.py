"""One training run as data: a preset, a few numbers, and overrides for the other rooms.

A YAML file holds the same names: `preset` picks the starting point, every other
line replaces one value, and `model`, `loss` and `loader` replace single fields of
those configurations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from evofeed.errors import InputError
from evofeed.trainer.run.optim import OptimConfig

PRESETS = ("initial_training", "finetuning", "tiny", "overfit")
PRECISIONS = ("bf16", "tf32", "fp32")
KERNELS = ("fused", "torch")
_C = TypeVar("_C", bound=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that decides what a run computes; `--out` and `--dataset` are not in it."""

    preset: str = "initial_training"
    """Where model, loss and loader start from: AF2's two training stages, or a laptop's."""
    seed: int = 0
    """Of the weights, the sample order and every dropout mask."""
    steps: int = 1_000
    """Weight updates in all, those before a resume included."""
    accumulate: int = 1
    """Backward passes per rank and step; the batch is `accumulate * ranks * batch_size`."""
    precision: str = "bf16"
    """`bf16`: autocast, master weights in float32; `tf32`; `fp32`."""
    kernels: str = "fused"
    """`fused`: evofeed.kernels where there is a GPU; `torch`: the plain operators everywhere."""
    cuda_graphs: bool = True
    """On a GPU record forward and backward once per shape of a sample and replay them."""
    overlap: bool = True
    """Average the gradient over the ranks piece by piece during the backward pass, where that
    can be: one pass a step, no clipping of each sample, and `cuda_graphs` off."""
    deterministic: bool = False
    """Only algorithms that give the same bits twice; slower on a GPU."""
    checkpoint_every: int = 500
    """Steps between checkpoints; 0 writes one only at the end."""
    keep_checkpoints: int = 3
    """Older ones are deleted."""
    validate_every: int = 500
    """Steps between validations, if there is a validation set, and one at the end; 0: none."""
    validate_batches: int = 16
    """Batches of the validation set that each validation looks at, if it has so many."""
    profile_steps: int = 3
    """Steps sampled with the profiler for the run report; 0 takes none and counts no FLOPs."""
    max_skipped: int = 20
    """So many steps in a row without a finite gradient end the run."""
    hang_factor: float = 100.0
    """So many times the median step without a step stop the run, with the stacks of all ranks
    below `hangs/`; 0: never."""
    hang_seconds: float = 1_080.0
    """But never sooner: longer than the loader waits for a storage that does not answer."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Learning rate, Adam, clipping, moving average."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model configuration that differ from the preset."""
    loss: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the loss configuration that differ from the preset."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the loader configuration that differ from the preset."""
    shares: tuple[float, ...] = ()
    """Share of each dataset in the mixture, in their order; AF2's is a quarter PDB and three
    quarters distillation. Empty: equal shares."""
    fixed_batches: int = 0
    """Train on the first so many batches alone, again and again, to learn them by heart;
    without a validation set they are measured too. 0: every batch is new."""

    def __post_init__(self) -> None:
        for name, known in (("preset", PRESETS), ("precision", PRECISIONS), ("kernels", KERNELS)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(known)}")
        for name in ("steps", "accumulate", "keep_checkpoints", "max_skipped", "validate_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("checkpoint_every", "validate_every", "profile_steps", "fixed_batches"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must not be negative")
        if self.hang_factor < 0 or self.hang_seconds <= 0:
            raise ValueError(
                f"hang_factor is {self.hang_factor} and hang_seconds {self.hang_seconds}, but they "
                "must be at least 0 and above 0"
            )
        if min(self.shares, default=1.0) <= 0:
            raise ValueError(f"shares are {list(self.shares)}, but each must be above 0")

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for YAML or JSON; `from_dict` takes them back."""
        return dataclasses.asdict(self)


def preset(name: str) -> TrainConfig:
    """The run a preset's name stands for.

    `tiny` fits a laptop: float32 on plain operators, warm-up over within its few steps.
    `overfit` learns one batch by heart, in a few hundred steps and not in AF2's way.

    Raises:
        ValueError: there is no such preset.
    """
    if name == "tiny":
        return TrainConfig(
            preset="tiny",
            steps=50,
            precision="fp32",
            kernels="torch",
            checkpoint_every=25,
            validate_every=25,
            optim=OptimConfig(warmup_steps=10, ema_decay=0.9),
        )
    if name == "finetuning":  # AF2 SI table 4: half the rate, no warm-up, no decay
        return TrainConfig(
            preset="finetuning", optim=OptimConfig(learning_rate=5e-4, warmup_steps=0)
        )
    if name == "overfit":
        return TrainConfig(
            preset="overfit",
            steps=440,
            fixed_batches=1,
            checkpoint_every=0,
            validate_every=25,
            optim=OptimConfig(
                learning_rate=5e-4,
                warmup_steps=50,
                beta2=0.98,
                eps=1e-8,
                ema_decay=0.0,
                decay_after=260,
                decay_every=20,
                decay_factor=0.8,
            ),
        )
    return TrainConfig(preset=name)


def from_dict(values: Mapping[str, Any], path: str | None = None) -> TrainConfig:
    """A run from plain values over its preset's.

    Raises:
        InputError: a name is unknown or a value is refused; says which.
    """
    values = dict(values)
    try:
        return replaced(preset(str(values.get("preset", "initial_training"))), values)
    except ValueError as error:
        raise InputError(str(error), path=path) from error


def load_config(source: str) -> TrainConfig:
    """The run named by a preset or described by a YAML file.

    Raises:
        InputError: neither a preset nor a readable YAML file of known names.
    """
    if source in PRESETS:
        return preset(source)
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
    from evofeed.trainer.run.build import check_parts  # it imports us

    try:
        check_parts(config)
    except InputError as error:
        raise InputError(error.message, path=source) from error
    return config


def save_config(config: TrainConfig, path: Path) -> None:
    """Write a run as YAML that `load_config` reads back equal."""
    import yaml

    path.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False))


def replaced(base: _C, changes: Mapping[str, Any], prefix: str = "") -> _C:
    """A configuration with some fields changed; a mapping changes fields of a nested one.

    Args:
        base: any dataclass of plain values.
        changes: new values by field.
        prefix: what stands before a field's name in messages.

    Raises:
        ValueError: there is no such field, or its value is refused; names it.
    """
    hints = get_type_hints(type(base))
    unknown = sorted(set(changes) - set(hints))
    if unknown:
        near = difflib.get_close_matches(unknown[0], hints, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"no setting {prefix}{unknown[0]}; {meant}there are {', '.join(sorted(hints))}"
        )
    values = {
        name: _checked(hints[name], getattr(base, name), value, prefix + name)
        for name, value in changes.items()
    }
    try:
        changed: _C = dataclasses.replace(base, **values)
    except ValueError as error:
        raise ValueError(f"{prefix.rstrip('.')}: {error}" if prefix else str(error)) from error
    return changed


_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
    Mapping: "names and values",
}


def _checked(hint: Any, now: Any, value: Any, name: str) -> Any:
    """A value of a field's declared type, so that a wrong one is told here and by name.

    YAML takes `5e-4` for text and only `5.0e-4` for a number; both are meant. It has lists
    where we have tuples.
    """
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    wanted = next(option for option in options if option is not type(None))
    kind: Any = get_origin(wanted) or wanted
    if hasattr(kind, "__dataclass_fields__"):
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping):
            return replaced(kind() if now is None else now, value, f"{name}.")
        raise ValueError(f"{name} is {value!r} and must be {_KINDS[Mapping]}")
    if kind is float and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError):
            return float(value)
    if kind is tuple and isinstance(value, list | tuple):
        inner = get_args(wanted)[0]
        return tuple(_checked(inner, None, entry, f"{name}[{i}]") for i, entry in enumerate(value))
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} is {value!r} and must be {_KINDS[kind]}")
    return value
