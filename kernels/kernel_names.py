"""Names of all kernels, by what a run's report counts their time as."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from evofeed.kernels import ops, runtime


@cache
def kernel_groups() -> dict[str, str]:
    """Of each kernel's name `norm`, `attention`, `gemm`, `elementwise`, ...: each package says it.

    A package's `KERNELS` has its kernels' names without `_kernel`, by group.
    """
    names = [each.name for each in pkgutil.iter_modules(ops.__path__)]
    folders = [runtime, *(importlib.import_module(f"{ops.__name__}.{name}") for name in names)]
    return {
        f"{name}_kernel": group
        for folder in folders
        for group, own in folder.KERNELS.items()
        for name in own.split()
    }
