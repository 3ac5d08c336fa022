"""The tables of AF3-class models in docs/kernels.md and kernels/notes, printed from the results.

python benchmarks/af3_tables.py
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
PEERS = ("cuequivariance", "compiled", "eager")
NAMES = {"openfold3": "OpenFold3", "boltz2": "Boltz-2", "protenix": "Protenix"}
PARTS = {
    "multiplication": "triangle multiplication",
    "attention": "triangle attention",
    "transition": "SwiGLU transition",
    "average": "pair-weighted averaging, 1,024 sequences",
    "tokens": "diffusion transformer's block, 48 copies of 384 tokens",
    "tokens_attention": "... its attention",
    "tokens_transition": "... its transition",
    "single": "attention of the single track, 384 tokens",
}


def result(name: str) -> Any:
    """A file of results/."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of a file's one run, or of its runs."""
    found = result(name)
    return [row for run in found.get("runs", [found]) for row in run["rows"]]


def _part(part: str, channels: int, size: int) -> str:
    if part == "block":
        return f"pair block, {size}"
    name = PARTS[part]
    if part in ("multiplication", "attention", "transition"):
        name += f", {size}" + ("" if channels == 128 else f", C {channels}")
    return name


def parts() -> list[str]:
    """A pair block and the parts of models: ms, MB kept, and the best peer's time over ours."""
    rows: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in result("af3_pair_blocks_h200")["rows"]:
        rows.setdefault((row["part"], row["channels"], row["size"]), {})[row["how"]] = row
    lines = [
        "| part, residues | fused | cuEquivariance | torch.compile | eager | fused is faster |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    order = ["block", *PARTS]
    for key in sorted(rows, key=lambda key: (order.index(key[0]), key[1], key[2])):
        found = rows[key]
        cells = [
            f"{found[how]['both_ms'][0]:.2f} ({found[how]['kept_mb']:,})" if how in found else "-"
            for how in ("fused", *PEERS)
        ]
        best = min(found[how]["both_ms"][0] for how in PEERS if how in found)
        cells.append(f"{best / found['fused']['both_ms'][0]:.2f} times")
        lines.append(f"| {_part(*key)} | {' | '.join(cells)} |")
    return lines


def trained() -> dict[str, dict[str, dict[str, Any]]]:
    """What was last measured of training a trunk, by project and way."""
    rows: dict[str, dict[str, dict[str, Any]]] = {project: {} for project in NAMES}
    for row in rows_of("af3_trunks_h200"):
        rows[row["project"]].setdefault(row["how"], {}).update(row)
    return rows


def _apart(losses: list[float], others: list[float]) -> float:
    """The most that two curves differ, relative, as far as both go."""
    return max(abs(a / b - 1) for a, b in zip(losses, others, strict=False))


def _spread(found: dict[str, dict[str, Any]], how: str) -> str:
    """The most that curves of a way differ from its first where the pairs are rounded by chance."""
    control = "control" if how == "eager" else f"{how} control"
    drawn = [row["losses"] for name, row in found.items() if name.rstrip(" 0123456789") == control]
    if not drawn:
        return "-"
    most = max(_apart(losses, found[how]["losses"]) for losses in drawn)
    return f"{100 * most:.2g} % in {max(map(len, drawn))}, {len(drawn)}"


def training() -> list[str]:
    """Trunks at a crop of 384 before and after one line."""
    lines = [
        "| trunk | before: ms, GB | after: ms, GB | times | gradients apart | losses apart, steps "
        "| before, pairs rounded: steps, runs | after, pairs rounded |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for project, found in trained().items():
        before, after = found["eager"], found["fused"]
        cells = [f"{one['step_ms'][0]:,.0f}, {one['peak_mb'] / 1e3:.1f}" for one in (before, after)]
        cells += [f"{before['step_ms'][0] / after['step_ms'][0]:.2f}"]
        steps = min(len(before["losses"]), len(after["losses"]))
        cells += [f"{100 * after['gradient']:.1f} %"]
        cells += [f"{100 * _apart(after['losses'], before['losses']):.2g} % in {steps}"]
        cells += [_spread(found, "eager"), _spread(found, "fused")]
        lines.append(f"| {NAMES[project]} | {' | '.join(cells)} |")
    return lines


def precision() -> list[str]:
    """OpenFold3's trunk in bfloat16, one kind of module swapped or all, from float32."""
    (at,) = (row["at"] for row in rows_of("af3_losses_h200") if row["project"] == "openfold3")
    steps = [int(step) for step in at]
    lines = [
        "| in bfloat16 | "
        + " | ".join(f"step {n}: loss | gradients | pairs" for n in steps)
        + " |",
        "| --- |" + " --- |" * 3 * len(steps),
    ]
    for how, name in WAYS.items():
        cells = []
        for found in (at[str(n)][how] for n in steps):
            cells += [f"{100 * found['loss']:+.3f} %", f"{100 * found['apart']:.2f} %"]
            cells += [f"{100 * found['z']['apart']:.2f} %"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _quantile(freedom: float) -> float:
    """Of Student's t: 2.5 % lie above it."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    scale /= math.sqrt(freedom * math.pi)
    at, found, step = 0.0, 0.0, 1e-4
    while found < 0.475:
        found += step * scale * (1 + (at + step / 2) ** 2 / freedom) ** (-(freedom + 1) / 2)
        at += step
    return at


def _shift(ours: list[float], theirs: list[float]) -> str:
    """Difference of two means of logarithms with its 95 % interval (Welch), in per cent."""
    apart = statistics.mean(ours) - statistics.mean(theirs)
    parts = [statistics.variance(x) / len(x) for x in (ours, theirs)]
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(x) - 1) for part, x in zip(parts, (ours, theirs), strict=True)
    )
    most = _quantile(freedom) * math.sqrt(sum(parts))
    low, high = 100 * (apart - most), 100 * (apart + most)
    return f"{100 * apart:+.2f} % ({low:+.2f} to {high:+.2f})"


def curves() -> list[str]:
    """OpenFold3's losses on 160 residues: how far ways are apart on average of their curves."""
    drawn: dict[str, list[list[float]]] = {"eager": [], "fused": [], "float32": []}
    for row in rows_of("af3_curves_h200"):
        way = "float32" if "float32" in row["how"] else row["how"].split()[0]
        drawn["eager" if way == "control" else way].append([math.log(x) for x in row["losses"]])
    lines = [
        "| step | eager's spread | fused's | fused - eager | eager - float32 | fused - float32 |"
    ]
    lines.append("| --- |" + " --- |" * 5)
    steps = range(len(drawn["eager"][0]))
    rows = [(str(n + 1), [n]) for n in steps] + [("all", [*steps])]
    for name, among in rows:
        at = {way: [statistics.mean(x[n] for n in among) for x in drawn[way]] for way in drawn}
        cells = [f"{100 * statistics.stdev(at[way]):.2f} %" for way in ("eager", "fused")]
        cells += [_shift(at["fused"], at["eager"])]
        cells += [
            f"{100 * (statistics.mean(at[way]) - statistics.mean(at['float32'])):+.2f} %"
            for way in ("eager", "fused")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


WAYS = {
    "eager": "before",
    "control": "... all channels of a pair by one factor (the weak control)",
    "only multiplication": "triangle multiplication fused",
    "only attention": "triangle attention fused",
    "only transition": "transitions fused",
    "only outer": "outer product mean fused",
    "only averaging": "pair-weighted averaging fused",
    "only tokens": "attention of the single track fused",
    "fused": "all fused",
}

TABLES = (parts, training, curves, precision)

if __name__ == "__main__":
    for table in TABLES:
        print("\n".join(table()), end="\n\n")
