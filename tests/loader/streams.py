"""Small loaders, and what they give in a few bytes."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.protein.features import BATCH
from evofeed.store import Dataset

CONFIG = LoaderConfig(
    crop_size=16,
    max_msa_clusters=8,
    max_extra_msa=12,
    global_batch_size=12,
    epoch_len=24,
    max_recycling_iters=1,
)


def open_loader(dataset: Dataset, config: LoaderConfig = CONFIG, **options: Any) -> FeatureLoader:
    """On the CPU, with reader threads and little ahead, unless asked otherwise."""
    usual = {"device": "cpu", "reader": "thread", "prefetch": 4}
    return FeatureLoader(dataset, config, **{**usual, **options})


def digest(batch: dict[str, Tensor], sample: int, recycled: frozenset[str]) -> str:
    """Of all of a sample's features, byte for byte."""
    total = hashlib.sha256()
    for name in sorted(batch):
        value = batch[name][:, sample] if name in recycled else batch[name][sample]
        total.update(name.encode())
        total.update(value.contiguous().numpy().tobytes())
    return total.hexdigest()


def sample_digests(loader: FeatureLoader, batches: int | None = None) -> list[str]:
    """Of the samples of so many batches, or of the rest of the epoch."""
    recycled = frozenset(feature.name for feature in BATCH if feature.stage == "recycle")
    out: list[str] = []
    for number, batch in enumerate(loader):
        out += [digest(batch, i, recycled) for i in range(len(batch["aatype"]))]
        if number + 1 == batches:
            break
    return out


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What nested tables and lists hold, by where it is."""
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, child in sorted(pairs, key=lambda pair: str(pair[0])):
            yield from leaves(child, f"{name}.{key}")
    else:
        yield name, value


def whole_digest(batch: Any) -> str:
    """Of everything that a batch of any kind holds."""
    total = hashlib.sha256()
    for name, value in leaves(batch):
        data = value.contiguous().numpy().tobytes() if isinstance(value, Tensor) else value
        total.update(f"{name}={data!r}".encode())
    return total.hexdigest()


def take(loader: FeatureLoader, count: int) -> list[str]:
    """Digests of so many batches, of one epoch after another."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return [whole_digest(batch) for batch in itertools.islice(batches, count)]
