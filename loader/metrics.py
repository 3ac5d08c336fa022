"""`loader.stats()` as flat numbers: for TensorBoard, a log line, or Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["flat_metrics", "prometheus_text"]


def flat_metrics(stats: Mapping[str, Any], prefix: str = "loader") -> dict[str, float]:
    """Every number of `stats` under one name, lists as their length.

    For TensorBoard: `for name, value in flat_metrics(loader.stats()).items():
    writer.add_scalar(name, value, step)`.
    """
    flat: dict[str, float] = {}
    for name, value in stats.items():
        key = f"{prefix}/{name}"
        if isinstance(value, Mapping):
            flat |= flat_metrics(value, key)
        elif isinstance(value, list):
            flat[key] = float(len(value))
        elif isinstance(value, int | float):
            flat[key] = float(value)
    return flat


def prometheus_text(stats: Mapping[str, Any], **labels: object) -> str:
    """The numbers in Prometheus' text format, as gauges; labels such as `rank=0`."""
    where = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    lines = []
    for name, value in flat_metrics(stats, "evofeed_loader").items():
        metric = re.sub(r"[^a-zA-Z0-9_]", "_", name)
        lines += [f"# TYPE {metric} gauge", f"{metric}{{{where}}} {value:.9g}"]
    return "\n".join(lines) + "\n"
