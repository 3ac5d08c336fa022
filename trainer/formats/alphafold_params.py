"""DeepMind's AlphaFold2 parameter names (`params_model_1.npz`), to ours and back.

An `.npz` key is `alphafold/alphafold_iteration/<scope>//<name>`. Repeated blocks
are stacked on axis 0, weights are transposed, heads have an axis of their own.
The tables of `alphafold_tables` pair a scope with one of our modules and say what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from evofeed.base.errors import CheckpointError
from evofeed.trainer.formats.alphafold_tables import KINDS, tables_of

_PREFIX: Final = "alphafold/alphafold_iteration/"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One array of the `.npz`: its key, our parameters (one, or one per block), its layout."""

    key: str
    names: tuple[str, ...]
    stacked: bool
    layout: str


def alphafold_params(model: nn.Module) -> dict[str, np.ndarray]:
    """The model's weights under AF2's names and in AF2's shapes, float32."""
    state = model.state_dict()
    arrays = {}
    for entry in _entries(model):
        parts = [
            _LAYOUTS[entry.layout](state[n].cpu().float().numpy(), _heads(model, n))
            for n in entry.names
        ]
        arrays[entry.key] = np.stack(parts) if entry.stacked else parts[0]
    return arrays


@torch.no_grad()
def load_alphafold_params(model: nn.Module, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Copy AF2's weights into the model, in place.

    Returns:
        Keys that this model has no place for (a head it was built without).

    Raises:
        CheckpointError: an array is missing or has another size; names it.
    """
    parameters = dict(model.named_parameters())
    entries = list(_entries(model))
    for entry in entries:
        if entry.key not in arrays:
            raise CheckpointError(
                f"no {entry.key}: this is not a file for this model configuration"
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
            target.copy_(_from_alphafold(part, entry.layout, target))
    known = {entry.key for entry in entries}
    return sorted(key for key in arrays if key not in known)


def _entries(model: nn.Module) -> Iterator[_Entry]:
    for table, scope, prefix in tables_of(model):
        if prefix.endswith(".blocks"):
            count = len(model.get_submodule(prefix))  # type: ignore[arg-type]
            yield from _expand(table, scope, [f"{prefix}.{i}." for i in range(count)], stacked=True)
        else:
            yield from _expand(table, scope, [prefix])


def _expand(
    table: str, scope: str, prefixes: list[str], *, stacked: bool = False
) -> Iterator[_Entry]:
    for line in table.strip().splitlines():
        if not line.strip():
            continue
        af, our, *kinds = line.split()
        for kind in kinds:
            for leaf in KINDS[kind]:
                name, parameter, layout = leaf.split()
                names = tuple(f"{prefix}{our}.{parameter}" for prefix in prefixes)
                yield _Entry(f"{_PREFIX}{scope}{af}//{name}", names, stacked, layout)


def _heads(model: nn.Module, name: str) -> int:
    """Heads of the attention a parameter belongs to, 1 if none."""
    module = model.get_submodule(name.rsplit(".", 2)[0])
    return int(getattr(module, "no_heads", 1))


def _swapped(array: np.ndarray) -> np.ndarray:
    """Halves a and b of a fused projection, the other way round."""
    return np.concatenate(np.split(array, 2)[::-1])


_LAYOUTS: Final[dict[str, Callable[[np.ndarray, int], np.ndarray]]] = {
    "same": lambda array, heads: array,
    "heads": lambda array, heads: array.reshape(heads, -1),
    "vector": lambda array, heads: array[:, 0],
    "swapped_bias": lambda array, heads: _swapped(array),
    "swapped": lambda array, heads: np.ascontiguousarray(_swapped(array).T),
    "matrix": lambda array, heads: np.ascontiguousarray(array.T),
    "heads_in": lambda array, heads: array.T.reshape(array.shape[1], heads, -1),
    "heads_out": lambda array, heads: array.T.reshape(heads, -1, array.shape[0]),
    "outer": lambda array, heads: array.T.reshape(2 * (round(array.shape[1] ** 0.5),) + (-1,)),
}
"""From our `[out, in]` weight or `[out]` bias to AF2's array."""


def _from_alphafold(array: np.ndarray, layout: str, target: Tensor) -> Tensor:
    value = torch.from_numpy(np.array(array, np.float32))
    if layout == "swapped_bias":
        return torch.cat(value.chunk(2)[::-1])
    if layout in ("same", "heads", "vector"):
        return value.reshape(target.shape)
    if layout == "swapped":
        return torch.cat(value.T.chunk(2)[::-1])
    return value.reshape(target.shape[1], target.shape[0]).T  # heads and channels side by side
