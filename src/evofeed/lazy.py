"""Packages whose names are loaded when first used, so that importing one costs nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562).

    Args:
        package: the package's `__name__`.
        homes: for each public name the module below the package that defines it; one more
            dot in front looks a level up. A name must differ from its module's, because
            importing a module binds that.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{homes[name]}", package), name)

    return get
