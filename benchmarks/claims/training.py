"""Whole training steps and long chains, beside OpenFold's."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.claims.results import EARLIER, Row, age, recorded_step, result


def step_ms(name: str, how: str, recycles: int, recomputed: bool = False) -> str:
    """Median of a training step."""
    ms = [
        case["step_ms"]["median"]
        for case in result(name)["cases"]
        if (case["how"], case["recycles"], case["checkpointing"]) == (how, recycles, recomputed)
        and case["precision"].startswith("bf16")
    ]
    assert len(ms) == 1, f"{name}: {len(ms)} cases are {how}, {recycles}, {recomputed}"
    return f"{ms[0]:.0f} ms" if ms[0] < 1000 and how == "graph" else f"{ms[0] / 1e3:.2f} s"


def training() -> list[Row]:
    """Whole steps."""
    plain, peer = "train_step_h200_plain", "openfold_step_h200"
    now, recorded = "ablation_h200", "train_step_h200_recorded"
    step, tuned = (recorded_step(name)["median_ms"] for name in ("initial_training", "finetuning"))
    eager = "train_step_h200_eager"
    then = age(result(recorded)["machine"]["date"])
    tuning, plain_tuning, peer_tuning = (
        "train_step_h200_finetuning",
        "train_step_h200_finetuning_plain",
        "openfold_step_h200_finetuning",
    )
    ds4sci = step_ms(peer_tuning, "eager, DS4Sci attention", 0, True)
    return [
        (
            "full training step, no recycling",
            f"{step:.0f} ms (fused, CUDA graph), "
            f"{step_ms(eager, 'eager', 0)} (fused, eager), {step_ms(plain, 'eager', 0)} (plain)",
            f"OpenFold {step_ms(peer, 'eager', 0)}, compiled blocks "
            f"{step_ms(peer, 'compiled', 0)} ({EARLIER})",
            f"{now} {eager} {plain} {peer}",
        ),
        (
            f"... three recycles{then}",
            f"{step_ms(recorded, 'graph', 3)}, {step_ms(plain, 'eager', 3)} (plain)",
            f"OpenFold {step_ms(peer, 'eager', 3, True)}, compiled blocks "
            f"{step_ms(peer, 'compiled', 3, True)}, both recomputing activations ({EARLIER})",
            f"{recorded} {plain} {peer}",
        ),
        (
            "... finetuning shapes, no recycling",
            f"{tuned:.0f} ms, {step_ms(tuning, 'eager', 0, True)} "
            f"recomputing activations{age(result(tuning)['machine']['date'])}, "
            f"{step_ms(plain_tuning, 'eager', 0, True)} (plain)",
            f"OpenFold {step_ms(peer_tuning, 'eager', 0, True)}, {ds4sci} with DS4Sci attention, "
            f"recomputing ({EARLIER})",
            f"{now} {tuning} {plain_tuning} {peer_tuning}",
        ),
        *(real_runs(ranks) for ranks in (1, 2, 4)),
        *averages(),
        *pieces(),
    ]


def real_runs(ranks: int) -> Row:
    """The whole step with real loaders, gradients averaged."""
    name = f"trainer_h200.initial_training.bf16_fused_graph.x{ranks}.r0"
    found = result(name)
    return (
        f"... no recycling, `evofeed train` on {ranks} GPU{'s' if ranks > 1 else ''}"
        f"{age(found['run']['date'])}",
        f"{found['figures']['step_seconds']['mean'] * 1e3:.0f} ms a step, "
        f"{found['speed']['samples_per_second']:.1f} samples/s",
        "",
        name,
    )


def averages() -> list[Row]:
    """What the gradient's average adds to a step, by itself and in every mode over a slow link."""
    name = "bench_comm_h200_x2"
    found = result(name)
    own, modes = found["unthrottled"], found["modes"]
    squeezed = ("bf16", "int8", "powersgd", "topk")
    usual, slowed = result("slowed_card_h200_x2")["found"]
    return [
        (
            f"... what averaging adds on {found['ranks']} GPUs, real chains, 0 to 3 recycles",
            f"{own['exposed_ms']:.2f} ms of {own['step_ms']:.1f} ({own['exposed_share']:.2%}), "
            f"{own['linear_scaling']:.1%} of linear scaling",
            "",
            name,
        ),
        (
            f"... as two hosts over {found['link_gbit']:.0f} Gbit/s, pretended by waiting",
            ", ".join(f"{mode} {modes[mode]['step_ms']:.0f}" for mode in squeezed) + " ms",
            f"uncompressed {modes['none']['step_ms']:.0f} ms, same run",
            name,
        ),
        (
            f"... with one of 2 GPUs slower by {slowed['slowed_by_ms']:.1f} ms",
            f"{slowed['step_ms']['median']:.1f} ms: {slowed['lost']:.2f} of what it loses",
            f"both as fast {usual['step_ms']['median']:.1f} ms, same run",
            "slowed_card_h200_x2",
        ),
    ]


def pieces() -> list[Row]:
    """The step in another precision, piece by piece, and that of complexes."""
    cells = {cell["cell"]: cell for cell in result("trainer_cells_h200")["cells"]}
    ms, memory = (
        {name: cell[key] for name, cell in cells.items()} for key in ("step_ms", "peak_gib")
    )
    ladder = result("ladder_h200")
    climbed, first = (
        ", ".join(f"{r['name']} {r['step_ms']['median']:.0f}" for r in rows)
        for rows in (ladder["recorded"][1:], ladder.get("eager", []))
    )
    batches = {cell["samples_a_step"]: cell for cell in result("trainer_batches_h200")["cells"]}
    of_complexes = result("complexes_step_h200")["step"]
    waits = sorted(of_complexes["data_wait_ms"][2:])
    return [
        (
            "... `precision: fp16`, earlier kernels",
            f"{ms['fp16:fused']['median']:.1f} ms, {memory['fp16:fused']:.1f} GiB",
            f"bf16 {ms['bf16:fused']['median']:.1f} ms, {memory['bf16:fused']:.1f} GiB, same run",
            "trainer_cells_h200",
        ),
        *(
            (
                f"... {n} samples a card at once, `evofeed train`"
                + (", recomputing activations" if ":ckpt" in batches[n]["cell"] else ""),
                f"{batches[n]['samples_per_second']:.2f} samples/s, "
                f"{batches[n]['peak_gib']:.0f} GiB",
                f"one at a time {batches[1]['samples_per_second']:.2f}, "
                f"{batches[1]['peak_gib']:.0f} GiB, same run",
                "trainer_batches_h200",
            )
            for n in sorted(batches)
            if n > 1
        ),
        (
            "... piece by piece, activations kept, in CUDA graphs",
            f"{climbed} ms",
            f"plain PyTorch in a CUDA graph {ladder['recorded'][0]['step_ms']['median']:.0f} ms"
            + (f" ({first} ms eager)" if first else "")
            + ", same run",
            "ladder_h200",
        ),
        (
            "step of a complex (crop 640, 508 + 2,048 rows), recomputing, behind the loader",
            f"{of_complexes['step_ms']['median'] / 1e3:.2f} s, "
            f"{waits[len(waits) // 2]:.2f} ms of waiting for data",
            "",
            "complexes_step_h200",
        ),
        long_chains(),
        longest(),
        beside_openfold(),
        predictions(),
        tuned(),
    ]


def long_chains() -> Row:
    """The longest chain that was timed."""
    shared, alone = result("long_chains_h200_x2")["runs"]
    (row,) = shared["rows"]
    one = next(r for r in alone["rows"] if r["residues"] == row["residues"])
    before = next(r for r in result("long_chains_h200")["rows"] if r["residues"] == row["residues"])
    return (
        f"a pass over {row['residues']:,} residues with templates, {shared['cards']} GPUs",
        f"{row['seconds']:.1f} s, {row['peak_gib']:.1f} GiB a GPU ({one['peak_gib']:.1f} on one)",
        f"one GPU, before predictions were made in parts, {before['seconds']:.1f} s, "
        f"{before['peak_gib']:.0f} GiB ({EARLIER})",
        "long_chains_h200_x2 long_chains_h200",
    )


def longest() -> Row:
    """The longest chain that one GPU held."""
    name = "long_chains_longest_h200"
    row = max((row for run in result(name)["runs"] for row in run["rows"]), key=_residues)
    (block,) = row["block_seconds"]
    return (
        f"... over {row['residues']:,}, 1 of 48 blocks, 1 GPU",
        f"{row['seconds']:.1f} s, {row['peak_gib']:.1f} GiB; {row['whole_seconds']:.0f} s with all "
        f"blocks if each takes as long as that one, {block:.1f} s",
        "",
        name,
    )


def _residues(row: dict[str, Any]) -> int:
    return int(row["residues"])


def beside_openfold() -> Row:
    """A long chain beside OpenFold's settings for such, and its default ones."""
    name = "long_chains_openfold_h200"
    careful, ours, default = (run["rows"] for run in result(name)["runs"])
    residues = careful[0]["residues"]
    own = next(row for row in ours if row["residues"] == residues)
    tuned = [row for row in default if row["residues"] == residues][-1]  # its chunks are known
    return (
        f"... over {residues:,}, {own['evoformer_blocks']} of 48 blocks, 1 GPU",
        f"{own['seconds']:.2f} s, {own['peak_gib']:.1f} GiB (bf16)",
        f"OpenFold by default {tuned['seconds']:.1f} s, {tuned['peak_gib']:.1f} GiB, "
        f"in its settings for long chains {careful[0]['seconds']:.1f} s, "
        f"{careful[0]['peak_gib']:.1f} GiB (float32, other runs)",
        name,
    )


def predictions() -> Row:
    """The whole command, weights to files."""
    found = result("predict_h200")
    theirs, one = found["openfold"]["seconds"], found["openfold"]["2048_one_pass"]
    sizes = {f"{int(key):,}": found[key] for key in found if key.isdigit()}
    ours, beside = (
        " / ".join(f"{statistics.median(seconds):.0f}" for seconds in whose)
        for whose in (sizes.values(), theirs.values())
    )
    return (
        f"`evofeed predict`, weights to files, {found['rows']:,} rows, 3 recycles, "
        f"{' / '.join(sizes)} residues",
        f"{ours} s, 4 templates",
        f"OpenFold's command {beside} s at {' / '.join(theirs)}, no templates; 2,048 without "
        f"recycles {one['openfold_2048_s'][0]:.0f} beside ours {one['evofeed_2048_s'][-1]:.0f}, "
        "one machine",
        "predict_h200",
    )


def tuned() -> Row:
    """What `evofeed tune` chooses, beside the default and the best of every combination."""
    found = result("tune_h200")
    chosen, share = found["chosen"], statistics.median(found["ratios"])
    changed = {name: value for name, value in chosen.items() if value != found["default"][name]}
    return (
        f"`evofeed tune` of graphs, recomputing and batch, {found['evoformer_blocks']} of 48 "
        f"blocks, {found['accumulate']} samples a step",
        f"{share:.3f} of the default's time, by "
        + ", ".join(f"`{name}: {value}`" for name, value in changed.items()),
        f"the best of all {found['timed']} combinations is {found['regret']:.1%} faster",
        "tune_h200",
    )
