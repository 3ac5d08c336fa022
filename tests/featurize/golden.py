"""What OpenFold's recorded outputs are compared with, found by walking the pack."""

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
    """Every recorded key: dtype, shape and all bits. The pack keeps objects as bytes."""
    for name, value in want.items():
        mine = got[name]
        if mine.dtype == object:
            mine = mine.astype("S")
        else:
            assert mine.dtype == value.dtype, f"{name} is {mine.dtype}, not {value.dtype}"
        assert mine.shape == value.shape, f"{name} is {mine.shape}, not {value.shape}"
        assert mine.tobytes() == value.astype(mine.dtype).tobytes(), f"{name} differs"
