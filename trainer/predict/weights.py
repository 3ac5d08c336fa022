"""Loading the model of a run's folder, a checkpoint or a published file of weights."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from evofeed.base.configs import replaced
from evofeed.base.errors import CheckpointError
from evofeed.trainer.formats.openfold_checkpoint import (
    load_openfold_checkpoint,
    load_weights,
    read_weights,
)
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.config import ModelConfig
from evofeed.trainer.presets import initial_training, multimer
from evofeed.trainer.run.checkpoint import CHECKPOINTS, checkpoint_in
from evofeed.trainer.run.settings import load_config, parts_of


def load_model(checkpoint: str | Path, *, config: ModelConfig | None = None) -> AlphaFold:
    """The model of a checkpoint, with its averaged weights.

    Args:
        checkpoint: a run's folder (its newest checkpoint), a checkpoint's folder, or
            a file of OpenFold (`.pt`), AF2 (`.npz`) or safetensors.
        config: needed for files of models that are not of AF2's size.

    Raises:
        CheckpointError: it cannot be read or is of another model.
    """
    path = Path(checkpoint)
    if path.is_dir():
        saved = checkpoint_in(path)
        state, path = saved.tensors("ema"), saved.path
        config = config or parts_of(load_config(str(_settings(path)))).model
    else:
        state = {} if path.suffix == ".npz" else read_weights(path)
        config = config or _published_config(state or _keys(path))
    with torch.device("meta"):  # drawing AF2's 93 million weights takes half a minute on two cores
        model = AlphaFold(config)
    model.to_empty(device="cpu")
    if state:
        load_weights(model, state, str(path))
    else:
        load_openfold_checkpoint(model, path)
    return model


def trained_sizes(checkpoint: str | Path) -> dict[str, int]:
    """MSA and template sizes and recycles that a run was trained with, for `record_batch`.

    Empty for files of weights: those are AF2's, and OpenFold's sizes for prediction apply.
    A model of a run has only seen its training sizes. One that always had extra sequences fails
    without them, and there are none if the clusters take every row of an alignment.
    """
    path = Path(checkpoint)
    settings = _settings(path)
    if not path.is_dir() or not settings.is_file():
        return {}
    sizes = parts_of(load_config(str(settings))).loader
    names = ("max_msa_clusters", "max_extra_msa", "max_templates")
    recycles = {"no_recycling_iters": sizes.max_recycling_iters}
    return recycles | {name: getattr(sizes, name) for name in names}


def _settings(path: Path) -> Path:
    """Path of the run's configuration, from the folder of a run or of one of its checkpoints."""
    return (path if (path / CHECKPOINTS).is_dir() else path.parent.parent) / "config.yaml"


def _keys(path: Path) -> list[str]:
    """Names of the arrays in a file of AlphaFold."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return list(arrays)
    except FileNotFoundError:
        raise CheckpointError("no such run, checkpoint or file", path=str(path)) from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"cannot read it as AlphaFold's .npz ({error})", path=str(path)
        ) from error


def _published_config(names: Iterable[str]) -> ModelConfig:
    """The variant of AF2's model that has these parameters, in OpenFold's or AlphaFold's names.

    Versions 1 and 2 of the model of complexes differ from version 3 in parameters only in this:
    their triangle multiplications have a matrix for each projection.
    """

    def has(*parts: str) -> bool:
        return any(part in name for name in names for part in parts)

    if not has("structure_module.ipa.linear_k.weight", "_relative_encoding"):
        ptm = has("aux_heads.tm.linear.weight", "predicted_aligned_error_head")
        config = initial_training(ptm=ptm).model
        with_templates = has("template_embedder.", "template_embedding")
        return config if with_templates else replace(config, template=None)
    fused = {"fuse_projection_weights": has("linear_ab_p", "/left_norm_input//scale")}
    return replaced(multimer().model, {"template": fused, "extra_msa": fused, "evoformer": fused})


def describe_model(config: ModelConfig) -> str:
    """The kind of a model: `AlphaFold2 with templates and pTM`, `AlphaFold-Multimer v3`."""
    size = "" if config.c_z == 128 and config.evoformer.no_blocks == 48 else ", not of AF2's size"
    if config.multimer is not None:
        version = "v3" if config.evoformer.fuse_projection_weights else "v1 or v2"
        return f"AlphaFold-Multimer {version}{size}"
    parts = [
        name
        for name, present in (("templates", config.template), ("pTM", config.tm_bins))
        if present is not None
    ]
    return "AlphaFold2" + (f" with {' and '.join(parts)}" if parts else "") + size
