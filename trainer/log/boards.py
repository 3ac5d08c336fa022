"""Where else a run's numbers go if asked to: TensorBoard and Weights & Biases.

`steps.jsonl` is always written and holds the same numbers; neither package is
imported unless it was asked for.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from evofeed.base.errors import TrainerError

_WANDB_ID = "wandb_id.txt"  # a resumed run continues in the same W&B run


@runtime_checkable
class Board(Protocol):
    """Takes scalars by name, a step at a time."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """The numbers of a step."""

    def close(self) -> None:
        """Write out what is left."""


class TensorBoard:
    """Event files below `folder/tensorboard`, with the run's facts as text.

    Raises:
        TrainerError: the package is not installed.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", error) from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))
        for name, value in facts.items():
            text = json.dumps(value, indent=1, default=str)
            self._writer.add_text(f"run/{name}", f"```\n{text}\n```", 0)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """The numbers of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write out what is left."""
        self._writer.close()


class WeightsAndBiases:
    """A run of a W&B project, named as the folder, with the run's facts as its config.

    Account and server are W&B's own settings (`wandb login`, `WANDB_MODE=offline`).

    Raises:
        TrainerError: the package is not installed.
    """

    def __init__(self, project: str, folder: Path, facts: Mapping[str, Any]) -> None:
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise _missing("wandb", error) from error
        kept = folder / _WANDB_ID
        known = kept.read_text().strip() if kept.is_file() else None
        self._run = wandb.init(
            project=project, name=folder.name, dir=str(folder), config=dict(facts), id=known,
            resume="allow",
        )  # fmt: skip
        kept.write_text(f"{self._run.id}\n")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """The numbers of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write out what is left."""
        self._run.finish()


def _missing(package: str, error: ImportError) -> TrainerError:
    return TrainerError(
        f"{package} was asked for and cannot be imported ({error}): `pip install {package}`, "
        "or leave the option out; steps.jsonl holds the same numbers"
    )
