"""A loader that reads over HTTP, for `service_ratios.py`: what its samples cost, way by way."""

from __future__ import annotations

import importlib
import itertools
import os
import time
from typing import Any, Protocol

import torch

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
from evofeed.store.inner import open_storage

CONFIG = LoaderConfig(
    crop_size=32, max_msa_clusters=8, max_extra_msa=8, max_recycling_iters=0, supervised=False,
    epoch_len=1_000_000,
)  # fmt: skip
"""Small crops: what is made of the bytes costs little beside reading them."""
WARM = 20  # samples
stand = importlib.import_module("service_stand")  # beside this one


class Stand(Protocol):
    """What is used of `service_stand.Stand`."""

    url: str
    front: str
    pids: dict[str, list[int]]
    tokens: list[str]


def loader_ways(on: Stand, seconds: float, repeats: int) -> dict[str, Any]:
    """Samples a second and CPU a sample, in turns: from the service, from nginx on its word, by
    links."""
    torch.set_num_threads(1)
    ways = {"service": (on.url, 0, "service"), "accel": (on.front, 1, "behind"),
            "links": (on.front, 1, "behind")}  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, (url, number, service) in ways.items():
            os.environ["EVOFEED_TOKEN"] = on.tokens[number]
            dataset = Dataset.open(f"{url}/v1/datasets/small")
            if way != "links":  # a storage that knows no shards asks for no links
                dataset.storage = open_storage(dataset.uri)
            found[way].append(load(dataset, seconds, on.pids[service], on.pids["nginx"]))
            dataset.close()
    del os.environ["EVOFEED_TOKEN"]
    before = stand.cpu_seconds(on.pids["behind"])
    time.sleep(seconds)
    idle = (stand.cpu_seconds(on.pids["behind"]) - before) / seconds * 1e6
    return {
        "seconds": seconds,
        "repeats": repeats,
        "idle_service_cpu_us_a_second": round(idle),
        **{
            way: {name: stand.spread([one[name] for one in runs]) for name in runs[0]}
            for way, runs in found.items()
        },
    }


def load(
    dataset: Dataset, seconds: float, service: list[int], nginx: list[int]
) -> dict[str, float]:
    with FeatureLoader(dataset, CONFIG, device="cpu") as loader:
        batches = iter(loader)
        for _ in itertools.islice(batches, WARM):
            pass
        begun, before = time.perf_counter(), (stand.cpu_seconds(service), stand.cpu_seconds(nginx))
        reader, samples = loader.stats()["reader_cpu_seconds"], 0
        while time.perf_counter() < begun + seconds:
            next(batches)
            samples += 1
        spent = time.perf_counter() - begun
        stats = loader.stats()
        return {
            "samples_per_second": samples / spent,
            "read_ms": stats["read"]["p50_ms"],
            "service_cpu_us": (stand.cpu_seconds(service) - before[0]) / samples * 1e6,
            "nginx_cpu_us": (stand.cpu_seconds(nginx) - before[1]) / samples * 1e6,
            "reader_cpu_us": (stats["reader_cpu_seconds"] - reader) / samples * 1e6,
        }
