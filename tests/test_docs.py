"""The documents tell what is true: links resolve, what they tell people to type works."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from tests.conftest import exit_code

from evofeed import cli
from evofeed.featurize import discover, featurize_chain
from evofeed.store import DatasetWriter
from evofeed.synth import write_synthetic

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


GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "featurize/INPUTS.md"]


def blocks(page: Path) -> list[str]:
    """The indented blocks of a page, blank lines within them kept."""
    found = re.findall(r"(?:^    .*\n(?:[ \t]*\n(?=    ))?)+", page.read_text(), re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def commands(text: str) -> list[str]:
    """Commands of ours in a page: lines of blocks, and `evofeed ...` within a sentence."""
    in_blocks = re.findall(
        r"^ {4,}(?:torchrun .*-m evofeed\.cli|evofeed) ((?:.*\\\n)*.+)$", text, re.MULTILINE
    )
    in_blocks = [re.sub(r"\\\n\s*", "", command) for command in in_blocks]
    in_text = re.findall(r"(?<!`)`evofeed ([^`\n|…]+)`(?!`)", text)
    return [re.split(r"\s+#|\s{2,}", found)[0] for found in [*in_blocks, *in_text]]


ALL = [(page, line) for page in GUIDES for line in commands(page.read_text())]


@pytest.mark.parametrize(("page", "line"), ALL, ids=[f"{p.name}: {line}" for p, line in ALL])
def test_every_command_in_the_documents_is_one(page: Path, line: str) -> None:
    name, *words = shlex.split(line)
    if name in ("COMMAND", "--help", "--version"):
        return
    module, attribute = cli._command(name, words)
    target: Any = getattr(importlib.import_module(module), attribute)
    app = target if isinstance(target, typer.Typer) else typer.Typer()
    if app is not target:
        app.command(name)(target)
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"{page.name}: no `evofeed {name} {words[0]}`"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    unknown = [word for word in words if word.startswith("--") and word not in known]
    assert not unknown, f"{page.name}: `evofeed {line}` has no {unknown}"


def names(text: str) -> set[str]:
    """Dotted names of ours in a page, and what its blocks import from us."""
    found = set(re.findall(r"(?<![\w./-])evofeed(?:\.[A-Za-z_]\w*)+(?![\w/-])", text))
    for module, imported in re.findall(r"^ +from (evofeed[\w.]*) import (.+)$", text, re.MULTILINE):
        found |= {f"{module}.{name.strip()}" for name in imported.split("#")[0].split(",")}
    return found


@pytest.mark.parametrize("page", GUIDES, ids=[page.name for page in GUIDES])
def test_every_name_of_ours_in_the_documents_is_there(page: Path) -> None:
    for name in sorted(names(page.read_text())):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            raise AssertionError(f"{page.name}: {name}: {error}") from None


def test_names_are_found() -> None:
    text = "by `evofeed.store.Dataset`\n    from evofeed.store import Cache, Dataset  # both\n"
    assert names(text) == {
        "evofeed.store", "evofeed.store.Cache", "evofeed.store.Dataset",
    }  # fmt: skip


def test_commands_are_found_and_a_wrong_one_would_be_noticed() -> None:
    assert len(ALL) > 20
    page = ROOT / "README.md"
    for wrong in ("snapshots lst", "featurize raw/ data/ --no-such"):
        with pytest.raises(AssertionError):
            test_every_command_in_the_documents_is_one(page, wrong)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset `data/`, as the snippets expect it in the current folder."""
    folder = tmp_path_factory.mktemp("snippets")
    write_synthetic(folder / "raw", 3, seed=0)
    writer = DatasetWriter(str(folder / "data"))
    for source in discover(str(folder / "raw")):
        writer.add(featurize_chain(source))
    writer.commit()
    return folder / "data"


@pytest.mark.system
def test_the_readmes_loop_runs_as_it_stands(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    (snippet,) = [block for block in blocks(ROOT / "README.md") if "import FeatureLoader" in block]
    seen = []

    def model(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        seen.append(batch["aatype"].shape)
        return torch.zeros(())

    names = {"rank": 0, "world": 1, "model": model}
    exec(compile(snippet, "README.md", "exec"), names)
    assert len(seen) == 3
    assert all(shape[1] == 256 for shape in seen), "OpenFold's batch: sample, residue, recycle"


@pytest.mark.system
def test_the_service_page_opens_a_dataset(data: Path) -> None:
    snippet = blocks(ROOT / "docs" / "service.md")[0].replace("/data/demo", str(data))
    names: dict[str, Any] = {}
    exec(compile(snippet, "service.md", "exec"), names)
    assert len(names["dataset"]) == 3
