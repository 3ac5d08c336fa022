"""A small dataset of made-up entries, prepared once a test run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tests.conftest import once_a_run
from tests.inside import units_inside

from evofeed.featurize.entries.input import EntriesInput
from evofeed.featurize.entries.job import prepare_entries
from evofeed.featurize.job import JobOptions
from evofeed.featurize.job.account import JobReport
from evofeed.synth import write_entries


def prepared(raw: Path, out: Path, *, count: int = 3, **changes: object) -> JobReport:
    """Made-up entries written and prepared."""
    write_entries(raw, count, residues=10)
    with units_inside():
        return prepare_again(raw, out, **changes)


def prepare_again(
    raw: Path, out: Path, options: dict[str, Any] | None = None, progress: Any = None,
    **changes: object,
) -> JobReport:  # fmt: skip
    """The files of a folder prepared."""
    fields = {"alignments": str(raw / "msa"), "conformers": 2, **changes}
    source = EntriesInput(
        structures=str(raw / "mmcif"),
        components=str(raw / "components.cif"),
        **fields,  # type: ignore[arg-type]
    )
    return prepare_entries(
        source,
        str(out),
        options=JobOptions(**{"executor": "local", "workers": 1, **(options or {})}),
        progress=progress,
    )


@functools.cache
def dataset_uri() -> str:
    """Three entries, prepared; nobody may change it."""

    def made(root: Path) -> None:
        assert prepared(root / "raw", root / "data").exit_code == 0

    return str(once_a_run("entries", made) / "data")
