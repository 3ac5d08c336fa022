"""What the loader knows of each project: by which functions its samples are made."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_FUNCTIONS: Final = {
    "openfold3": {"draws": "draws:CounterDraws"},
    "boltz": {"draws": "draws:SampleDraws"},
    "protenix": {"draws": "draws:CounterDraws"},
}


class Project(NamedTuple):
    """Functions of a project's view that need no torch."""

    view: Callable[..., Any]
    """(record, section, molecules, alignments by entity[, components]) -> the whole entry."""
    plan: Callable[..., dict[str, Any]]
    """(view, alignments, datapoint, draws, config) -> decisions."""
    draws: Callable[[int], Any]
    """Random decisions by a sample's key."""


def project_of(name: str) -> Project:
    """The host's functions of a project."""
    return Project(
        _get(name, f"tables:{name}_view"),
        _get(name, "plan:plan_sample"),
        _get(name, _FUNCTIONS[name]["draws"]),
    )


def features_of(name: str) -> Callable[..., dict[str, Any]]:
    """(decisions as tensors, config) -> features of one sample."""
    found: Callable[..., dict[str, Any]] = _get(name, f"features:{name}_features")
    return found


def on_host(name: str) -> frozenset[str]:
    """Decisions that the host reads and the device does not."""
    found: frozenset[str] = getattr(_module(name, "plan"), "ON_HOST", frozenset())
    return found


def batch_of(name: str) -> Callable[..., dict[str, Any]]:
    """(samples) -> the batch that the project's training step takes."""
    found: Callable[..., dict[str, Any]] = _get(name, f"batch:{name}_batch")
    return found


def _get(project: str, place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(_module(project, module), name)


def _module(project: str, name: str) -> Any:
    return importlib.import_module(f"evofeed.loader.views.{project}.{name}")
