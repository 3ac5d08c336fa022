"""docs/scale.md, printed from benchmarks/results/scale.json.

python benchmarks/scale/page.py > docs/scale.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
from benchmarks.scale.unmeasured import unmeasured

RESULT = Path(__file__).resolve().parent.parent / "results" / "scale.json"
NEAR = 0.05


def table(head: str, rows: list[str]) -> list[str]:
    columns = head.count("|") - 1
    return [head, "|" + " --- |" * columns, *rows, ""]


def predictions(found: dict[str, Any]) -> list[str]:
    rows = [
        f"| {row['run']} | {row['measured_ms']:.1f} | {row['predicted_ms']:.1f} | "
        f"{row['error']:+.1%} | {row['fitted'] or 'nothing'} | "
        f"[json](../benchmarks/results/{row['source']}.json) |"
        for row in found["predictions"]
    ]
    return table("| run | measured, ms a step | predicted | error | fitted | from |", rows)


def schedule(found: dict[str, Any]) -> list[str]:
    rows = [
        f"| {row['cards']:,} | {row['axial']} | {row['batch']:,} | {row['initial_step_ms']:.0f} | "
        f"{row['finetuning_step_ms']:.0f} | {row['initial_hours']:.1f} + "
        f"{row['finetuning_hours']:.1f} | {row['days']:.2f} | {row['gpu_hours']:,} | "
        f"{'' if row['speedups_measured'] else 'extrapolated'} |"
        for row in found["schedule"]
    ]
    head = (
        "| cards | a sample | batch | initial, ms a step | finetuning, ms | hours | days | "
        "GPU-hours | speed-up |"
    )
    return table(head, rows)


def first_limits(found: dict[str, Any]) -> list[str]:
    each = found["bytes_a_sample"] / 1e9
    rows = [
        f"| {row['cards']:,} | {row['axial']} | {row['initial_samples_a_second']:,.0f} | "
        f"{row['initial_samples_a_second'] * each:.2f} | {row['initial_two_cores_busy']:.0%} | "
        f"{row['initial_wait']:.1%} | {row['initial_gradient_share']:.1%} |"
        for row in found["schedule"]
    ]
    head = (
        "| cards | a sample | samples/s | storage, GB/s | one service of two cores | "
        "wait for data | gradient's average |"
    )
    return table(head, rows)


def wires(found: dict[str, Any]) -> list[str]:
    rows = [
        f"| {row['network']} | {row['cards']:,} | {row['ms']:.1f} | {row['share']:.0%} |"
        for row in found["wires"]
    ]
    return table("| network | cards | gradient's average, ms | of a step |", rows)


def chains(found: dict[str, Any]) -> list[str]:
    rows = [
        f"| {row['chains']:,} | {row['stored_tb']:.1f} | {row['featurize_core_hours']:,.0f} | "
        f"{row['plan_cpu_hours']:.2f} | {row['driver_gb']:.1f} | {row['settle_cpu_hours']:.2f} | "
        f"{row['index_gb']:.1f} | {row['count_seconds']:.0f} | {row['epoch_plan_seconds']:.0f} |"
        for row in found["chains"]
    ]
    head = (
        "| chains | shards, TB | featurize, core-hours | driver: plan, CPU-hours | driver: GB | "
        "driver: settling, CPU-hours | index, GB | exact count, s | plan of an epoch, s |"
    )
    return table(head, rows)


def page(found: dict[str, Any]) -> str:
    """The whole document."""
    assumed = found["assumed"]
    own = [row for row in found["predictions"] if not row["fitted"]]
    worst = max(abs(row["error"]) for row in found["predictions"])
    measured = found["speedups"]["initial"]["measured"]
    gains = {name: found["speedups"][name]["by_cards"] for name in ("initial", "finetuning")}
    feeds = found["chains"][0]["cores_one_driver_feeds"]
    beyond = max(row["measured_ms"] - row["predicted_ms"] for row in own)
    most = max(row["initial_samples_a_second"] for row in found["schedule"])
    most *= found["bytes_a_sample"] / 1e9
    shares = sorted(row["initial_gradient_share"] for row in found["schedule"])
    shared = ", ".join(
        f"{cards}: {gains['initial'][str(cards)]:.2f} and {gains['finetuning'][str(cards)]:.2f}"
        for cards in measured
    )
    return "\n".join(
        [
            "# At scale, simulated",
            "",
            "Printed from [scale.json](../benchmarks/results/scale.json) by "
            "`python benchmarks/scale/page.py > docs/scale.md`. A discrete-event simulation "
            "(simpy, [benchmarks/scale](../benchmarks/scale)) of reads, samples made ahead, steps "
            "that end with the slowest rank, the gradient's average, checkpoints, failures and "
            "restarts. **Nobody has run the cards below**: what is measured is on one to four, and "
            "[not all of that](#never-run-on-these-gpus-and-how-to).",
            "",
            "## Does it predict what was measured?",
            "",
            *predictions(found),
            f"{len(own)} of the {len(found['predictions'])} have no input from the run that they "
            "predict: the step comes from `train_step.py` or `ladder.py`, the loader from "
            "`loader_gpu.py`, the average from a loop of collectives. "
            f"The largest error is {worst:.1%}; "
            f"within {NEAR:.0%} was wanted. What `evofeed train` takes beyond the sum of its "
            f"parts, {beyond:.1f} ms at most, is in no part. A job's run on two cores is not "
            "among them: others used those cores, and its repeats differ by more.",
            "",
            "## AF2's whole schedule on H100s",
            "",
            "10 million samples of initial training, 1.5 million of finetuning, recycling 0 to "
            "3. AF2's batch is 128: one card a sample beyond 128 cards changes the batch, and with "
            "it what is learnt; more cards a sample (`axial`) keep it. Finetuning on one card of "
            "80 GB recomputes activations. An H100's step is the H200's, slower by what was "
            "reported of initial training.",
            "",
            *schedule(found),
            f"Speed-up of initial training and finetuning by cards a sample: {shared} measured on "
            "H200s; more cards are extrapolated from that by Amdahl's law with all exchanges in "
            "the part that does not shrink.",
            "",
            "## What saturates first",
            "",
            *first_limits(found),
            "- **Service requests**, first of all: one service of two cores gives "
            f"{found['service_reads_a_second']:,.0f} ranges of 350 KiB a second, two of them a "
            "sample. The column says how busy it would be; above 100 % steps wait. The schedule "
            f"above reads from {found['service_cores']} cores. To change: let nginx serve "
            "links to shards (`EVOFEED_LINKS`), read from a mounted folder or S3, or give each "
            "host a cache: shards are immutable.",
            f"- **Storage bandwidth** does not: {most:.1f} GB/s at most are one or two NVMe "
            "disks, and far below any parallel file system.",
            "- **Cards a sample**: more than four waste GPU-hours; they only buy days.",
            f"- **Collectives** of data parallelism cost {shares[0]:.1%} to {shares[-1]:.1%} of a "
            "step of initial training on 400 Gb/s a card. On slower networks they come first:",
            "",
            *wires(found),
            "To change: `gradients: {mode: hierarchical}` and its compressed kin "
            "([training](training.md#slow-wires-between-hosts)).",
            "",
            "- **Failures** do not: a whole training takes hours, and a card fails once in "
            f"{assumed['hours_a_card_between_failures']:,.0f} hours (assumed).",
            "",
            "## 500,000 to 200 million chains",
            "",
            *chains(found),
            "Measured at ten million rows of an index and at some 300,000 chains of a job's driver "
            "([ten_million.json](../benchmarks/results/ten_million.json)), scaled in proportion; "
            "bytes and CPU of a chain from store.json and job.json, which are synthetic and small: "
            "real alignments may be five times that. Searching for them is not in it.",
            "",
            f"- **The driver feeds about {feeds} cores** with units of some 45 such chains; chains "
            "that take ten times as long to featurize, ten times as many. Its memory is a kilobyte "
            "a chain: beyond ten million chains cut the input into jobs, and `evofeed snapshots "
            "merge` their datasets.",
            "- **The index** is memory-mapped, so that opening it and one chain's row cost "
            "milliseconds at any size. An exact count of a filter and the plan of an epoch read "
            "every row: at 200 million they take minutes, which `epoch_len` does not shorten. To "
            "change: plan in pieces of an epoch, count by shards.",
            "",
            *unmeasured(),
            "## What was assumed",
            "",
            *(f"- `{name}`: {value:g}" for name, value in assumed.items()),
        ]
    )


if __name__ == "__main__":
    print(page(json.loads(RESULT.read_text())))
