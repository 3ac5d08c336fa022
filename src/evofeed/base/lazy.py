"""Packages whose names are loaded when first used, so that importing one costs nothing."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


def names_from(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562) whose names are those it imports for type checkers.

    The package also gets a `__dir__` that lists them.

    So each name is written where type checkers and readers look for it: below `if TYPE_CHECKING:`
    in the package's own file. A name must differ from its module's: importing a module binds that.
    """
    homes: dict[str, str] = {}
    module = sys.modules.get(package)

    def load() -> None:
        if not homes:
            homes.update(homes_of(package))

    def listed() -> list[str]:
        load()
        return sorted({*vars(module), *homes})

    def get(name: str) -> Any:
        load()
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            home = importlib.import_module(homes[name], package)
        except AttributeError as error:  # "cannot import name", Python would say, and not why
            raise ImportError(f"{homes[name]} cannot be imported: {error}") from error
        return getattr(home, name)

    if module is not None:
        vars(module)["__dir__"] = listed
    return get


def homes_of(package: str) -> dict[str, str]:
    """Names that a package's file imports below an `if`, and the modules that have them."""
    spec = importlib.util.find_spec(package)
    source = spec.loader.get_source(package) if spec and spec.loader else ""  # type: ignore[attr-defined]
    return {
        alias.name: "." * node.level + str(node.module)
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
