"""Every file in examples/ runs, and shows what its first line says."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.synthetic_records import write_dataset

from evofeed.viz import Panel

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("examples"), 8, tiny=True)


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def resumes(name: str, uri: str, folder: Path) -> None:
    """Two halves give the losses of the whole."""
    module = example(name)
    whole = module.main(uri, str(folder / "whole"), steps=6)
    first = module.main(uri, str(folder / "half"), steps=3)
    second = module.main(uri, str(folder / "half"), steps=3)
    assert first + second == pytest.approx(whole, rel=1e-5)
    assert all(map(math.isfinite, whole)) and len(set(whole)) == 6


def ddp(name: str, uri: str, folder: Path) -> None:
    os.environ |= {
        "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517",
    }  # fmt: skip
    losses = example(name).main(uri)
    assert len(losses) == 2 and all(map(math.isfinite, losses))


def lightning(name: str, uri: str, folder: Path) -> None:
    losses = example(name).main(uri, default_root_dir=folder, enable_progress_bar=False)
    assert len(losses) == 4 and all(map(math.isfinite, losses))


def openfold(name: str, uri: str, folder: Path) -> None:
    shapes = example(name).main(uri)
    assert shapes["aatype"][:2] == (1, 32) and shapes["aatype"][-1] == shapes["msa_feat"][-1]
    assert "no_recycling_iters" in shapes


def features(name: str, uri: str, folder: Path) -> None:
    batch = example(name).main(uri)
    there = batch["seq_mask"].bool()
    table = torch.from_numpy(example(name).HYDROPATHY)
    assert torch.equal(batch["hydropathy"][there], table[batch["aatype"][there].long()])
    assert float(batch["depth"]) >= 30
    shift = (batch["noisy_positions"] - batch["all_atom_positions"]).std()
    assert 0.45 < float(shift) < 0.55


def curriculum(name: str, uri: str, folder: Path) -> None:
    trained, validated = example(name).main(uri)
    assert max(trained[0]) < max(trained[1]) and len(trained[0]) == 8
    assert validated[0] == validated[1] and len(validated[0]) == 8


RUNS: dict[str, Callable[[str, str, Path], None]] = {
    "plain_loop": resumes,
    "accelerate_loop": resumes,
    "plain_ddp": ddp,
    "lightning_loop": lightning,
    "openfold_data": openfold,
    "own_features": features,
    "curriculum": curriculum,
}
ENTRIES = {"boltz_data", "openfold3_data", "protenix_data"}  # tests/loader/test_examples.py


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(
    name: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    RUNS[name](name, uri, tmp_path)


def test_no_example_is_left_out_or_long() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert {path.stem for path in files} == {*RUNS, *ENTRIES} and len(files) == 10
    for path in files:
        text = path.read_text()
        assert len(text.splitlines()) < 80, path.name
        assert ast.get_docstring(ast.parse(text)), path.name


def test_the_notebook_goes_from_a_fasta_file_to_a_picture(tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "fasta_to_picture.ipynb").read_text())["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body[-1]
        value = last.value if isinstance(last, ast.Expr) else None
        body = tree.body[:-1] if value else tree.body
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if value:
            shown.append(eval(compile(ast.Expression(value), "cell", "eval"), names))
    panels = [value for value in shown if isinstance(value, Panel)]
    assert len(panels) == 2 and all("<iframe" in panel._repr_html_() for panel in panels)
    assert names["record"].num_alignments > 10  # the search found relatives
    assert (names["folder"] / "ubi_A.png").read_bytes().startswith(b"\x89PNG")
    assert "data-structure=" in (names["folder"] / "ubi_A.html").read_text()
