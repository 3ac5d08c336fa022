"""What a training run is made of, in seconds and bytes, read from benchmarks/results."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

SAMPLE_BYTES = 0.7e6  # of a sample of initial training, compressed
RESULTS = Path(__file__).resolve().parent.parent / "results"
ASSUMED = {
    "hours_a_card_between_failures": 50_000.0,  # Meta's Llama 3 report: 419 in 54 days of 16,384
    "seconds_until_restarted": 300.0,  # noticed, queued again, processes started
    "checkpoint_stall_seconds": 0.3,  # 1.5 GB to the host; the write itself is in the background
    "network_bytes_per_second_a_card": 50e9 * 0.7,  # 400 Gb/s each, 70 % of it
    "network_latency_seconds": 20e-6,
    "cards_a_host": 8,
}
"""Not measured by us: each is a line of docs/scale.md."""


@cache
def result(name: str) -> Any:
    """A file of results/."""
    return json.loads((RESULTS / f"{name}.json").read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One of AF2's two trainings on one kind of card.

    Attributes:
        step: seconds of a step without recycling.
        recycle: seconds of a further pass.
        jitter: standard deviation of a step over its mean.
        samples: of the whole stage.
        speedups: by cards that share a sample.
        measured: which of those were measured.
    """

    step: float
    recycle: float
    jitter: float
    samples: int
    speedups: dict[int, float]
    measured: tuple[int, ...]

    def shared(self, axial: int) -> Stage:
        """The stage with so many cards a sample."""
        gain = self.speedups[axial]
        return replace(self, step=self.step / gain, recycle=self.recycle / gain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """What a rank reads ahead, and how long a sample takes from storage to the card."""

    ahead: int = 16
    threads: int = 4
    make: float
    handover: float
    slow_share: float = 0.0
    slow_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """What answers reads: so many at a time, each so long."""

    servers: int
    seconds_a_read: float


def case(name: str, how: str, recycles: int, kept: bool = True) -> float:
    """Seconds of a step of `train_step.py`."""
    (found,) = (
        case["step_ms"]["median"] / 1e3
        for case in result(name)["cases"]
        if case["how"] == how
        and case["recycles"] == recycles
        and case["checkpointing"] != kept
        and case["kernels"] == "fused"
    )
    return float(found)


def jitter() -> float:
    """Of a step on one card, from the run of one card."""
    steps = result("trainer_h200.initial_training.bf16_fused_graph.x1.r0")["steps_seconds"][8:]
    parts = ("forward", "backward", "optimizer", "other")
    times = [sum(line["seconds"].get(part, 0.0) for part in parts) for line in steps]
    return statistics.pstdev(times) / statistics.fmean(times)


def axial_times(preset: str) -> dict[int, float]:
    """Measured speed of so many cards a sample over one, of the newest file that has it."""
    found: dict[int, tuple[str, float]] = {}
    for path in sorted(RESULTS.glob("axial*.json")):
        for line in result(path.stem).get("found", []):
            if line.get("part") == "speed" and line["preset"] == preset:
                date = (result(path.stem)["machine"]["date"], line["against_one"])
                found[line["axial"]] = max(found.get(line["axial"], date), date)
    return {axial: gain for axial, (_, gain) in found.items()}


def extrapolated(known: dict[int, float]) -> dict[int, float]:
    """Speeds up to 16 cards a sample: a part that two share and a rest that stays (Amdahl).

    What was measured stays as it is. Exchanges are in the rest: they do not shrink much.
    """
    cards = max(known)
    shared = (1 - 1 / known[cards]) / (1 - 1 / cards)
    return {n: known.get(n, 1 / (1 - shared + shared / n)) for n in (1, 2, 4, 8, 16)}


def stage(preset: str, samples: int) -> Stage:
    """A stage on an H200, its activations kept."""
    name = "train_step_h200_" + ("finetuning" if preset == "finetuning" else "recorded")
    once = case(name, "graph", 0)
    known = axial_times(preset)
    return Stage(
        step=once,
        recycle=(case(name, "graph", 3) - once) / 3,
        jitter=jitter(),
        samples=samples,
        speedups=extrapolated(known),
        measured=tuple(sorted(known)),
    )


def on_h100(stage: Stage) -> Stage:
    """The stage on an H100: slower by what was reported of initial training on one card."""
    found = result("reported_h100")["step_ms"]
    return slowed(stage, found["1 card"] / found["1 H200, the same kernels"])


def taking(stage: Stage, step_ms: float) -> Stage:
    """The stage with other kernels or on another card, further passes in proportion."""
    return slowed(stage, step_ms / 1e3 / stage.step)


def slowed(stage: Stage, by: float) -> Stage:
    """The stage, so many times slower."""
    return replace(stage, step=stage.step * by, recycle=stage.recycle * by)


def recomputing(stage: Stage) -> Stage:
    """Finetuning where a card of 80 GB cannot keep the activations of 119 GiB."""
    kept, again = (
        case("train_step_h200_finetuning", "graph", 0),
        case("train_step_h200_finetuning", "eager", 0, kept=False),
    )
    return replace(stage, step=stage.step * again / kept)


def loader() -> Loader:
    """As measured beside a 50 ms step."""
    found = result("loader_h200")["presets"]["initial_training"]["step_50_ms"]
    return Loader(
        make=found["make_host_ms"]["p50_ms"] / 1e3, handover=found["data_wait_ms"]["p50"] / 1e3
    )


def storage(cores: int = 2) -> Storage:
    """A service of so many cores; two gave what was measured with ranges of 350 KiB.

    A sample of `SAMPLE_BYTES` is one range, taken for two of those.
    """
    per_second = result("service_ratios")["per_second"]["shard_350_KiB"]["median"]
    return Storage(servers=cores, seconds_a_read=2 * 2 / per_second)


def mean_gradient(cards: int, wire: float = ASSUMED["network_bytes_per_second_a_card"]) -> float:
    """Seconds of the gradient's all-reduce: measured on 2 and 4 cards, beyond that a model.

    Inside a host the four cards' bandwidth; between hosts a ring of hosts, each card with its
    own part and its own port.
    """
    found = result("collectives_h200")
    nbytes, host = found["bytes"], int(ASSUMED["cards_a_host"])
    if cards == 1:
        return 0.0
    if str(cards) in found["all_reduce_ms"]:
        return float(found["all_reduce_ms"][str(cards)]) / 1e3
    inside = min(cards, host)
    speed = 2 * 3 / 4 * nbytes / (found["all_reduce_ms"]["4"] / 1e3)
    seconds = 2 * (inside - 1) / inside * nbytes / speed
    hosts = -(-cards // host)
    if hosts > 1:
        seconds += 2 * (hosts - 1) / hosts * nbytes / (wire * inside)
        seconds += 2 * hosts.bit_length() * ASSUMED["network_latency_seconds"]
    return seconds
