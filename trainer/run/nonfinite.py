"""Steps without a finite gradient, kept whole so that they can be looked at again.

A folder `nonfinite/step_00000412.rank0` holds one rank's share of the step: `entry.json` (names
of the samples, loss terms, dropout seeds, configuration), `pass_<k>.safetensors` (each pass's
batch, every random draw of the loader included) and `model.safetensors` (the weights).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from evofeed.errors import CheckpointError

NONFINITE = "nonfinite"
"""The folder of a run that holds its steps without a finite gradient."""
ENTRY = "entry.json"
_KEPT = 8  # whole steps of a run; later ones keep their entry alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward and backward: what went in."""

    batch: dict[str, Tensor]
    seed: int
    """Of its dropout masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStep:
    """A step read back from its folder."""

    passes: tuple[Pass, ...]
    weights: dict[str, Tensor]
    entry: dict[str, Any]


def keep_step(
    folder: Path, entry: Mapping[str, Any], passes: Sequence[Pass], weights: Mapping[str, Tensor]
) -> None:
    """Write a step aside and move it into place.

    Its entry alone if there are many by now, or if its batches were not held: a step of
    several passes holds none.
    """
    from safetensors.torch import save_file

    kept = len(list(folder.parent.glob("*/model.safetensors")))
    whole = kept < _KEPT and all(one.batch for one in passes)
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    content = {**entry, "seeds": [one.seed for one in passes], "whole": whole}
    (aside / ENTRY).write_text(json.dumps(content, indent=1))
    if whole:
        for k, one in enumerate(passes):
            batch = {name: value.cpu().contiguous() for name, value in one.batch.items()}
            save_file(batch, aside / f"pass_{k}.safetensors")
        save_file({n: w.cpu().clone() for n, w in weights.items()}, aside / "model.safetensors")
    shutil.rmtree(folder, ignore_errors=True)  # the same step again, after a resume
    aside.rename(folder)


def read_step(folder: Path) -> KeptStep:
    """A step that `keep_step` wrote.

    Raises:
        CheckpointError: it is not there, or only its entry is.
    """
    from safetensors.torch import load_file

    try:
        entry = json.loads((folder / ENTRY).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"no kept step ({error}); a run keeps them below {NONFINITE}/", path=str(folder)
        ) from error
    if not entry["whole"]:
        raise CheckpointError(
            f"a run keeps its first {_KEPT} such steps whole, with accumulate 1, and of this one "
            f"only {ENTRY}",
            path=str(folder),
        )
    passes = tuple(
        Pass(batch=dict(load_file(folder / f"pass_{k}.safetensors")), seed=seed)
        for k, seed in enumerate(entry["seeds"])
    )
    weights = dict(load_file(folder / "model.safetensors"))
    return KeptStep(passes=passes, weights=weights, entry=entry)
