"""Features laid out on the host: arrays as they are, and large ones of zeros with few numbers.

A GPU takes a sample's arrays in one copy and all its zeros and numbers in two kernels: a kernel for
each feature would take the host longer than all of them take the GPU. Imports no torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evofeed.base.shapes import Integer, Shaped


class Sparse(NamedTuple):
    """A feature of zeros but for these numbers."""

    shape: tuple[int, ...]
    dtype: Any
    at: Integer[np.ndarray, " n"] = np.zeros(0, np.int64)
    """Flat places of the numbers; of whole numbers or float32."""
    values: Shaped[np.ndarray, " n"] | None = None
    """None for ones; whole numbers below 2^31."""

    def words(self) -> tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]:
        """Places in words of 4 bytes, and what stands there; the high words of i64 are 0."""
        values = np.ones(len(self.at)) if self.values is None else self.values
        wide = max(1, np.dtype(self.dtype).itemsize // 4)
        return self.at * wide, values.astype(self.dtype).view(np.int32)[::wide]


class OnHost(NamedTuple):
    """An array that never leaves the host."""

    value: np.ndarray


Laid = dict[str, "np.ndarray | Sparse | OnHost"]
"""Features by name, dots between the names of nested ones; of `_name` they are made yet."""


def longer(value: np.ndarray, size: int, dtype: Any = None) -> np.ndarray:
    """With zeros behind, up to `size` rows."""
    out = np.zeros((size, *value.shape[1:]), dtype or value.dtype)
    out[: len(value)] = value
    return out


def hot(codes: np.ndarray, classes: int, dtype: Any, size: int | None = None) -> Sparse:
    """One-hot `[size or len(codes), ..., classes]`; a code outside the classes gives zeros."""
    flat = codes.reshape(-1).astype(np.int64)
    at = np.arange(len(flat)) * classes + flat
    shape = (len(codes) if size is None else size, *codes.shape[1:], classes)
    return Sparse(shape, dtype, at[(flat >= 0) & (flat < classes)])


def symmetric(pairs: Integer[np.ndarray, "b 2"], size: int, dtype: Any) -> Sparse:
    """`[size, size]`: 1 for these pairs of places in both orders."""
    one, two = pairs.astype(np.int64).T
    return Sparse((size, size), dtype, np.concatenate([one * size + two, two * size + one]))


def deleted(
    deletions: Integer[np.ndarray, "d 3"], values: np.ndarray, shape: tuple[int, int]
) -> dict[str, Sparse]:
    """`has_deletion` and `deletion_value`, f32, of deletions by row and token."""
    at = deletions[:, 0].astype(np.int64) * shape[1] + deletions[:, 1]
    return {
        "has_deletion": Sparse(shape, np.float32, at),
        "deletion_value": Sparse(shape, np.float32, at, values),
    }


def nested(laid: dict[str, Any]) -> dict[str, Any]:
    """Features in a dict for each name before a dot, without what they are made of."""
    features: dict[str, Any] = {}
    for name, value in laid.items():
        above, _, own = name.rpartition(".")
        if name[0] != "_":
            (features.setdefault(above, {}) if above else features)[own] = value
    return features
