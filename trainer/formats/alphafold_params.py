"""Conversion between AlphaFold2's parameters (`params_model_1.npz`) and those of our model.

An `.npz` key is `alphafold/alphafold_iteration/<scope>//<name>`. Repeated blocks
are stacked on axis 0, weights are transposed, heads have a separate axis: every
array is our parameter transposed and reshaped.
`alphafold_names.yaml` maps each scope to one of our modules and its kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import nn

from evofeed.base.errors import CheckpointError

_PREFIX: Final = "alphafold/alphafold_iteration/"
_NAMES: Final = Path(__file__).with_name("alphafold_names.yaml")


class _Entry(NamedTuple):
    """One array of the `.npz`: its key, our parameters (one, or one per block), its layout."""

    key: str
    names: list[str]
    stacked: bool
    layout: str


def alphafold_params(model: nn.Module) -> dict[str, np.ndarray]:
    """The model's weights under AF2's names and in AF2's shapes, float32."""
    arrays = {}
    for entry in _entries(model):
        parts = [_to_alphafold(model, name, entry.layout) for name in entry.names]
        arrays[entry.key] = np.stack(parts) if entry.stacked else parts[0]
    return arrays


@torch.no_grad()
def load_alphafold_params(model: nn.Module, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Copies AF2's weights into the model, in place.

    Returns:
        Keys of arrays without a parameter in this model (of a head it was built without).

    Raises:
        CheckpointError: an array is missing or has another size; names it.
    """
    parameters = dict(model.named_parameters())
    entries = list(_entries(model))
    for entry in entries:
        if entry.key not in arrays:
            raise CheckpointError(
                f"it has no {entry.key}: the file does not fit this model configuration"
            )
        array = np.asarray(arrays[entry.key])
        parts = list(array) if entry.stacked else [array]
        if len(parts) != len(entry.names):
            raise CheckpointError(f"{entry.key} has {len(parts)} blocks, not {len(entry.names)}")
        for name, part in zip(entry.names, parts, strict=True):
            target = parameters[name]
            if part.size != target.numel():
                raise CheckpointError(
                    f"{entry.key} has shape {part.shape}, but {name} is {tuple(target.shape)}"
                )
            ours = np.asarray(part, np.float32).reshape(target.shape[::-1]).T
            ours = _swapped(ours) if entry.layout == "swapped" else ours
            target.copy_(torch.from_numpy(np.ascontiguousarray(ours)))
    return sorted(set(arrays) - {entry.key for entry in entries})


def _entries(model: nn.Module) -> Iterator[_Entry]:
    """All arrays of the file of such a model."""
    import yaml

    table, traits = yaml.safe_load(_NAMES.read_text()), _traits(model)
    locations = [(part, *location) for part in table["parts"] for location in part["at"]]
    for part, scope, prefix, *required in locations:
        if not traits.issuperset(required):
            continue
        stack, stacked, rest = prefix.partition(".*")
        count = len(list(model.get_submodule(stack).children())) if stacked else 1
        prefixes = [f"{stack}.{n}{rest}" for n in range(count)] if stacked else [prefix]
        for af, ours, *kinds in map(str.split, part["modules"].splitlines()):
            for array in (array for kind in kinds for array in table["kinds"][kind].split()):
                name, parameter, layout = (*array.split(":"), "")[:3]
                names = [f"{before}{ours}.{parameter}" for before in prefixes]
                yield _Entry(f"{_PREFIX}{scope}{af}//{name}", names, bool(stacked), layout)


def _traits(model: nn.Module) -> set[str]:
    """Optional parts that this model has, as named in `alphafold_names.yaml`."""
    names = {name for name, _ in model.named_modules()}
    return {
        "complexes" if "structure_module.ipa.linear_k" in names else "single",
        "fused" if any(name.endswith(".linear_ab_p") for name in names) else "apart",
        *(["templates"] if "template_embedder" in names else []),
        *(["tm"] if "aux_heads.tm" in names else []),
    }


def _to_alphafold(model: nn.Module, name: str, layout: str) -> np.ndarray:
    """A parameter of the model, `[out, in]` or `[out]`, as AF2's array."""
    value = model.get_parameter(name).detach().cpu().float().numpy()
    value = np.ascontiguousarray((_swapped(value) if layout == "swapped" else value).T)
    heads = getattr(model.get_submodule(name.rsplit(".", 2)[0]), "no_heads", 1)
    if layout == "heads":
        return value.reshape(heads, -1)
    if layout == "heads_in":
        return value.reshape(value.shape[0], heads, -1)
    if layout == "heads_out":
        return value.reshape(heads, -1, value.shape[1])
    if layout == "outer":
        return value.reshape(2 * (round(value.shape[0] ** 0.5),) + (-1,))
    return value[0] if layout == "vector" else value


def _swapped(array: np.ndarray) -> np.ndarray:
    """A fused projection with its halves a and b swapped."""
    return np.concatenate(np.split(array, 2)[::-1])
