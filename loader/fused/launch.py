# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,no-any-return"
"""Launching a compiled kernel without asking each time which of its variants is meant.

Triton looks at every argument of every launch and at every constant that a kernel
reads, to see whether it must compile again: tens of microseconds. Here the types and
alignments of arguments never change (sizes are in memory, see `words`, and all
memory is aligned), so there is one variant for each set of constants.
"""

from typing import Any

from torch import Tensor

__all__ = ["CompiledKernel"]


class CompiledKernel:
    """A Triton kernel whose tensor arguments are always of the same types, 16-byte aligned.

    Args:
        function: what `triton.jit` made.
        options: of the compiler.
    """

    def __init__(self, function: Any, **options: Any) -> None:
        self._function, self._options = function, options
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(self, grid: tuple[int, int, int], *tensors: Tensor, **constants: int) -> None:
        """Queue it on the current stream; `constants` in the order of its parameters."""
        key = (tensors[0].device, *constants.values())
        compiled = self._compiled.get(key)
        if compiled is None:  # the interpreter compiles nothing
            self._compiled[key] = self._function[grid](*tensors, **constants, **self._options)
        else:
            # Of a tensor the launcher would ask its address, and of that the driver, one by one.
            compiled[grid](*[tensor.data_ptr() for tensor in tensors], *constants.values())
