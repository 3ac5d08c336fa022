"""User-defined hooks of the loader: weights, crops, features, transforms on the device.

Each is a pure function of its arguments, so that batches do not depend on ranks, workers or
restarts; random numbers come from `ChainSample.rng` or the transform's generator. Hooks run in
the trainer's process and need not be picklable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from evofeed.base.errors import LoaderError
from evofeed.loader.counter_rng import Purpose, stream_key
from evofeed.protein.chain_record import ChainRecord

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from evofeed.loader.draws import Crop


@dataclass(frozen=True)
class ChainSample:
    """The chain at a position of an epoch, the argument of hooks.

    `num_res` is the length of the full chain, `crop` the sample's crop (for the `crop` hook the
    default one), `key` the key of all random draws of the sample.
    """

    chain_id: str
    epoch: int
    position: int
    num_res: int
    crop: Crop
    key: int
    _row: Callable[[], dict[str, Any]] = field(repr=False)
    _read: Callable[[str], ChainRecord] = field(repr=False)

    @cached_property
    def row(self) -> dict[str, Any]:
        """The chain's row of the index, by column."""
        return self._row()

    @cached_property
    def record(self) -> ChainRecord:
        """The chain's full record: another read of the shard, in the loader's thread."""
        return self._read(self.chain_id)

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator for this sample, with the same numbers on every machine."""
        return np.random.default_rng(stream_key(self.key, Purpose.HOOKS))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderHooks:
    """Functions that extend or replace steps of the loader.

    A saved state stores `name`: change it when a function changes.

    Attributes:
        name: of these rules.
        weights: from an index (of eligible chains or complexes) and an epoch, the sampling weight
            of each row, `f64[n]`, relative to the largest; rows with 0 are never drawn. Replaces
            AF2's probabilities. A curriculum is a function that depends on the epoch.
        crop: from a sample, the first residue of its crop, from 0.
        features: from a sample, arrays by name. An array `[num_res, ...]` is cropped, padded with
            0 and stacked to `[B, crop, ...]`; a number becomes `[B]`.
        transform: from a batch on its device and a generator for it, the batch to deliver.
    """

    name: str
    weights: Callable[[pa.Table, int], np.ndarray] | None = None
    crop: Callable[[ChainSample], int] | None = None
    features: Callable[[ChainSample], Mapping[str, np.ndarray | float]] | None = None
    transform: Callable[[dict[str, Any], torch.Generator], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        """Requires a name, by which states are compared."""
        if not self.name:
            raise ValueError("hooks need a name: a saved state is compared by it")

    def probability(self, index: pa.Table, epoch: int) -> np.ndarray:
        """The probability of accepting each row of an index in a pass, `f64[n]`.

        Raises:
            LoaderError: the weights are not one finite number, 0 or more, a row; or all are 0.
        """
        assert self.weights is not None
        weights = np.asarray(self.weights(index, epoch), float)
        valid = weights.shape == (index.num_rows,) and np.isfinite(weights).all()
        if not valid or (weights < 0).any() or not weights.any():
            raise LoaderError(
                f"weights of hooks {self.name!r} in epoch {epoch} must be {index.num_rows} finite "
                f"numbers of 0 or more, and not all 0; they have shape {weights.shape}"
            )
        return np.asarray(weights / weights.max())

    def cropped(self, sample: ChainSample) -> Crop:
        """The sample's crop (raises LoaderError: it is not within the chain)."""
        if self.crop is None:
            return sample.crop
        start, last_start = int(self.crop(sample)), sample.num_res - sample.crop.length
        if not 0 <= start <= last_start:
            raise LoaderError(
                f"crop of hooks {self.name!r} begins at residue {start} of {sample.num_res}; "
                f"with {sample.crop.length} residues it may begin at 0 to {last_start}",
                item=sample.chain_id,
            )
        return replace(sample.crop, start=start)

    def stacked(self, samples: list[ChainSample], num_res: int) -> dict[str, Tensor]:
        """The user's features of the samples as CPU tensors, `[B, num_res, ...]` or `[B]`.

        Raises:
            LoaderError: an array is neither a number nor of the chain's length, or names, shapes
                or dtypes differ between samples.
        """
        import torch

        rows = [self._padded(sample, num_res) for sample in samples]
        shapes = [{name: (v.shape, v.dtype) for name, v in row.items()} for row in rows]
        for sample, shape in zip(samples, shapes, strict=True):
            if shape != shapes[0]:
                raise LoaderError(
                    f"features of hooks {self.name!r} are {shape}, and of {samples[0].chain_id} "
                    f"{shapes[0]}",
                    item=sample.chain_id,
                )
        return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in shapes[0]}

    def _padded(self, sample: ChainSample, num_res: int) -> dict[str, np.ndarray]:
        assert self.features is not None
        padded = {}
        for name, value in self.features(sample).items():
            array = np.asarray(value)
            if array.ndim and len(array) != sample.num_res:
                raise LoaderError(
                    f"feature {name} of hooks {self.name!r} has shape {array.shape}; give a number "
                    f"or an array whose first axis is the whole chain, {sample.num_res}",
                    item=sample.chain_id,
                )
            if array.ndim:
                cut = array[sample.crop.start : sample.crop.stop]
                array = np.zeros((num_res, *array.shape[1:]), array.dtype)
                array[: len(cut)] = cut
            padded[name] = array
        return padded
