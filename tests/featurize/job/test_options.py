from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from evofeed.featurize.job import JobOptions


@pytest.mark.parametrize(
    ("options", "environ", "cluster"),
    [
        ({}, None, ""),
        ({}, "10.0.0.1:6379", "10.0.0.1:6379"),
        ({}, "local", ""),
        ({"ray_address": "10.0.0.2:6379"}, "10.0.0.1:6379", "10.0.0.2:6379"),
        ({"executor": "ray"}, None, "auto"),
        ({"executor": "ray"}, "local", "auto"),
        ({"executor": "ray"}, "10.0.0.1:6379", "10.0.0.1:6379"),
        ({"executor": "local"}, "10.0.0.1:6379", ""),
    ],
)
def test_units_run_on_ray_where_it_is_asked_for_or_there_is_an_address(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], environ: str | None, cluster: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if environ is not None:
        monkeypatch.setenv("RAY_ADDRESS", environ)
    assert JobOptions(**options).cluster == cluster


def test_a_ray_that_this_program_has_joined_is_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    context = SimpleNamespace(gcs_address="10.0.0.3:6379")
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert JobOptions().cluster == "10.0.0.3:6379"
    assert JobOptions(executor="local").cluster == ""


def test_an_address_and_local_processes_are_a_contradiction() -> None:
    with pytest.raises(ValueError, match="ray_address needs executor='ray'"):
        JobOptions(executor="local", ray_address="10.0.0.1:6379")
