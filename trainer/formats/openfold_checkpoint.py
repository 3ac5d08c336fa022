"""Reading and writing weights of other programs: OpenFold's checkpoints and AF2's `.npz`."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from evofeed.base.errors import CheckpointError
from evofeed.trainer.formats.alphafold_params import alphafold_params, load_alphafold_params

_LOG = logging.getLogger(__name__)

# OpenFold renamed modules when it added AF2-multimer; its published weights have the old names.
_RENAMED: Final = (
    (re.compile(r"template_angle_embedder"), "template_single_embedder"),
    (re.compile(r"\bcore\.(msa_transition|outer_product_mean)"), r"\1"),
    (re.compile(r"\bcore\.(tri_|pair_transition)"), r"pair_stack.\1"),
    (re.compile(r"\bipa\.linear_(q|kv)_points\.(?!linear)"), r"ipa.linear_\1_points.linear."),
    (re.compile(r"^template_(?!embedder)"), "template_embedder.template_"),
)


def load_openfold_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Loads a checkpoint of one of these programs into the model, in place.

    Formats are OpenFold's plain state dicts (`.pt`), its Lightning checkpoints (the averaged
    weights, if present) and DeepSpeed's, safetensors with OpenFold's names (evofeed's), and
    AlphaFold2's `.npz`. No code in a file is executed. The file must have exactly the parameters
    of the model; only an `.npz` may have other arrays, which a warning counts.

    Raises:
        CheckpointError: the file cannot be read, or its parameters are not the model's.
    """
    path = Path(path)
    if path.suffix != ".npz":
        load_weights(model, read_weights(path), str(path))
        return
    try:
        with np.load(path) as arrays:
            unused = load_alphafold_params(model, arrays)
    except CheckpointError as error:
        raise CheckpointError(error.message, path=str(path)) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read it: {error}", path=str(path)) from error
    if unused:
        _LOG.warning(
            "%s: this model has no parameter for %d arrays, %s first", path, len(unused), unused[0]
        )


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The parameters in a `.pt`, `.ckpt` or `.safetensors` file, under OpenFold's current names.

    Raises:
        CheckpointError: it cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError("no such run, checkpoint or file", path=str(path))
    try:
        if path.suffix == ".safetensors":
            return current_names(safetensors.torch.load_file(path))
        file = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, LookupError, EOFError, TypeError) as error:
        raise CheckpointError(
            "not a checkpoint, or one with Python objects, which are not loaded: "
            "save only its state dict, as .pt or .safetensors",
            path=str(path),
        ) from error
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"cannot read it ({str(error).splitlines()[0]}); expected .pt, .safetensors or .npz",
            path=str(path),
        ) from error
    return current_names(_parameters(file))


def load_weights(model: nn.Module, state: Mapping[str, Tensor], path: str) -> None:
    """Loads a state dict that must fit exactly.

    Raises:
        CheckpointError: it does not fit; names the first wrong parameter.
    """
    ours = {name: value.shape for name, value in model.state_dict().items()}
    faults = {
        "missing": sorted(ours.keys() - state.keys()),
        "unexpected": sorted(state.keys() - ours.keys()),
        "of other shapes": sorted(
            name for name in ours.keys() & state.keys() if state[name].shape != ours[name]
        ),
    }
    for fault, names in faults.items():
        if names:
            raise CheckpointError(
                f"{fault}: {len(names)} parameters, {names[0]} first; "
                "the model must have the sizes it was saved with: the preset and `model` of that "
                "run's config.yaml; to predict, give the run's folder",
                path=path,
            )
    model.load_state_dict(dict(state))


def save_openfold_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Writes the weights for OpenFold (`.pt`), AF2 (`.npz`) or other programs (`.safetensors`).

    Raises:
        ValueError: the file name has another ending.
    """
    path = Path(path)
    state = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    if path.suffix == ".npz":
        arrays: dict[str, Any] = dict(alphafold_params(model))
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        contiguous = {name: value.contiguous() for name, value in state.items()}
        safetensors.torch.save_file(contiguous, path)
    elif path.suffix in (".pt", ".ckpt"):
        torch.save(state, path)
    else:
        raise ValueError(f"{path.name} must end in .pt, .ckpt, .safetensors or .npz")


def current_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict under OpenFold's current names, without `module.` and `model.` prefixes."""
    renamed = {}
    for name, value in state.items():
        name = re.sub(r"^(module\.|model\.)+", "", name)
        for pattern, new in _RENAMED:
            name = pattern.sub(new, name)
        renamed[name] = value
    return renamed


def _parameters(file: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The parameters in a checkpoint of any of these programs; averaged ones, if present."""
    averaged = file.get("ema")
    if isinstance(averaged, Mapping) and "params" in averaged:
        return dict(averaged["params"])
    for key in ("state_dict", "module"):  # Lightning, DeepSpeed
        if isinstance(file.get(key), Mapping):
            return dict(file[key])
    return file
