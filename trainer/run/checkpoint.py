"""Checkpoints that are whole or not there, written while training continues.

A checkpoint is a folder `step_00000500` with the weights, their average and the
optimizer as safetensors and everything else as JSON. It is written aside, forced
to disk and renamed; `state.json` lists size and xxh3 of every other file, so a
torn or damaged one is never picked.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import xxhash
from torch import Tensor

from evofeed.base.errors import CheckpointError
from evofeed.base.files import advice, parse_json
from evofeed.base.run_files import RUN
from evofeed.trainer.run.flat import LOSS_SCALE, FlatOptimizer

CHECKPOINTS = "checkpoints"
"""The folder of a run that holds its checkpoints."""
RESIDUALS = "residuals"
"""The file of what ranks have kept of their gradients, if they have."""
_LOG = logging.getLogger(__name__)
_STATE = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int
    """Number of steps done when it was written."""
    state: dict[str, Any]
    """What was saved beside the tensors: loader state, counters, provenance."""

    def tensors(self, file: str) -> dict[str, Tensor]:
        """The tensors of `model`, `ema`, `optimizer` or `RESIDUALS`, on the CPU."""
        return dict(safetensors.torch.load_file(self.path / f"{file}.safetensors"))


class CheckpointWriter:
    """Writes checkpoints below one folder on a thread of its own, one at a time."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder = folder
        self.keep = keep
        self._thread = ThreadPoolExecutor(1, "evofeed-checkpoint")
        self._written: Future[None] | None = None
        for left in folder.glob(".step_*.partial"):  # of a run that was killed while writing
            shutil.rmtree(left, ignore_errors=True)

    def save(
        self, optimizer: FlatOptimizer, step: int, state: Mapping[str, Any],
        residuals: Mapping[str, Tensor] | None = None,
    ) -> Path:  # fmt: skip
        """Copy everything now, write it in the background; returns the folder to be.

        `state` is what else there is to keep, JSON-ready; residuals of gradients are on the CPU
        and not copied.

        Raises:
            CheckpointError: the checkpoint before this one could not be written.
        """
        self.wait()
        files = optimizer.files(lambda kept: kept.to("cpu", copy=True))
        if residuals:
            files[RESIDUALS] = dict(residuals)
        target = self.folder / f"step_{step:08d}"
        kept = json.loads(json.dumps(dict(state)))  # the loader keeps changing its own
        self._written = self._thread.submit(self._write, target, files, step, kept)
        return target

    def wait(self) -> None:
        """Wait for the checkpoint being written, if any.

        Raises:
            CheckpointError: it could not be written.
        """
        written, self._written = self._written, None
        try:
            if written:
                written.result()
        except Exception as error:
            raise CheckpointError(
                f"cannot write it ({error}); {advice(error)} or choose another --out",
                path=str(self.folder),
            ) from error

    def _write(
        self, target: Path, files: dict[str, dict[str, Tensor]], step: int, state: dict[str, Any]
    ) -> None:
        write_checkpoint(target, files, step, state)
        for old in sorted(_folders(self.folder))[: -self.keep]:
            shutil.rmtree(old)


def write_checkpoint(
    target: Path, files: dict[str, dict[str, Tensor]], step: int, state: dict[str, Any]
) -> None:
    """Write one checkpoint aside and move it into place in one step."""
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        listing = {}
        for file, tensors in files.items():
            path = aside / f"{file}.safetensors"
            safetensors.torch.save_file(tensors, path)
            _sync(path)
            listing[path.name] = {"nbytes": path.stat().st_size, "xxh3": _digest(path)}
        path = aside / _STATE
        path.write_text(json.dumps({"step": step, "files": listing, "state": state}, indent=1))
        _sync(path)
    except Exception:
        shutil.rmtree(aside, ignore_errors=True)  # a full disk gets its space back
        raise
    if target.exists():  # the same step again, after a resume from an older checkpoint
        shutil.rmtree(target)
    aside.rename(target)
    _sync(target.parent)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The latest complete checkpoint below a folder, or None.

    A folder with a file missing, short or with other bytes than listed is passed over, with one
    warning that says why and which step is used instead.
    """
    damaged = []
    found = None
    for path in sorted(_folders(folder), reverse=True):
        try:
            found = read_checkpoint(path)
            break
        except CheckpointError as error:
            damaged.append(error)
    used = f"step {found.step} is used" if found else "there is no older one"
    for why in damaged:
        _LOG.warning("%s; %s", why, used)
    return found


def checkpoint_in(path: Path) -> Checkpoint:
    """The newest complete checkpoint of a run's folder, or the one in a checkpoint's own folder.

    Raises:
        CheckpointError: there is none, or the one named is damaged.
    """
    if not (path / CHECKPOINTS).is_dir():
        if (path / RUN).is_file():
            why = "no checkpoint yet: a run saves one every `checkpoint_every` steps and at its end"
            raise CheckpointError(why, path=str(path))
        return read_checkpoint(path)
    found = newest_checkpoint(path / CHECKPOINTS)
    if found is None:
        raise CheckpointError("no complete checkpoint in this folder", path=str(path))
    return found


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in exactly this folder.

    Raises:
        CheckpointError: it is not whole; names the file and what is wrong with it.
    """
    file = path / _STATE
    try:
        content = parse_json(file.read_text())
        found = Checkpoint(path=path, step=int(content["step"]), state=content["state"])
        listing = content["files"].items()
    except FileNotFoundError as error:
        why = "no such file: a run's folder (--out of `evofeed train`) or a checkpoint's is wanted"
        raise CheckpointError(why, path=str(file)) from error
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"damaged: it cannot be read ({error!r})", path=str(file)) from error
    for name, entry in listing:
        file = path / name
        try:
            size = file.stat().st_size
        except OSError as error:
            raise CheckpointError(f"damaged: {error.strerror}", path=str(file)) from error
        if size != entry["nbytes"]:
            wrong = f"it has {size:,} bytes, {entry['nbytes']:,} were written"
        elif _digest(file) != entry["xxh3"]:
            wrong = "its checksum differs from the one written with it"
        else:
            continue
        raise CheckpointError(f"damaged: {wrong}", path=str(file))
    return found


def restore(checkpoint: Checkpoint, optimizer: FlatOptimizer) -> None:
    """Put a checkpoint's weights, average and moments into a model's buffers.

    Raises:
        CheckpointError: names or shapes differ from the model's.
    """
    for file, views in optimizer.files().items():
        saved = checkpoint.tensors(file)
        scale, own = saved.pop(LOSS_SCALE, None), views.pop(LOSS_SCALE, None)
        if scale is not None and own is not None:  # both runs are in float16
            _copy(scale, own, LOSS_SCALE, checkpoint)
        for key, view in views.items():
            _copy(saved.pop(key, None), view, key, checkpoint)
        if saved:
            raise CheckpointError(
                f"{file} holds {len(saved)} tensors that the model has not, {min(saved)} first; "
                "train with the configuration it was written with",
                path=str(checkpoint.path),
            )


def _copy(saved: Tensor | None, view: Tensor, key: str, checkpoint: Checkpoint) -> None:
    if saved is None or saved.shape != view.shape:
        got = "missing" if saved is None else f"of shape {list(saved.shape)}"
        raise CheckpointError(
            f"{key} is {got}, but the model's has shape {list(view.shape)}; "
            "train with the configuration it was written with",
            path=str(checkpoint.path),
        )
    with torch.no_grad():
        view.copy_(saved)


def _folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (p for p in folder.iterdir() if re.fullmatch(r"step_\d{8}", p.name))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
