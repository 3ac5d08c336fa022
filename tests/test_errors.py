from __future__ import annotations

import inspect
import pickle

import pytest

from evofeed.base import errors

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


def test_an_error_without_a_place_is_just_its_message() -> None:
    assert str(errors.StoreError("no such dataset")) == "no such dataset"
