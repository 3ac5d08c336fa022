"""Packages whose names are loaded on first use, so that importing the package is cheap."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


def names_from(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562) for names imported below `if TYPE_CHECKING:`.

    So each name is written once, where type checkers and readers look for it: in the package's
    `__init__.py`. The package also gets a `__dir__` that lists them. A name must differ from its
    module's, because importing a module binds the module's name.
    """
    modules: dict[str, str] = {}
    module = sys.modules.get(package)

    def load() -> None:
        if not modules:
            modules.update(lazy_imports(package))

    def list_names() -> list[str]:
        load()
        return sorted({*vars(module), *modules})

    def get(name: str) -> Any:
        load()
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            defined_in = importlib.import_module(modules[name], package)
        except AttributeError as error:  # Python's own message would be "cannot import name"
            raise ImportError(f"{modules[name]} cannot be imported: {error}") from error
        return getattr(defined_in, name)

    if module is not None:
        vars(module)["__dir__"] = list_names
    return get


def lazy_imports(package: str) -> dict[str, str]:
    """Modules by name of what a package's file imports below an `if`."""
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
