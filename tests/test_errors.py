from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import pytest

from evofeed.base import errors
from evofeed.featurize.records.template_library import read_release_dates
from evofeed.store import Dataset
from evofeed.trainer.run.checkpoint import read_checkpoint

ALL = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, errors.EvofeedError)
]


@pytest.mark.parametrize("error", ALL, ids=lambda e: e.__name__)
def test_an_error_survives_pickling_with_its_place(error: type[errors.EvofeedError]) -> None:
    raised = error("odd letter '7'; remove it", path="a.a3m", line=12, item="1abc_A")
    back = pickle.loads(pickle.dumps(raised))
    assert type(back) is error
    assert str(back) == "1abc_A: a.a3m:12: odd letter '7'; remove it"
    assert back.to_dict() == raised.to_dict()


def test_brackets_without_end_are_damage_as_any_other(tmp_path: Path) -> None:
    for name in ("refs/main", "state.json", "dates.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("[" * 200_000)
    with pytest.raises(errors.ShardCorrupt, match="not a digest"):
        Dataset.open(tmp_path)
    with pytest.raises(errors.CheckpointError, match="nested too deeply"):
        read_checkpoint(tmp_path)
    with pytest.raises(errors.InputError, match="nested too deeply"):
        read_release_dates(str(tmp_path / "dates.json"))


def test_an_error_without_a_place_is_just_its_message() -> None:
    assert str(errors.StoreError("no such dataset")) == "no such dataset"
