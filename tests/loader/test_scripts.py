"""The loops of docs/loader.md run as they stand, on the CPU and with small sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tests.loader.pages import block
from tests.loader.records import small_dataset

PRESET = "LoaderConfig.initial_training(epoch_len=10_000"
SMALL = "LoaderConfig(crop_size=8, max_msa_clusters=4, max_extra_msa=4, epoch_len=6"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset `data/` in the current folder."""
    small_dataset(tmp_path / "data")
    monkeypatch.chdir(tmp_path)


def run(containing: str, changes: dict[str, str], **names: Any) -> dict[str, Any]:
    """A block of the page with some of its text changed; each change must find its text.

    Where the page has an ellipsis, the batch and the loader's state are taken down.
    """
    code = block(containing)
    take = "seen.append(int(batch['true_msa'].sum())); states.append(loader.state_dict())"
    for old, new in {PRESET: SMALL, "        ...": f"        {take}", **changes}.items():
        assert old in code, old
        code = code.replace(old, new)
    names |= {"seen": [], "states": []}
    exec(compile(code, "loader.md", "exec"), names)
    names["loader"].close()
    return names


@pytest.mark.system
def test_the_first_loop_gives_epoch_after_epoch() -> None:
    seen = run("for epoch in range(100)", {"range(100)": "range(2)"})["seen"]
    assert len(seen) == 12
    assert seen[:6] != seen[6:]


@pytest.mark.system
def test_a_ddp_script_continues_from_any_of_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    monkeypatch.setattr(dist, "init_process_group", lambda backend: None)
    changes = {
        "global_batch_size=128": "global_batch_size=2",
        "torch.cuda.set_device(rank % torch.cuda.device_count())": "",
        "range(loader.epoch, 100)": "range(loader.epoch, 3)",
    }
    try:
        whole = run("dist.init_process_group", changes, checkpoint=None)
        assert len(whole["seen"]) == 18
        for had in (2, 6, 9):  # within an epoch, at its end, within a step
            state = {"loader": whole["states"][had - 1]}
            rest = run("dist.init_process_group", changes, checkpoint=state)
            assert rest["seen"] == whole["seen"][had:]
    finally:
        dist.destroy_process_group()
