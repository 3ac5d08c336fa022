"""Optional logging of a run to TensorBoard and Weights & Biases.

`steps.jsonl` is always written and has the same numbers; neither package is
imported unless its option is given.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evofeed.base.errors import TrainerError

_WANDB_ID = "wandb_id.txt"  # a resumed run continues in the same W&B run


class Board(NamedTuple):
    """A logger of scalars: `log` takes those of a step by name, `close` flushes."""

    log: Callable[[Mapping[str, float], int], None]
    close: Callable[[], None]


def tensorboard(folder: Path, facts: Mapping[str, Any]) -> Board:
    """Event files below `folder/tensorboard`, with the run's facts as text.

    Raises:
        TrainerError: the package is not installed.
    """
    module = _imported("torch.utils.tensorboard", "tensorboard")
    writer = module.SummaryWriter(str(folder / "tensorboard"))
    for name, value in facts.items():
        text = json.dumps(value, indent=1, default=str)
        writer.add_text(f"run/{name}", f"```\n{text}\n```", 0)

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return Board(log, writer.close)


def weights_and_biases(project: str, folder: Path, facts: Mapping[str, Any]) -> Board:
    """A run of a W&B project, named as the folder, with the run's facts as its config.

    Account and server are W&B's own settings (`wandb login`, `WANDB_MODE=offline`).

    Raises:
        TrainerError: the package is not installed.
    """
    id_file = folder / _WANDB_ID
    run = _imported("wandb", "wandb").init(
        project=project, name=folder.name, dir=str(folder), config=dict(facts), resume="allow",
        id=id_file.read_text().strip() if id_file.is_file() else None,
    )  # fmt: skip
    id_file.write_text(f"{run.id}\n")
    return Board(lambda values, step: run.log(dict(values), step=step), run.finish)


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TrainerError(
            f"{package} is needed and cannot be imported ({error}): `pip install {package}`, "
            "or omit the option; steps.jsonl has the same numbers"
        ) from error
