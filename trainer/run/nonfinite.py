"""Steps without a finite gradient, kept whole so that they can be looked at again.

A folder `nonfinite/step_00000412.rank0` holds one rank's share of the step: `entry.json` (names
of the samples, loss terms, dropout seeds, configuration), `pass_<k>.safetensors` (each pass's
batch, every random draw of the loader included) and `model.safetensors` (the weights).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.base.errors import CheckpointError
from evofeed.base.run_files import NONFINITE

ENTRY = "entry.json"
_KEPT = 8  # whole steps of a run; later ones keep their entry alone


class Pass(NamedTuple):
    """One forward and backward: what went in, and the seed of its dropout masks."""

    batch: dict[str, Tensor]
    seed: int


class HeldBatches:
    """Batches of a step's passes, held until its numbers are known.

    A GPU's are copied to page-locked memory by a stream of their own, beside the work: those of
    many passes would fill it. One pass' batch stays where it is; two steps' worth are alive at
    once.
    """

    def __init__(self, device: torch.device, num_passes: int) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and num_passes > 1:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def hold(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The batch, or its copy, which is whole after `wait`."""
        if self._stream is None:
            return batch
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            copies = {name: value.to("cpu", non_blocking=True) for name, value in batch.items()}
        for value in batch.values():
            if value.is_cuda:
                value.record_stream(self._stream)
        return copies

    def wait(self) -> None:
        """Until all copies are whole."""
        if self._stream is not None:
            self._stream.synchronize()


def keep_step(
    folder: Path, entry: Mapping[str, Any], passes: Sequence[Pass], weights: Mapping[str, Tensor]
) -> None:
    """Write a step aside and move it into place.

    Its entry alone if there are many by now.
    """
    from safetensors.torch import save_file

    kept = len(list(folder.parent.glob("*/model.safetensors")))
    whole = kept < _KEPT
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


def read_step(folder: Path) -> tuple[list[Pass], dict[str, Tensor], dict[str, Any]]:
    """Passes, weights and entry of a step that `keep_step` wrote.

    Raises:
        CheckpointError: it is not there, or only its entry is.
    """
    from safetensors.torch import load_file

    kept = sorted(path.parent for path in folder.glob(f"{NONFINITE}/*/{ENTRY}"))
    if kept:
        raise CheckpointError(
            f"this is a run; its kept steps are {', '.join(map(str, kept))}: give one of them",
            path=str(folder),
        )
    try:
        entry = json.loads((folder / ENTRY).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"no kept step ({error}); a run keeps them below {NONFINITE}/", path=str(folder)
        ) from error
    if not entry["whole"]:
        raise CheckpointError(
            f"a run keeps its first {_KEPT} such steps whole, and of this one only {ENTRY}",
            path=str(folder),
        )
    passes = [
        Pass(batch=dict(load_file(folder / f"pass_{k}.safetensors")), seed=seed)
        for k, seed in enumerate(entry["seeds"])
    ]
    return passes, dict(load_file(folder / "model.safetensors")), entry
