"""What a GPU can do at most."""

from __future__ import annotations

PEAK_FLOPS: dict[str, dict[str, float]] = {
    "H200": {"bf16": 989e12, "fp16": 989e12, "tf32": 494.7e12, "fp32": 67e12},
    "H100": {"bf16": 989e12, "fp16": 989e12, "tf32": 494.7e12, "fp32": 67e12},
    "A100": {"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
}
"""Dense peak by GPU name and precision, from NVIDIA's data sheets."""


def peak_flops(device_name: str, precision: str) -> float | None:
    """Peak of a GPU by its name, or None if the table does not know it."""
    for name, peaks in PEAK_FLOPS.items():
        if name in device_name:
            return peaks.get(precision)
    return None
