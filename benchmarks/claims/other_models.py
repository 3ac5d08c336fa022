"""AF3-class models: OpenFold3's pair block, and the projects' own trunks."""

from __future__ import annotations

from typing import Any

from benchmarks.af3_tables import trained
from benchmarks.claims.results import Row, result

PROJECTS = {"openfold3": "OpenFold3", "boltz2": "Boltz-2", "protenix": "Protenix"}


def other_models() -> list[Row]:
    """AF3-class models: OpenFold3's pair block, and the projects' own trunks."""
    name = "af3_pair_blocks_h200"
    blocks: dict[str, dict[int, float]] = {}
    for row in result(name)["rows"]:
        if row["part"] == "block":
            blocks.setdefault(row["how"], {})[row["size"]] = row["both_ms"][0]
    sizes = sorted(blocks["fused"])
    ms = {how: " / ".join(f"{of[n]:.1f}" for n in sizes) for how, of in blocks.items()}
    return [
        (
            f"OpenFold3's pair block, forward and backward, {' / '.join(map(str, sizes))} residues",
            f"{ms['fused']} ms",
            f"cuEquivariance {ms['cuequivariance']}, torch.compile {ms['compiled']}, same run",
            name,
        ),
        bfloat16_parameters(),
        *trunks(),
        inference_of_trunks(1024),
        inference_of_trunks(2048),
        *whole_steps(),
        *whole_predictions(),
        entries(),
        waits(),
    ]


def bfloat16_parameters() -> Row:
    """Where cuEquivariance has its newest kernels."""
    name = "af3_pair_bf16_h200"
    ms = {
        (row["how"], row["part"], row["channels"], row["size"]): row["both_ms"][0]
        for row in result(name)["rows"]
    }
    cases = [("block", 128, 384), ("attention", 128, 384)]
    cases += [("multiplication", 128, 384), ("multiplication", 128, 768)]
    ours, theirs = (
        " / ".join(f"{ms[how, *case]:.2f}" for case in cases)
        for how in ("fused_bf16", "cuequivariance_bf16")
    )
    return (
        "... parameters in bfloat16: block, triangle attention and multiplication of 384 residues, "
        "multiplication of 768",
        f"{ours} ms",
        f"cuEquivariance {theirs}, same run",
        name,
    )


def waits() -> Row:
    """What a step waits for its batch of entries."""
    views = result("allatom_gpu")["views"]
    typical, slow, device = (
        " / ".join(f"{number:.{digits}f}" for number in numbers)
        for numbers, digits in (
            ([views[one]["wait_ms"]["p50"] for one in views], 2),
            ([views[one]["wait_ms"]["p99"] for one in views], 2),
            ([views[one]["idle_device_ms"][0] for one in views], 1),
        )
    )
    return (
        "... wait for a batch behind a step of 384 ms: Boltz, OpenFold3, Protenix",
        f"{typical} ms, {slow} in one of a hundred; features on the GPU {device} ms",
        "",
        "allatom_gpu",
    )


def entries() -> Row:
    """A sample of a whole entry, read from the store and decided."""
    names = ("openfold3", "boltz", "protenix")
    ran = [result("allatom_store")[name] for name in names]
    median, most = (
        " / ".join(f"{one[key]:.0f}" for one in ran) for key in ("cpu_ms_median", "cpu_ms_most")
    )
    nbytes = max(one["nbytes_most"] for one in ran)
    return (
        "a sample of a whole entry from the store, CPU of the reader: OpenFold3, Boltz, Protenix",
        f"{median} ms, {nbytes / 1e6:.2f} MB to the device at most; of 32,781 atoms {most} ms",
        "",
        "allatom_store",
    )


def trunks() -> list[Row]:
    """A training step of each trunk."""
    return [
        (
            f"{PROJECTS[project]}'s own trunk at a crop of 384, random weights, a training step",
            f"{ways['fused']['step_ms'][0]:.0f} ms, {ways['fused']['peak_mb'] / 1e3:.0f} GB "
            "after `to_fused`, activations kept",
            f"{ways['eager']['step_ms'][0]:,.0f} ms, {ways['eager']['peak_mb'] / 1e3:.0f} GB "
            "before, recomputing activations, same card",
            "af3_trunks_h200",
        )
        for project, ways in trained().items()
    ]


def whole_steps() -> list[Row]:
    """A whole training step: the project's own code, model, losses; our data."""
    name = "af3_step_h200"
    rows = {
        (row["call"], row["project"], row["how"].split()[0], row["tokens"], row.get("ranks")): row
        for row in result(name)["rows"]
        if row["how"] != "recorded all"
    }

    def seconds(*steps: dict[str, Any]) -> str:
        return " / ".join(f"{step['step_ms'][0] / 1e3:.1f}" for step in steps)

    titles = {"openfold3": "OpenFold3", "boltz": "Boltz-1", "protenix": "Protenix"}
    now = {
        how: [rows["now", project, how, 384, 1] for project in titles]
        for how in ("recorded", "cuequivariance")
    }
    memory = " / ".join(f"{step['peak_gb']:.0f}" for step in now["recorded"])
    bf16 = [rows["bf16", project, "cuequivariance_bf16", 384, 1] for project in titles]
    wide = [rows["wide", project, "recorded", 768, 1] for project in titles]
    gb = " / ".join(f"{step['peak_gb']:.0f}" for step in wide)
    one, two = (rows["two", "boltz", "recorded", 384, n]["samples_per_second"] for n in (1, 2))
    return [
        (
            f"whole steps at a crop of 384, own code and losses on our batches: "
            f"{', '.join(titles.values())}",
            f'{seconds(*now["recorded"])} s, {memory} GB: `cuda_graphs=True, keep="blocks"`, '
            "`FlatOptimizer`",
            f"{seconds(*now['cuequivariance'])} s with cuEquivariance 0.13 and their own "
            "optimizers (Boltz-1's in float32, as it trains), same card; "
            f"{seconds(*bf16)} s with bf16 parameters, another card",
            name,
        ),
        (
            f"... at 768 tokens: {', '.join(titles.values())}",
            f"{seconds(*wide)} s, {gb} GB",
            "",
            name,
        ),
        (
            "... Boltz-1 on two cards",
            f"{two:.2f} samples a second",
            f"{one:.2f} on one of them: {two / one / 2:.0%}",
            name,
        ),
    ]


def whole_predictions() -> list[Row]:
    """A prediction with sampling and confidence, denoising steps recorded whole."""
    name = "af3_predict_h200"
    titles = {"openfold3": "OpenFold3", "boltz": "Boltz-1", "protenix": "Protenix"}
    seconds: dict[tuple[int, str], dict[str, str]] = {}
    for run in result(name)["runs"]:
        if run["call"] in ("whole steps recorded", "constants kept", "one card"):
            for row in run["rows"]:
                ways = seconds.setdefault((row["tokens"], row["how"]), {})
                ways[run["project"]] = f"{row['total_s'][0]:.1f}"

    def row_of(tokens: int, what: str, beside: str) -> Row:
        ours, theirs = (seconds[tokens, how] for how in ("recorded", "cuequivariance"))
        known = [project for project in titles if project in ours and project in theirs]
        return (
            f"{what}: {', '.join(titles[project] for project in known)}",
            f"{' / '.join(ours[project] for project in known)} s by `cuda_graphs=True`",
            f"cuEquivariance {' / '.join(theirs[project] for project in known)}, {beside}",
            name,
        )

    return [
        row_of(
            1024,
            "whole predictions of 1,024 tokens, 200 denoising steps",
            "OpenFold3's on the same card",
        ),
        row_of(2048, "... 2,048 tokens, no recycles, 50 steps", "same card"),
    ]


def inference_of_trunks(length: int) -> Row:
    """A forward pass."""
    name = "af3_infer_h200"
    rows = [row for run in result(name)["runs"] for row in run["rows"] if row["length"] == length]
    seconds = {
        how: " / ".join(f"{r['step_ms'][0] / 1e3:.2f}" for r in rows if r["how"] == how)
        for how in ("fused", "cuequivariance")
    }
    projects = dict.fromkeys(PROJECTS[row["project"]] for row in rows)
    return (
        f"... in inference, {length:,} residues: {', '.join(projects)}",
        f"{seconds['fused']} s",
        f"cuEquivariance {seconds['cuequivariance']}, same run",
        name,
    )
