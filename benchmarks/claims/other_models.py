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
        entries(),
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
    """A whole training step of OpenFold3: its own code, model, losses; our data."""
    name = "af3_step_h200"
    rows = {(row["call"], row["how"], row["tokens"]): row for row in result(name)["rows"]}
    ours, theirs = (rows["first", how, 384] for how in ("recorded blocks", "project"))
    later = [rows["second", "recorded blocks", tokens] for tokens in (384, 640, 768)]
    everything = rows["second", "recorded all", 384]

    def seconds(*steps: dict[str, Any]) -> str:
        return " / ".join(f"{step['step_ms'][0] / 1e3:.1f}" for step in steps)

    memory = " / ".join(f"{step['peak_gb']:.0f}" for step in later)
    return [
        (
            "OpenFold3's whole step at a crop of 384: its own code and losses on our batches",
            f'{seconds(ours)} s, `cuda_graphs=True, keep="blocks"`, `FlatOptimizer`',
            f"{seconds(theirs)} s as the project trains, same busy host",
            name,
        ),
        (
            "... at 384 / 640 / 768 tokens, blocks recomputed",
            f"{seconds(*later)} s, {memory} GB",
            f"at 384 with all kept {seconds(everything)} s, {everything['peak_gb']:.0f} GB",
            name,
        ),
        *(
            (
                f"{title}'s whole step at a crop of 384, likewise",
                f"{seconds(rows[call, 'recorded blocks', 384])} s",
                f"{seconds(rows[call, 'project', 384])} s as the project trains, same card",
                name,
            )
            for call, title in (("boltz", "Boltz-1"), ("protenix", "Protenix"))
        ),
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
