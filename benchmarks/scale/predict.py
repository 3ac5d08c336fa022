"""What the simulator says of runs that were measured, and of AF2's whole schedule.

python benchmarks/scale/predict.py --out benchmarks/results/scale.json
python benchmarks/scale/page.py > docs/scale.md
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
from benchmarks.claims.results import age
from benchmarks.scale import costs
from benchmarks.scale.costs import Loader, Stage, mean_gradient
from benchmarks.scale.simulator import RECYCLES, training, window

Row = dict[str, Any]
INITIAL, FINETUNING = 10_000_000, 1_500_000  # samples, AF2 SI table 4
SERVICE_CORES = 16  # of the services that the whole schedule reads from
CARDS = (128, 256, 512, 2080)
CHAINS = (500_000, 10_000_000, 200_000_000)


def measured_runs() -> list[Row]:
    """Each measured run beside its prediction; `fitted` says which input was taken from it."""
    initial, loader = costs.stage("initial_training", INITIAL), costs.loader()
    rows = []

    def row(what: str, source: str, measured: float, predicted: float, fitted: str = "") -> None:
        error = predicted / measured - 1
        rows.append(
            {
                "run": what, "source": source, "measured_ms": round(measured * 1e3, 2),
                "predicted_ms": round(predicted * 1e3, 2), "error": round(error, 4),
                "fitted": fitted,
            }
        )  # fmt: skip

    def simulated(stage: Stage, cards: int, recycles: tuple[int, ...], with_: Loader) -> float:
        return window(
            stage, with_, groups=cards, mean_gradient=mean_gradient(cards), recycles=recycles
        ).step

    rung = costs.result("ladder_h200")["recorded"][-1]["step_ms"]["median"]
    (one, *_) = costs.result("trainer_batches_h200")["cells"]
    row(
        "`evofeed train` on 1 H200, no recycling", "trainer_batches_h200",
        one["step_ms"]["median"] / 1e3, simulated(costs.taking(initial, rung), 1, (0,), loader),
    )  # fmt: skip
    then = costs.result("reported_h100")["step_ms"]["1 H200, the same kernels"]
    for cards in (1, 2):
        name = f"trainer_h200.initial_training.bf16_fused_graph.x{cards}.r0"
        found = costs.result(name)
        older, mean = age(found["run"]["date"]), found["figures"]["step_seconds"]["mean"]
        what = f"`evofeed train` on {cards} H200{'s' * (cards > 1)}{older or ', 24 chains'}"
        stage = costs.taking(initial, then) if older else initial
        row(what, name, mean, simulated(stage, cards, (0,), loader))
    found = costs.result("bench_comm_h200_x2")
    recycles = tuple(found["recycles"])
    stage = costs.taking(initial, found["train_step_ms"])
    for cards, case in ((1, "alone"), (2, "unthrottled")):
        row(
            f"steps of {cards} H200{'s' * (cards > 1)} on real chains held ready, "
            f"{', '.join(map(str, recycles))} recycles, earlier kernels",
            "bench_comm_h200_x2", found[case]["step_ms"] / 1e3,
            simulated(stage, cards, recycles, loader),
        )  # fmt: skip
    name = "trainer_h200.initial_training.bf16_fused_graph.x4.r0"
    found = costs.result(name)
    lines = found["steps_seconds"][8:]
    own = [sum(line["seconds"][p] for p in ("forward", "backward", "optimizer")) for line in lines]
    earlier = replace(initial, step=sum(own) / len(own))
    row(
        "`evofeed train` on 4 H200s, no recycling, earlier kernels", name,
        found["figures"]["step_seconds"]["mean"], simulated(earlier, 4, (0,), loader),
        "the first rank's forward, backward and update are this run's own",
    )  # fmt: skip
    reported = costs.result("reported_h100")["step_ms"]
    h100 = costs.taking(initial, reported["1 card"])
    one = "the one-card step is the same report's"
    row(
        "`evofeed train` on 4 H100s, no recycling", "reported_h100", reported["4 cards"] / 1e3,
        simulated(h100, 4, (0,), loader), one,
    )  # fmt: skip
    row(
        "`evofeed train` on an H100, 0 to 3 recycles", "reported_h100",
        reported["recycling 0 to 3"] / 1e3, simulated(h100, 1, RECYCLES, loader), one,
    )  # fmt: skip
    ranks = costs.result("loader_ranks_two_h200")
    slow = replace(loader, slow_share=0.05, slow_seconds=0.05)
    for ms in (50, 250):
        part = ranks[f"step_{ms}_ms"]
        alone = max(part["step_ms_median_with_one_batch"]) / 1e3
        busy = Stage(step=alone, recycle=0, jitter=0, samples=0, speedups={}, measured=())
        # Its consumer waits for the sample inside the step that is timed.
        predicted = window(busy, slow, groups=2, mean_gradient=0.0, recycles=(0,)).step
        row(
            f"the loader on 2 H200s, steps of {ms} ms, 1 read in 20 waits 50 ms",
            "loader_ranks_two_h200", max(part["step_ms_median"]) / 1e3, predicted,
            "the step with one batch again and again is this run's own",
        )  # fmt: skip
    return rows


def speedups() -> Row:
    """By cards a sample, and which of them were measured."""
    stages = {"initial": "initial_training", "finetuning": "finetuning"}
    known = {name: costs.axial_times(preset) for name, preset in stages.items()}
    return {
        name: {
            "by_cards": {str(n): gain for n, gain in costs.extrapolated(one).items()},
            "measured": sorted(one),
        }
        for name, one in known.items()
    }


def schedule() -> list[Row]:
    """Days and GPU-hours of initial training and finetuning."""
    rows = []
    initial = costs.on_h100(costs.stage("initial_training", INITIAL))
    tuning = costs.on_h100(costs.stage("finetuning", FINETUNING))
    for cards in CARDS:
        for axial in (1, 2, 4, 8, 16):
            groups = cards // axial
            if axial > 1 and groups not in (128, 130, 256, 260, 512):
                continue
            groups = min(groups, 2048 // axial) if cards == 2080 else groups
            rows.append(whole(initial, tuning, groups, axial, cards))
    return rows


def whole(initial: Stage, tuning: Stage, groups: int, axial: int, cards: int) -> Row:
    """Both stages on so many groups of cards; the batch is the number of groups."""
    gradient = mean_gradient(groups * axial)
    row: Row = {"cards": cards, "used": groups * axial, "axial": axial, "batch": groups}
    hours = lost = 0.0
    failures = 0
    fits = tuning if axial > 1 else costs.recomputing(tuning)  # 70 GiB at two cards a sample
    for name, stage in (("initial", initial), ("finetuning", fits)):
        found = window(
            stage.shared(axial), costs.loader(), groups=groups, mean_gradient=gradient,
            storage=costs.storage(SERVICE_CORES), steps=40,
        )  # fmt: skip
        steps = -(-stage.samples // groups)
        done = training(found.step, steps, groups * axial)
        hours, lost, failures = hours + done.hours, lost + done.lost_hours, failures + done.failures
        row |= {
            f"{name}_step_ms": round(found.step * 1e3, 1), f"{name}_hours": round(done.hours, 2),
            f"{name}_wait": round(found.waited, 4),
            f"{name}_storage_busy": round(found.storage_busy, 3),
            f"{name}_gradient_share": round(gradient / found.step, 4),
            f"{name}_samples_a_second": round(groups / found.step, 1),
            f"{name}_two_cores_busy": round(
                groups / found.step * costs.storage().seconds_a_read / 2, 3
            ),
        }  # fmt: skip
    return row | {
        "days": round(hours / 24, 3), "gpu_hours": round(hours * cards), "failures": failures,
        "lost_hours": round(lost, 2),
        "speedups_measured": axial == 1 or axial in initial.measured,
    }  # fmt: skip


def wires() -> list[Row]:
    """What the gradient's average costs over slower networks, and as a share of a step."""
    stage = costs.on_h100(costs.stage("initial_training", INITIAL))
    mean = stage.step + 1.5 * stage.recycle
    return [
        {
            "network": name, "cards": cards,
            "share": round((t := mean_gradient(cards, wire)) / (mean + t), 4),
            "ms": round(t * 1e3, 1),
        }
        for name, wire in (
            ("400 Gb/s a card", costs.ASSUMED["network_bytes_per_second_a_card"]),
            ("100 Gb/s a host", 12.5e9 * 0.7 / 8),
            ("25 Gb/s a host", 3.125e9 * 0.7 / 8),
        )
        for cards in (128, 2048)
    ]  # fmt: skip


def chains() -> list[Row]:
    """A job, a dataset and its index at each number of chains."""
    large = costs.result("ten_million")
    index, driver = large["index"], large["driver"]
    store, job = costs.result("store"), costs.result("job")["ways"]
    stored = (
        store["ratio"]["evofeed"] * store["workload"]["raw_nbytes"] / store["workload"]["chains"]
    )
    cpu = job["local, 1 worker"]["cpu_ms_a_further_chain"] / 1e3
    a_unit = driver["chains"] / driver["units"]
    return [
        {
            "chains": n,
            "stored_tb": round(n * stored / 1e12, 2),
            "featurize_core_hours": round(n * cpu / 3600, 1),
            "plan_cpu_hours": round(n * driver["plan_cpu_us_a_chain"] / 1e6 / 3600, 2),
            "driver_gb": round(n * driver["peak_bytes_a_chain"] / 1e9, 1),
            "settle_cpu_hours": round(n / a_unit * driver["settle_cpu_ms_a_unit"] / 1e3 / 3600, 2),
            "cores_one_driver_feeds": round(cpu * a_unit / driver["settle_cpu_ms_a_unit"] * 1e3),
            "index_gb": round(n * index["nbytes"] / index["rows"] / 1e9, 2),
            "count_seconds": round(n * index["exact_count"]["best_ms"] / index["rows"] / 1e3, 1),
            "epoch_plan_seconds": round(
                n * index["plan_of_a_rank_of_2048"]["best_ms"] / index["rows"] / 1e3, 1
            ),
        }
        for n in CHAINS
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found: Row = {
        "command": "python benchmarks/scale/predict.py",
        "assumed": costs.ASSUMED,
        "service_cores": SERVICE_CORES,
        "bytes_a_sample": costs.SAMPLE_BYTES,
        "speedups": speedups(),
        "mean_gradient_ms": {str(n): round(mean_gradient(n) * 1e3, 3) for n in (2, 4, 8, *CARDS)},
        "service_reads_a_second": costs.result("service_ratios")["per_second"]["shard_350_KiB"][
            "median"
        ],
        "predictions": measured_runs(),
        "schedule": schedule(),
        "wires": wires(),
        "chains": chains(),
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
