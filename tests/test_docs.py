"""The documents tell what is true: links resolve, tables are the code's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.conftest import exit_code

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    page
    for page in sorted(ROOT.rglob("*.md"))
    if not page.relative_to(ROOT).as_posix().startswith((".", "src/", "build/"))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_every_test_a_document_names_is_there() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    named = set(re.findall(r"[`:](test_\w+…?)`", pages))
    assert len(named) > 20
    assert not [name for name in named if f"def {name}(".replace("…(", "") not in code]
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", pages):
        assert f"def {name}(" in (ROOT / file).read_text(), file


def test_every_file_a_document_names_is_there() -> None:
    rooms = "benchmarks|deploy|docs|featurize|kernels|loader|service|src|store|synth|tests|trainer"
    missing = [
        (page.name, found)
        for page in PAGES
        for found in re.findall(rf"`((?:{rooms})/[a-z0-9_/.-]+\.[a-z]+)\b", page.read_text())
        if not (ROOT / found).exists()
    ]
    assert not missing


def test_every_preset_is_in_the_help_and_in_the_guide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evofeed.trainer.presets import PRESETS

    monkeypatch.setenv("COLUMNS", "300")
    exit_code("train", "--help")
    texts = [capsys.readouterr().out, (ROOT / "docs" / "training.md").read_text()]
    missing = [name for name in PRESETS if not all(re.search(rf"\b{name}\b", t) for t in texts)]
    assert not missing
