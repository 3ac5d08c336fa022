"""Triton's interpreter without what it does again at each launch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from evofeed.kernels.runtime.backend import INTERPRETER


@contextlib.contextmanager
def quick_interpreter() -> Iterator[None]:
    """Half the time of a launch, with the same arithmetic.

    At every launch, and at every call of one function by another, the interpreter looks through
    `triton.language` for what it must replace: here once, until the end. It computes sums and
    products of 32 bits again in 64 to see whether they overflow: `test_offsets.py` reads the
    sources for that. NumPy is not to warn of lines that only fill a tile up: in float16, which
    stands for bfloat16 here, they leave its range. Where no kernel is interpreted, nothing is
    changed.
    """
    if not INTERPRETER:
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    everything: Any = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    nothing = SimpleNamespace(restore=lambda: None)
    scope = interpreter._patch_lang(everything)
    numpys, known = interpreter._get_np_dtype, functools.cache(interpreter._get_np_dtype)

    def numpys_once(kind: Any) -> Any:
        return numpys(kind) if kind.scalar.is_ptr() else known(kind.scalar)

    unchecked = interpreter.InterpreterOptions(sanitize_overflow=False)
    try:
        with (
            np.errstate(over="ignore", invalid="ignore"),
            mock.patch.object(interpreter, "_patch_lang", lambda _: nothing),
            mock.patch.object(interpreter.interpreter_builder, "options", unchecked),
            mock.patch.object(interpreter, "_get_np_dtype", numpys_once),
        ):
            yield
    finally:
        scope.restore()
