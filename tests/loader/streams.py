"""Small loaders, and digests of their batches."""

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
    """A loader on the CPU, by default with reader threads and little prefetch."""
    usual = {"device": "cpu", "reader": "thread", "prefetch": 4}
    return FeatureLoader(dataset, config, **{**usual, **options})


def digest(batch: dict[str, Tensor], sample: int, recycled: frozenset[str]) -> str:
    """Digest of the bytes of all features of a sample."""
    total = hashlib.sha256()
    for name in sorted(batch):
        value = batch[name][:, sample] if name in recycled else batch[name][sample]
        total.update(name.encode())
        total.update(value.contiguous().numpy().tobytes())
    return total.hexdigest()


def sample_digests(loader: FeatureLoader, batches: int | None = None) -> list[str]:
    """Digests of the samples of `count` batches, or of the rest of the epoch."""
    recycled = frozenset(feature.name for feature in BATCH if feature.stage == "recycle")
    out: list[str] = []
    for number, batch in enumerate(loader):
        out += [digest(batch, i, recycled) for i in range(len(batch["aatype"]))]
        if number + 1 == batches:
            break
    return out


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested dicts and lists, with their paths."""
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, child in sorted(pairs, key=lambda pair: str(pair[0])):
            yield from leaves(child, f"{name}.{key}")
    else:
        yield name, value


def whole_digest(batch: Any) -> str:
    """Digest of all values of a batch of any kind."""
    total = hashlib.sha256()
    for name, value in leaves(batch):
        data = value.contiguous().numpy().tobytes() if isinstance(value, Tensor) else value
        total.update(f"{name}={data!r}".encode())
    return total.hexdigest()


def take(loader: FeatureLoader, count: int) -> list[str]:
    """Digests of `count` batches, over the ends of epochs."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return [whole_digest(batch) for batch in itertools.islice(batches, count)]
