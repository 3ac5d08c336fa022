"""Records to compare with OpenFold's recorded outputs, for every file of the pack."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from tests.conftest import golden_files

from evofeed.featurize import ChainSource, FeaturizeConfig, discover, featurize_chain
from evofeed.protein.chain_record import ChainRecord

RAW = golden_files("data/golden/*.raw.npz")
STRUCTURE_RAW = golden_files("data/golden/mmcif/*.raw.npz")
INPUTS = golden_files("data/inputs")


@functools.cache
def sources() -> dict[str, ChainSource]:
    return {source.chain_id: source for root in INPUTS for source in discover(root)}


@functools.cache
def openfold_record(chain_id: str) -> ChainRecord:
    return featurize_chain(sources()[chain_id], FeaturizeConfig.openfold())


def recorded(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def assert_same(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    """Compares every recorded key: dtype, shape and all bits. The pack has objects as bytes."""
    for name, value in want.items():
        ours = got[name]
        if ours.dtype == object:
            ours = ours.astype("S")
        else:
            assert ours.dtype == value.dtype, f"{name} is {ours.dtype}, not {value.dtype}"
        assert ours.shape == value.shape, f"{name} is {ours.shape}, not {value.shape}"
        assert ours.tobytes() == value.astype(ours.dtype).tobytes(), f"{name} differs"
