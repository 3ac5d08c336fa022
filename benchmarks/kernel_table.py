"""Result files of `benchmarks.kernels`: sections measured one by one, merged, shown as tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]

HIDDEN = ("case", "who", "kernels", "ours_and_torch", "ms_q1_q3", "blocks")


def load(path: Path) -> dict[str, Any]:
    """Sections of a result file by name, each with its environment and rows; none if missing."""
    if not path.exists():
        return {}
    kept = json.loads(path.read_text())
    if "environment" in kept:  # one environment for all sections, as older files had it
        environment = kept["environment"]
        return {
            name: {"environment": environment, "rows": rows}
            for name, rows in kept["sections"].items()
        }
    sections: dict[str, Any] = kept["sections"]
    return sections


def save(path: Path, sections: dict[str, Any]) -> None:
    """Writes all sections."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"sections": sections}, indent=1) + "\n")


def merge(into: Path, others: list[Path]) -> list[str]:
    """Puts the sections that `others` finished into a result file; its other sections stay.

    Returns their names.
    """
    sections, taken = load(into), []
    for path in others:
        for name, section in load(path).items():
            if "seconds" in section:  # written when a section ends
                sections[name] = section
                taken.append(name)
    save(into, sections)
    return taken


def _cell(value: Any) -> str:
    if isinstance(value, dict) and "us" in value:
        return f"{value['us']:g} ({value['q1']:g}-{value['q3']:g})"
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _with_copy_share(rows: list[Row]) -> list[Row]:
    """Adds the share of a device copy's rate to rows of a case where a copy was timed."""
    copies = {r["case"]: r["forward"]["us"] for r in rows if r.get("who") == "device copy"}
    for row in rows:
        copy, forward = copies.get(row["case"]), row.get("forward")
        if copy and forward and row["who"] != "device copy":
            row["forward, share of copy"] = round(copy / forward["us"], 3)
            both = row.get("both")
            if both:  # two passes over the tensor forward, three backward
                row["both, share of copy"] = round(2.5 * copy / both["us"], 3)
    return rows


def _with_peer_share(rows: list[Row]) -> list[Row]:
    """Adds to our rows what their times are of the best peer's of the same case."""
    for name in ("both", "forward_wall", "both_wall"):
        best: dict[str, float] = {}
        for row in rows:
            if name in row and row.get("who") not in (None, "evofeed", "device copy"):
                best[row["case"]] = min(best.get(row["case"], float("inf")), _time(row[name]))
        for row in rows:
            if row.get("who") == "evofeed" and name in row and row["case"] in best:
                row[f"{name}, of best peer"] = round(_time(row[name]) / best[row["case"]], 2)
    return rows


def _time(value: Any) -> float:
    return float(value["us"] if isinstance(value, dict) else value)


def table(path: Path) -> str:
    """Markdown of a result file. Times are medians in microseconds unless named otherwise."""
    lines = ["# Kernels", "", "Medians (quartiles) in microseconds unless a column says ms.", ""]
    for section, found in load(path).items():
        env, rows = found["environment"], _with_peer_share(_with_copy_share(found["rows"]))
        lines += [f"## {section}", ""]
        note = f". {env['note']}" if "note" in env else ""
        lines += [
            f"{env['card']}, torch {env['torch']}, triton {env['triton']}, {env['date'][:16]}, "
            f"{env.get('repeats', '')}; `{env['command']}`{note}", "",
        ]  # fmt: skip
        columns = [c for c in dict.fromkeys(k for row in rows for k in row) if c not in HIDDEN]
        shown = [row for row in rows if any(c in row for c in columns)]
        head = ["case", *(["who"] if any("who" in row for row in rows) else []), *columns]
        lines += ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        lines += ["| " + " | ".join(_cell(row.get(c)) for c in head) + " |" for row in shown]
        lines.append("")
    return "\n".join(lines)
