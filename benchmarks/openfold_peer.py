"""OpenFold's data path out of a checkout."""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path
from typing import Any

import torch

from evofeed.featurize.records.openfold_raw import to_openfold_raw
from evofeed.store import Dataset

Batch = dict[str, torch.Tensor]


def import_openfold(checkout: Path) -> None:
    """Make `openfold.data` importable; `openfold/__init__` would pull in CUDA extensions."""
    if "openfold" in sys.modules:
        return
    package = types.ModuleType("openfold")
    package.__path__ = [str(checkout / "openfold")]
    sys.modules["openfold"] = package
    try:
        import scipy.linalg  # noqa: F401
    except ImportError:  # only multimer pairing needs it
        for name in ("scipy", "scipy.linalg"):
            sys.modules.setdefault(name, types.ModuleType(name))
        sys.modules["scipy"].linalg = sys.modules["scipy.linalg"]  # type: ignore[attr-defined]


class Transforms:
    """OpenFold's feature pipeline with the preset its training uses."""

    def __init__(self, checkout: Path, preset: str) -> None:
        import_openfold(checkout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from openfold.config import model_config
            from openfold.data.feature_pipeline import FeaturePipeline
        self._pipeline = FeaturePipeline(model_config(preset, train=True).data)

    def __call__(self, raw: dict[str, Any]) -> Batch:
        """Features of four recycles of one training sample, on the CPU, recycles last."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(self._pipeline.process_features(dict(raw), mode="train"))


class StoredChains(torch.utils.data.Dataset):
    """OpenFold's transforms on chains of an evofeed dataset, as its DataLoader's workers run them.

    Parsing is left out: a worker starts from the raw features that OpenFold's parsers
    give, decoded from the shard. With text files it would take longer still.

    Args:
        dataset: opened; workers may get a storage that is sometimes slow.
        checkout: of OpenFold.
        preset: of OpenFold's configuration.
        length: samples.
    """

    def __init__(self, dataset: Dataset, checkout: Path, preset: str, length: int) -> None:
        self._dataset, self._checkout, self._preset = dataset, checkout, preset
        self._length = length
        self._transforms: Transforms | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> Batch:
        torch.set_num_threads(1)
        if self._transforms is None:
            self._transforms = Transforms(self._checkout, self._preset)
        chains = self._dataset.index["chain_id"]
        record = self._dataset[chains[number % len(chains)].as_py()]
        if record.num_templates > 4:  # OpenFold's featurizer keeps four at most
            record = record.replace(
                **{
                    name: getattr(record, name)[:4]
                    for name in record.__dataclass_fields__
                    if name.startswith("template_")
                }
            )
        return self._transforms(to_openfold_raw(record))
