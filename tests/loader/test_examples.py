"""The data modules in examples/ give batches and go on where they stopped."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tests.synthetic_entries import dataset_uri

from evofeed.loader import EntryConfig, LoaderConfig

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIGS = {
    "openfold3": EntryConfig.openfold3(token_budget=32, used_rows=16),
    "boltz": EntryConfig.boltz(max_tokens=32, max_atoms=512, max_seqs=16),
    "protenix": EntryConfig.protenix(crop_size=32),
}


def module(project: str) -> Any:
    path = EXAMPLES / f"{project}_data.py"
    spec = importlib.util.spec_from_file_location(f"example_{project}", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.system
@pytest.mark.parametrize("project", sorted(CONFIGS))
def test_an_example_gives_an_epoch_and_goes_on_from_its_state(project: str) -> None:
    config = LoaderConfig(entries=CONFIGS[project], epoch_len=3)
    options = {"config": config, "device": "cpu", "reader": "thread"}
    batches = module(project).Batches(dataset_uri(), **options)
    stream = iter(batches)
    first, state = next(stream), batches.state_dict()
    rest = [set(batch) for batch in stream]
    batches.loader.close()
    assert len(batches) == 3 and len(rest) == 2
    assert set(first) == rest[0]
    again = module(project).Batches(dataset_uri(), **options)
    again.load_state_dict(state)
    assert len(list(again)) == 2
    again.loader.close()
