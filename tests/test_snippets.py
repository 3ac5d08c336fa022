"""What the documents tell people to type does what they say."""

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

from evofeed import cli
from evofeed.featurize import discover, featurize_chain
from evofeed.store import DatasetWriter
from evofeed.synth import write_synthetic

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "featurize/INPUTS.md"]


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


ALL = [(page, line) for page in PAGES for line in commands(page.read_text())]


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


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
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
