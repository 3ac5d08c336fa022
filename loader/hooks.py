"""User-defined hooks of the loader: weights, crops, features, transforms on the device.

Each is a plain function of what it is given, so that ranks, workers and restarts change nothing:
what is random takes its numbers from `ChainSample.rng`, or from the transform's generator. They
run in the process of the trainer and need not be picklable.
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
    """The chain at a position of an epoch, as a hook sees it.

    `num_res` are residues of the whole chain, `crop` is what is cut from it (a crop's own hook is
    given the usual one), `key` is of everything random about the sample.
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
        """All that the shard holds of the chain: one more read, in the loader's thread."""
        return self._read(self.chain_id)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Numbers of this sample alone, the same on every machine."""
        return np.random.default_rng(stream_key(self.key, Purpose.HOOKS))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderHooks:
    """What a loader does besides, or otherwise than, its configuration says.

    A saved state remembers `name`: give another one when a function changes.

    Attributes:
        name: of these rules.
        weights: of an index (of the chains that pass the filters, or of complexes) and an epoch:
            how often each row is drawn, `f64[n]`, relative to the largest; a row of 0 never is.
            In place of AF2's probabilities. A curriculum is a function that looks at the epoch.
        crop: of a sample: the first residue that is kept, from 0.
        features: of a sample: arrays by name. An array `[num_res, ...]` is cropped, padded with
            0 and stacked to `[B, crop, ...]`; a number becomes `[B]`.
        transform: of a batch on its device and a generator for it: the batch that is handed over.
    """

    name: str
    weights: Callable[[pa.Table, int], np.ndarray] | None = None
    crop: Callable[[ChainSample], int] | None = None
    features: Callable[[ChainSample], Mapping[str, np.ndarray | float]] | None = None
    transform: Callable[[dict[str, Any], torch.Generator], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        """A state is compared by the name."""
        if not self.name:
            raise ValueError("hooks need a name: a saved state is compared by it")

    def probability(self, index: pa.Table, epoch: int) -> np.ndarray:
        """The chance of each row of an index to be taken when it is its turn, `f64[n]`.

        Raises:
            LoaderError: the weights are not one finite number, 0 or more, a row; or all are 0.
        """
        assert self.weights is not None
        found = np.asarray(self.weights(index, epoch), float)
        fine = found.shape == (index.num_rows,) and np.isfinite(found).all() and (found >= 0).all()
        if not fine or not found.any():
            raise LoaderError(
                f"weights of hooks {self.name!r} in epoch {epoch} must be {index.num_rows} finite "
                f"numbers of 0 or more, and not all 0; they have shape {found.shape}"
            )
        return np.asarray(found / found.max())

    def cropped(self, sample: ChainSample) -> Crop:
        """The sample's crop (raises LoaderError: it does not lie within the chain)."""
        if self.crop is None:
            return sample.crop
        start, most = int(self.crop(sample)), sample.num_res - sample.crop.length
        if not 0 <= start <= most:
            raise LoaderError(
                f"crop of hooks {self.name!r} begins at residue {start} of {sample.num_res}; "
                f"with {sample.crop.length} residues it may begin at 0 to {most}",
                item=sample.chain_id,
            )
        return replace(sample.crop, start=start)

    def stacked(self, samples: list[ChainSample], num_res: int) -> dict[str, Tensor]:
        """The samples' own features as tensors of the CPU, `[B, num_res, ...]` or `[B]`.

        Raises:
            LoaderError: an array has neither the chain's length nor no axis, or samples differ
                in what they have.
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
        found = {}
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
            found[name] = array
        return found
