"""Template files that are corrected, come or change: which units are done again for them."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import checksums, on_stage, run

from evofeed.featurize import discover, featurize_chain
from evofeed.featurize.job import Ledger


def with_templates(raw: Path, tmp_path: Path) -> tuple[Path, Path, dict[str, Any]]:
    """Raw files, a folder of template files of its own, and the job's argument for it."""
    copy, templates = shutil.copytree(raw, tmp_path / "raw"), tmp_path / "templates"
    shutil.copytree(copy / "mmcif", templates)
    return copy, templates, {"discover_args": {"template_mmcif_dir": str(templates)}}


def used_templates(data: Path, what: str = "names") -> list[set[str]]:
    """Names of the template files each unit of the newest job was made of, or missed."""
    ledger = Ledger(str(data / "jobs" / "ledger.sqlite"))
    units = ledger.units(ledger.jobs()[0].job_id)
    ledger.close()
    return [{n for t in unit["shard"]["templates"] for n in t[what].split()} for unit in units]


def used_by_some(used: list[set[str]]) -> str:
    """A name that some units have and others have not."""
    return next(n for n in sorted(set().union(*used)) if not all(n in names for names in used))


def test_a_corrected_template_file_redoes_the_units_that_used_it_and_no_other(
    raw: Path, tmp_path: Path
) -> None:
    copy, templates, where = with_templates(raw, tmp_path)
    data = tmp_path / "data"
    first = on_stage(lambda: run(copy, data, **where))
    used = used_templates(data)
    name = used_by_some(used)
    (templates / name).write_text("data_broken\n" + (templates / name).read_text())
    again = on_stage(lambda: run(copy, data, **where))
    assert again.state == "published"
    assert again.resumed == again.units - sum(name in names for names in used) < again.units
    fresh = on_stage(lambda: run(copy, tmp_path / "fresh", **where))
    assert checksums(data) == checksums(tmp_path / "fresh")
    assert fresh.snapshot != first.snapshot


@pytest.mark.parametrize("nested", [False, True])
def test_a_template_file_that_comes_later_redoes_the_units_that_missed_it_and_no_other(
    raw: Path, tmp_path: Path, nested: bool
) -> None:
    copy, templates, where = with_templates(raw, tmp_path)
    data, full = tmp_path / "data", tmp_path / "full"
    on_stage(lambda: run(copy, full, **where))
    file = templates / used_by_some(used_templates(full))
    text = file.read_bytes()
    file.unlink()
    first = on_stage(lambda: run(copy, data, **where))
    missed = used_templates(data, "missing")
    (templates / "9zzz.cif").write_bytes(text)  # nobody asked for it
    other = on_stage(lambda: run(copy, data, **where))
    assert (other.snapshot, other.resumed) == (first.snapshot, first.units)
    if nested:
        (templates / file.stem[1:3]).mkdir()
        (templates / file.stem[1:3] / f"{file.name}.gz").write_bytes(gzip.compress(text))
    else:
        file.write_bytes(text)
    again = on_stage(lambda: run(copy, data, **where))
    wanting = sum(file.stem in ids for ids in missed)
    assert 0 < wanting < again.units
    assert again.resumed == again.units - wanting
    assert checksums(data) == checksums(full) != {}
    assert on_stage(lambda: run(copy, data, **where)).resumed == again.units


def test_a_program_that_read_a_template_before_does_not_use_it_as_it_was(
    raw: Path, tmp_path: Path
) -> None:
    copy, templates, where = with_templates(raw, tmp_path)
    data, fresh = tmp_path / "data", tmp_path / "fresh"
    on_stage(lambda: run(copy, data, **where))
    file = templates / used_by_some(used_templates(data))

    def act() -> Any:
        for source in discover(str(copy), **where["discover_args"]):
            featurize_chain(source)
        file.write_text("data_broken\n" + file.read_text())
        return run(copy, data, **where)

    report = on_stage(act)
    assert (report.state, report.message) == ("published", "")
    assert 0 < report.resumed < report.units
    on_stage(lambda: run(copy, fresh, **where))
    assert checksums(data) == checksums(fresh)
