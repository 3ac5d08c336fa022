"""Features laid out on the host: dense arrays, and sparse ones as indices and values.

A GPU takes a sample's arrays in one copy and fills all sparse features in two kernels: launching a
kernel for each feature would take the host longer than the fill takes the GPU. Imports no torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evofeed.base.shapes import Integer, Shaped


class Sparse(NamedTuple):
    """A feature of zeros with few other values."""

    shape: tuple[int, ...]
    dtype: Any
    indices: Integer[np.ndarray, " n"] = np.zeros(0, np.int64)
    """Flat indices of the values."""
    values: Shaped[np.ndarray, " n"] | None = None
    """Float32, or integers from 0 to below 2^31; None for ones."""

    def words(self) -> tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]:
        """Indices and values in words of 4 bytes; the high words of i64 are 0."""
        values = np.ones(len(self.indices)) if self.values is None else self.values
        words = max(1, np.dtype(self.dtype).itemsize // 4)
        return self.indices * words, values.astype(self.dtype).view(np.int32)[::words]


class OnHost(NamedTuple):
    """An array that is not copied to the device."""

    value: np.ndarray


Laid = dict[str, "np.ndarray | Sparse | OnHost"]
"""Features by name, nested ones with dots; from those named `_...` the device makes others."""


def pad(value: np.ndarray, size: int, dtype: Any = None) -> np.ndarray:
    """The array padded with zeros to `size` rows."""
    padded = np.zeros((size, *value.shape[1:]), dtype or value.dtype)
    padded[: len(value)] = value
    return padded


def hot(codes: np.ndarray, classes: int, dtype: Any, size: int | None = None) -> Sparse:
    """One-hot `[size or len(codes), ..., classes]`; a code outside the classes gives zeros."""
    flat = codes.reshape(-1).astype(np.int64)
    index = np.arange(len(flat)) * classes + flat
    shape = (len(codes) if size is None else size, *codes.shape[1:], classes)
    return Sparse(shape, dtype, index[(flat >= 0) & (flat < classes)])


def symmetric(pairs: Integer[np.ndarray, "b 2"], size: int, dtype: Any) -> Sparse:
    """`[size, size]`: 1 for these pairs of indices in both orders."""
    row, column = pairs.astype(np.int64).T
    index = np.concatenate([row * size + column, column * size + row])
    return Sparse((size, size), dtype, index)


def deletion_features(
    deletions: Integer[np.ndarray, "d 3"], values: np.ndarray, shape: tuple[int, int]
) -> dict[str, Sparse]:
    """`has_deletion` and `deletion_value`, f32, of deletions by row and token."""
    index = deletions[:, 0].astype(np.int64) * shape[1] + deletions[:, 1]
    return {
        "has_deletion": Sparse(shape, np.float32, index),
        "deletion_value": Sparse(shape, np.float32, index, values),
    }


def nested(laid: dict[str, Any]) -> dict[str, Any]:
    """Features in a dict for each name before a dot, without those named `_...`."""
    features: dict[str, Any] = {}
    for name, value in laid.items():
        group, _, key = name.rpartition(".")
        if name[0] != "_":
            (features.setdefault(group, {}) if group else features)[key] = value
    return features
