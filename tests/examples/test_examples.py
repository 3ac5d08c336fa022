"""Every file in examples/ runs, and shows what its first line says."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import exit_code
from tests.inside import units_inside
from tests.synthetic_entries import dataset_uri
from tests.trainer.forked import run_ranks
from tests.trainer.synthetic_records import write_dataset

from evofeed.loader import EntryConfig, LoaderConfig
from evofeed.trainer import AlphaFold, AlphaFoldLoss, from_openfold_batch, tiny
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
    whole = module.main(uri, str(folder / "whole"), steps=2)
    first = module.main(uri, str(folder / "half"), steps=1)
    second = module.main(uri, str(folder / "half"), steps=1)
    assert first + second == pytest.approx(whole, rel=1e-5)
    assert all(map(math.isfinite, whole)) and len(set(whole)) == 2


def ddp(name: str, uri: str, folder: Path) -> None:
    """On two ranks two halves give the losses of the whole; so does a second half on one rank."""

    def losses(ranks: int, checkpoint: str, steps: int) -> list[float]:
        made = run_ranks(ranks, one_rank, uri, str(folder / checkpoint), steps, folder=folder)
        return list(json.loads(made.splitlines()[-1]))

    whole, first = losses(2, "whole", 2), losses(2, "half", 1)
    shutil.copy(folder / "half", folder / "alone")
    assert first + losses(2, "half", 1) == pytest.approx(whole, rel=1e-6)
    assert losses(1, "alone", 1) == pytest.approx(whole[1:], rel=1e-4)
    assert all(map(math.isfinite, whole)) and len(set(whole)) == 2


def one_rank(uri: str, checkpoint: str, steps: int) -> None:
    print(json.dumps(example("plain_ddp").main(uri, checkpoint, steps)))


def lightning(name: str, uri: str, folder: Path) -> None:
    losses = example(name).main(uri, default_root_dir=folder, enable_progress_bar=False)
    assert len(losses) == 4 and all(map(math.isfinite, losses))


def openfold(name: str, uri: str, folder: Path) -> None:
    """The calls of `train_openfold.py`, of commit ce0029e, on its data module and training step."""
    import pytorch_lightning as pl

    class OpenFoldWrapper(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model, self.loss = AlphaFold(tiny().model).eval(), AlphaFoldLoss(tiny().loss)
            self.losses: list[float] = []

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            assert batch.pop("gt_features", None) is None
            assert {value.shape[-1] for value in batch.values()} == {batch["aatype"].shape[-1]}
            ours = from_openfold_batch(batch)  # for our model in place of OpenFold's
            loss, _ = self.loss(self.model.eval()(ours), ours)  # dropout's numbers differ
            self.losses.append(float(loss))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.model.parameters(), lr=1e-3, eps=1e-5)

    def fit(checkpoint: Path | None, max_steps: int) -> list[float]:
        model, data_module = OpenFoldWrapper(), example(name).Features(uri, config)
        data_module.prepare_data()
        data_module.setup()
        keep = pl.callbacks.ModelCheckpoint(dirpath=folder, every_n_train_steps=2, save_top_k=-1)
        trainer = pl.Trainer(
            max_steps=max_steps, reload_dataloaders_every_n_epochs=1, callbacks=[keep],
            default_root_dir=folder, logger=[], enable_progress_bar=False,
        )  # fmt: skip
        trainer.fit(model, datamodule=data_module, ckpt_path=checkpoint)
        data_module.loader.close()
        return model.losses

    config = LoaderConfig(crop_size=32, max_msa_clusters=8, max_extra_msa=16, epoch_len=3)
    whole = fit(None, 4)  # into the second epoch
    (half,) = folder.glob("*step=2.ckpt")
    assert fit(half, 4) == pytest.approx(whole[2:], rel=1e-5)
    assert len(set(whole)) == 4 and all(map(math.isfinite, whole))


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


def entries(name: str, uri: str, folder: Path) -> None:
    """An epoch of whole entries, and from a state on the rest of it."""
    config = LoaderConfig(entries=ENTRIES[name], epoch_len=3)

    def batches() -> Any:
        return example(name).Batches(dataset_uri(), config=config, device="cpu", reader="thread")

    whole, again = batches(), batches()
    stream = iter(whole)
    first, state = next(stream), whole.state_dict()
    rest = [set(batch) for batch in stream]
    again.load_state_dict(state)
    assert len(whole) == 3 and rest == [set(first)] * 2 == [set(batch) for batch in again]
    for one in (whole, again):
        one.loader.close()


ENTRIES = {
    "openfold3_data": EntryConfig.openfold3(token_budget=32, used_rows=16),
    "boltz_data": EntryConfig.boltz(max_tokens=32, max_atoms=512, max_seqs=16),
    "protenix_data": EntryConfig.protenix(crop_size=32),
}
RUNS: dict[str, Callable[[str, str, Path], None]] = {
    "plain_loop": resumes,
    "accelerate_loop": resumes,
    "plain_ddp": ddp,
    "lightning_loop": lightning,
    "openfold_data": openfold,
    "own_features": features,
    "curriculum": curriculum,
    **dict.fromkeys(ENTRIES, entries),
}


@pytest.mark.parametrize("name", RUNS)
def test_example_runs(name: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    RUNS[name](name, uri, tmp_path)


def test_no_example_is_left_out_or_long() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert {path.stem for path in files} == {*RUNS} and len(files) == 10
    for path in files:
        text = path.read_text()
        assert len(text.splitlines()) < 80, path.name
        assert ast.get_docstring(ast.parse(text)), path.name


def test_the_notebook_goes_from_a_fasta_file_to_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands, which are this interpreter's, run in this process."""

    def command(words: list[str], *, check: bool, cwd: Path) -> None:
        assert words[:3] == [sys.executable, "-m", "evofeed.cli"] and check
        with contextlib.chdir(cwd), units_inside():
            assert exit_code(*words[3:]) == 0

    monkeypatch.setattr(subprocess, "run", command)
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
