"""Checkpoints, written atomically in the background while training continues.

A checkpoint is a folder `step_00000500` with the weights, their average and the
optimizer as safetensors and everything else as JSON. It is written to a temporary
folder, synced to disk and renamed; `state.json` lists size and xxh3 of every other
file, so that a truncated or damaged one is never used.
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
"""Folder of the checkpoints in a run's folder."""
RESIDUALS = "residuals"
"""File of the state of the ranks' gradient exchange, if it has one."""
_LOG = logging.getLogger(__name__)
_STATE = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int
    """Number of steps done when it was written."""
    state: dict[str, Any]
    """Everything saved except tensors: loader state, counters, provenance."""

    def tensors(self, file: str) -> dict[str, Tensor]:
        """The tensors of `model`, `ema`, `optimizer` or `RESIDUALS`, on the CPU."""
        return dict(safetensors.torch.load_file(self.path / f"{file}.safetensors"))


class CheckpointWriter:
    """Writes checkpoints below one folder in a background thread, one at a time."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder = folder
        self.keep = keep
        self._thread = ThreadPoolExecutor(1, "evofeed-checkpoint")
        self._written: Future[None] | None = None
        for partial in folder.glob(".step_*.partial"):  # of a run that was killed while writing
            shutil.rmtree(partial, ignore_errors=True)

    def save(
        self, optimizer: FlatOptimizer, step: int, state: Mapping[str, Any],
        residuals: Mapping[str, Tensor] | None = None,
    ) -> Path:  # fmt: skip
        """Copies all tensors and the state, writes them in the background; returns the folder.

        `state` is everything else to save, JSON-ready; residuals of gradients are on the CPU
        and not copied.

        Raises:
            CheckpointError: the previous checkpoint could not be written.
        """
        self.wait()
        files = optimizer.files(lambda buffer: buffer.to("cpu", copy=True))
        if residuals:
            files[RESIDUALS] = dict(residuals)
        target = self.folder / f"step_{step:08d}"
        state_copy = json.loads(json.dumps(dict(state)))  # the loader changes its state meanwhile
        self._written = self._thread.submit(self._write, target, files, step, state_copy)
        return target

    def wait(self) -> None:
        """Waits for the checkpoint being written, if any.

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
    """Writes one checkpoint to a temporary folder and renames it to `target`."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        listing = {}
        for file, tensors in files.items():
            path = partial / f"{file}.safetensors"
            safetensors.torch.save_file(tensors, path)
            _sync(path)
            listing[path.name] = {"nbytes": path.stat().st_size, "xxh3": _digest(path)}
        path = partial / _STATE
        path.write_text(json.dumps({"step": step, "files": listing, "state": state}, indent=1))
        _sync(path)
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)  # frees space on a full disk
        raise
    if target.exists():  # the same step again, after a resume from an older checkpoint
        shutil.rmtree(target)
    partial.rename(target)
    _sync(target.parent)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The latest complete checkpoint below a folder, or None.

    A folder with a missing, truncated or changed file is skipped, with a warning that gives the
    reason and the step used instead.
    """
    errors = []
    newest = None
    for path in sorted(_folders(folder), reverse=True):
        try:
            newest = read_checkpoint(path)
            break
        except CheckpointError as error:
            errors.append(error)
    used = f"step {newest.step} is used" if newest else "there is no older one"
    for damage in errors:
        _LOG.warning("%s; %s", damage, used)
    return newest


def checkpoint_in(path: Path) -> Checkpoint:
    """The newest complete checkpoint of a run's folder, or the one in a checkpoint's folder.

    Raises:
        CheckpointError: there is none, or the given one is damaged.
    """
    if not (path / CHECKPOINTS).is_dir():
        if (path / RUN).is_file():
            raise CheckpointError(
                "no checkpoint yet: a run saves one every `checkpoint_every` steps and at its end",
                path=str(path),
            )
        return read_checkpoint(path)
    newest = newest_checkpoint(path / CHECKPOINTS)
    if newest is None:
        raise CheckpointError("no complete checkpoint in this folder", path=str(path))
    return newest


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in exactly this folder.

    Raises:
        CheckpointError: it is incomplete or damaged; names the file and the fault.
    """
    file = path / _STATE
    try:
        content = parse_json(file.read_text())
        checkpoint = Checkpoint(path=path, step=int(content["step"]), state=content["state"])
        listing = content["files"].items()
    except FileNotFoundError as error:
        text = "no such file: give a run's folder (--out of `evofeed train`) or a checkpoint's"
        raise CheckpointError(text, path=str(file)) from error
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"damaged: it cannot be read ({error!r})", path=str(file)) from error
    for name, entry in listing:
        file = path / name
        try:
            size = file.stat().st_size
        except OSError as error:
            raise CheckpointError(f"damaged: {error.strerror}", path=str(file)) from error
        if size != entry["nbytes"]:
            fault = f"it has {size:,} bytes, {entry['nbytes']:,} were written"
        elif _digest(file) != entry["xxh3"]:
            fault = "its checksum differs from the one written with it"
        else:
            continue
        raise CheckpointError(f"damaged: {fault}", path=str(file))
    return checkpoint


def restore(checkpoint: Checkpoint, optimizer: FlatOptimizer) -> None:
    """Copies a checkpoint's weights, average and moments into the optimizer's buffers.

    Raises:
        CheckpointError: names or shapes differ from the model's.
    """
    for file, views in optimizer.files().items():
        saved = checkpoint.tensors(file)
        scale, view = saved.pop(LOSS_SCALE, None), views.pop(LOSS_SCALE, None)
        if scale is not None and view is not None:  # both runs are in float16
            _copy(scale, view, LOSS_SCALE, checkpoint)
        for key, view in views.items():
            _copy(saved.pop(key, None), view, key, checkpoint)
        if saved:
            raise CheckpointError(
                f"{file} has {len(saved)} tensors that the model lacks, {min(saved)} first; "
                "train with the configuration it was written with",
                path=str(checkpoint.path),
            )


def _copy(saved: Tensor | None, view: Tensor, key: str, checkpoint: Checkpoint) -> None:
    if saved is None or saved.shape != view.shape:
        fault = "missing" if saved is None else f"of shape {list(saved.shape)}"
        raise CheckpointError(
            f"{key} is {fault}, but the model's has shape {list(view.shape)}; "
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
