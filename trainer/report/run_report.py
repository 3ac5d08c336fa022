"""The run report: the speed of a run, its time by part, and whether the parts add up.

Made from `run.json` and `steps.jsonl` only, so it can be made again at any time.
The six figures are those High-Flyer published for AlphaFold2 training, each with
the numbers that it leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.base.errors import InputError
from evofeed.base.files import parse_json, write_atomic
from evofeed.base.run_files import RUN
from evofeed.trainer.log.runlog import PARTS, read_steps

REPORT = "report.json"
_NOT_TRAINING = ("validation", "checkpoint", "profiling")  # not in the time of a step


def make_report(folder: Path) -> dict[str, Any]:
    """The report, JSON-ready; times in seconds.

    Times are of the steps since the last resume; losses and validations of all steps.

    Raises:
        InputError: the folder has no run, or a run without a finished step.
    """
    path = folder / RUN
    if not path.is_file():
        raise InputError(f"no run here: there is no {RUN}; give a run's --out", path=str(folder))
    try:
        facts = parse_json(path.read_text())
    except ValueError as error:
        raise InputError(
            f"not a run's facts ({error}): `evofeed train --resume` writes them again",
            path=str(path),
        ) from error
    all_steps = read_steps(folder)
    steps = [line for line in all_steps if line["step"] >= facts["first_step"]]
    if not steps:
        raise InputError("the run has not finished a step yet", path=str(folder))
    facts = _unfinished(steps) | facts
    operators = facts.get("operators") or {}
    first = operators.get("first_step", 0)
    # One more: the profile is summed up at the end of its last step.
    sampled = range(first, first + operators["steps"] + 1) if operators else range(0)
    unprofiled = [line for line in steps if line["step"] not in sampled]
    timed = unprofiled[min(3, len(unprofiled) // 2) :]  # the first compile kernels, grow buffers
    breakdown = _breakdown(steps, facts["seconds"])
    waits = [line["seconds"]["data_wait"] for line in timed]
    return {
        "run": {name: facts[name] for name in _FACTS if name in facts},
        "figures": _figures(facts, steps, [training_seconds(line) for line in timed]),
        "breakdown": breakdown,
        "data_wait": {
            "share": breakdown["share"]["data_wait"],
            "p50_seconds": float(np.percentile(waits, 50)),
            "p99_seconds": float(np.percentile(waits, 99)),
        },
        "operators": operators,
        "speed": _speed(facts, timed),
        "loader": facts.get("loader", {}),
        "parts_by_rank": facts.get("parts_by_rank", []),
        "peak_memory_by_rank": facts.get("peak_memory_by_rank", []),
        "loss": _losses(all_steps),
        "validation": [
            {"step": line["step"] + 1, **line["metrics"]} for line in all_steps if "metrics" in line
        ],
    }


_FACTS = (
    "date", "command", "device", "world_size", "parameters", "dataset", "versions", "stopped_by",
    "first_step", "steps", "config",
)  # fmt: skip


def _unfinished(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Facts of a run that still runs or was killed, from its steps; its wall time is unknown."""
    return {
        "seconds": sum(sum(line["seconds"].values()) for line in steps),
        "steps": steps[-1]["step"] + 1,
        "skipped": [line["step"] for line in steps if not line.get("finite", True)],
        "stopped_by": "not finished",
    }


PEAK_FLOPS: dict[str, dict[str, float]] = {
    "H200": {"bf16": 989e12, "fp16": 989e12, "tf32": 494.7e12, "fp32": 67e12},
    "H100": {"bf16": 989e12, "fp16": 989e12, "tf32": 494.7e12, "fp32": 67e12},
    "A100": {"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
}
"""Dense peak by GPU name and precision, from NVIDIA's data sheets."""


def peak_flops(device_name: str, precision: str) -> float | None:
    """Peak FLOP/s of a GPU by its name; None if it is not in the table."""
    matches = [peaks.get(precision) for name, peaks in PEAK_FLOPS.items() if name in device_name]
    return matches[0] if matches else None


def training_seconds(line: Mapping[str, Any]) -> float:
    """Seconds of a step without validation, checkpoint and profiling."""
    return float(sum(s for part, s in line["seconds"].items() if part not in _NOT_TRAINING))


def _figures(
    facts: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], times: Sequence[float]
) -> dict[str, Any]:
    starts = [line["seconds"]["data_wait"] for line in steps if line.get("first")]
    mean = float(np.mean(times))
    per_epoch = facts.get("samples_per_epoch")
    return {
        "gpu_busy_share": (facts.get("operators") or {}).get("gpu_busy_share"),
        "epoch_seconds": mean * per_epoch / facts["samples_per_step"] if per_epoch else None,
        "step_seconds": {
            "mean": mean,
            "p50": float(np.percentile(times, 50)),
            "p99": float(np.percentile(times, 99)),
            "counted_steps": len(times),
        },
        "first_batch_seconds": facts["seconds_before_first_wait"]
        + steps[0]["seconds"]["data_wait"],
        "epoch_start_wait_seconds": starts[1:],
        "iterations": facts["steps"],
        "total_seconds": facts["seconds_before_first_wait"] + facts["seconds"],
        "skipped_steps": facts["skipped"],
        "overflows": facts.get("overflows", []),
    }


def _breakdown(steps: Sequence[Mapping[str, Any]], wall: float) -> dict[str, Any]:
    """Seconds of each part over the full run against the wall clock.

    The wait for the first batch is a separate part: it is start-up, not a wait of a step.
    """
    sums = dict.fromkeys(("first_batch", *PARTS), 0.0)
    for line in steps:
        for part, seconds in line["seconds"].items():
            sums[part] += seconds
    sums["first_batch"] = steps[0]["seconds"]["data_wait"]
    sums["data_wait"] -= sums["first_batch"]
    seconds = sum(sums.values())
    return {
        "seconds": sums,
        "share": {part: seconds / wall for part, seconds in sums.items()},
        "sum_seconds": seconds,
        "wall_seconds": wall,
        "unaccounted_share": 1 - seconds / wall,
    }


def _speed(facts: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Samples and model FLOPs per second of all devices together, and the MFU of one device."""
    seconds = sum(training_seconds(line) for line in steps)
    samples = len(steps) * facts["samples_per_step"]
    speed: dict[str, Any] = {"samples_per_second": samples / seconds}
    flops = facts.get("flops") or {}
    if "forward" not in flops:
        return speed | flops
    passes = sum(line.get("recycles", 1.0) - 1 for line in steps)
    # FLOPs of a rank's batch, all its samples; every rank does as much, or `axial` ranks share it.
    per_batch = passes * flops["forward"] + len(steps) * flops["forward_backward"]
    per_rank = facts["config"]["accumulate"] * per_batch / facts["config"].get("axial", 1)
    peak = peak_flops(str(facts["device"]), facts["config"]["precision"])
    return speed | {
        "flops_per_second": per_rank * facts["world_size"] / seconds,
        "flops_per_step_and_rank": per_rank / len(steps),
        "mfu": per_rank / seconds / peak if peak else None,
        "peak_flops_per_device": peak,
        "counted": "matrix products of the model, no recomputation",
    }


def _losses(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values = [line["loss"] for line in steps if line.get("loss") is not None]
    tenth = max(1, len(values) // 10)
    if not values:
        return {}
    return {
        "first_tenth_mean": float(np.mean(values[:tenth])),
        "last_tenth_mean": float(np.mean(values[-tenth:])),
        "last": values[-1],
    }


def write_report(folder: Path) -> dict[str, Any]:
    """Makes the report of a run and writes it into its folder as JSON; returns it."""
    report = make_report(folder)
    write_atomic(folder / REPORT, json.dumps(report, indent=1))
    return report


def report_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of the report as label and text."""
    figures, speed, breakdown = report["figures"], report["speed"], report["breakdown"]
    step = figures["step_seconds"]
    starts = figures["epoch_start_wait_seconds"]
    no_share = "no GPU" if report["run"]["device"] == "CPU" else "no step was profiled"
    no_mfu = "peak of this device unknown" if "mfu" in speed else "not counted"
    rows = [
        ("device", f"{report['run']['world_size']} x {report['run']['device']}"),
        ("GPU busy share", _percent(figures["gpu_busy_share"], no_share)),
        ("epoch time", _seconds(figures["epoch_seconds"])),
        ("step time mean", f"{_seconds(step['mean'])} over {step['counted_steps']} steps"),
        ("step time p50 / p99", f"{_seconds(step['p50'])} / {_seconds(step['p99'])}"),
        ("start to first batch", _seconds(figures["first_batch_seconds"])),
        ("wait at an epoch start", _seconds(max(starts)) + " at most" if starts else "one epoch"),
        ("iterations", _iterations(figures)),
        *([("stopped by", early)] if (early := _early_end(report["run"])) else []),
        ("total", _seconds(figures["total_seconds"])),
        ("samples per second", f"{speed['samples_per_second']:.3g}"),
        ("model FLOP/s", f"{speed['flops_per_second']:.3g}" if "mfu" in speed else "not counted"),
        ("MFU", _percent(speed.get("mfu"), no_mfu)),
        ("data wait p50 / p99", " / ".join(
            _seconds(report["data_wait"][name]) for name in ("p50_seconds", "p99_seconds")
        )),
    ]  # fmt: skip
    if report["loss"]:
        means = report["loss"]["first_tenth_mean"], report["loss"]["last_tenth_mean"]
        rows.append(("loss", "{:.4g} over the first tenth, {:.4g} over the last".format(*means)))
    if report["validation"]:
        last = report["validation"][-1]
        text = ", ".join(
            f"{name} not finite" if value is None else f"{name} {value:.3g}"
            for name, value in last.items()
            if name != "step"
        )
        rows.append(("validation", f"{text} after {last['step']} steps"))
    waits = [_seconds(parts.get("data_wait", 0.0)) for parts in report["parts_by_rank"]]
    if len(waits) > 1:
        rows.append(("data wait of each rank", ", ".join(waits)))
    if report["peak_memory_by_rank"]:
        peak = max(report["peak_memory_by_rank"]) / 2**30
        rows.append(("peak memory of a rank", f"{peak:.2f} GiB"))
    for part, share in breakdown["share"].items():
        rows.append((f"  {part}", f"{share:7.2%}  {_seconds(breakdown['seconds'][part])}"))
    rows.append(("  not accounted for", f"{breakdown['unaccounted_share']:7.2%}"))
    for group, entry in report["operators"].get("groups", {}).items():
        text = f"{entry['share']:7.2%}  {_seconds(entry['seconds_per_step'])} a step"
        rows.append((f"  {group} operators", text))
    return rows


def _iterations(figures: Mapping[str, Any]) -> str:
    text = f"{figures['iterations']}, {len(figures['skipped_steps'])} skipped"
    overflows = len(figures.get("overflows", []))
    return f"{text}, {overflows} overflowed in float16" if overflows else text


def _early_end(run: Mapping[str, Any]) -> str:
    """The reason for fewer iterations than configured; empty if the run is complete."""
    reason = run["stopped_by"]
    return f"{reason}, of {run['config']['steps']} steps; --resume continues" if reason else ""


def _seconds(value: float | None) -> str:
    if value is None:
        return "unknown"
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def _percent(value: float | None, absent: str) -> str:
    return absent if value is None else f"{value:.1%}"
