"""Every claim of speed in the README and in docs/measured.md, printed from the results.

    python benchmarks/measured.py > docs/measured.md

No figure is typed: each is a value of a file in results/, rounded; `claims/` makes the rows. A row
that is also in the README is there word by word.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.claims.data import featurize, loader, service, store
from benchmarks.claims.kernels import drop_ins, kernels
from benchmarks.claims.other_models import other_models
from benchmarks.claims.results import Row, versions
from benchmarks.claims.shortfalls import falls_short
from benchmarks.claims.training import training


def rows() -> list[Row]:
    """The whole table, along the path."""
    return [
        *featurize(),
        *store(),
        *loader(),
        *service(),
        *kernels(),
        *drop_ins(),
        *other_models(),
        *training(),
    ]


def table(chosen: list[Row]) -> list[str]:
    """Rows without their files, as Markdown."""
    return [f"| {what} | {ours} | {beside} |" for what, ours, beside, _ in chosen]


def page() -> str:
    """docs/measured.md."""
    body = []
    for line, (*_, files) in zip(table(rows()), rows(), strict=True):
        links = ", ".join(
            f"[{i + 1 if ' ' in files else 'json'}](../benchmarks/results/{name}.json)"
            for i, name in enumerate(files.split())
        )
        ran = "; ".join(dict.fromkeys(filter(None, map(versions, files.split()))))
        body.append(f"{line} {links} | {ran or 'not recorded'} |")
    return "\n".join(
        [
            "# Measured",
            "",
            "Printed from [benchmarks/results](../benchmarks/results) by "
            "`python benchmarks/measured.py > docs/measured.md`.",
            "",
            "Each file has command, machine, shapes, versions, date and spread; "
            "[benchmarks](../benchmarks/README.md) says how to repeat it. Inputs are recorded real "
            "chains if the row names them, otherwise synthetic. GPU: one H200, torch 2.11, "
            "bf16, initial-training shapes (256 residues, 128 + 1024 sequences, 4 templates) "
            "unless the row says otherwise. CPU times depend on the machine; read them as ratios.",
            "",
            "| what | evofeed | beside it | from | versions |",
            "| --- | --- | --- | --- | --- |",
            *body,
            "",
            "## What falls short",
            "",
            *(f"- {sentence}" for sentence in falls_short()),
        ]
    )


if __name__ == "__main__":
    print(page())
