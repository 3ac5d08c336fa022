"""Launches of Triton kernels that cost a few microseconds of the CPU's time instead of twenty.

At every launch Triton looks the compiled kernel up from all that it specialises on.
Here numbers, types and compile-time arguments are the key, and a launch seen before is
repeated as it was; the first time, Triton's own runs. Tensors go to the launcher as
addresses: for each tensor object it would call the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from evofeed.base.errors import KernelError, UnsupportedShape
from evofeed.kernels.runtime.backend import INTERPRETER, TensorDescriptor, gl
from evofeed.kernels.runtime.private_apis import repeat, repeatable, untraced

MOST = 1 << 16
MOST_PROGRAMS = 65535  # of a grid's second and third axis; of its first 2^31 - 1

_compiled: dict[tuple[Any, ...], Any] = {}
elsewhere: Callable[..., bool] | None = None
"""Asked to take a launch that was never seen before in place of the GPU: see `runtime.ahead`."""


class _Watched(threading.local):
    """Who is told of this thread's launches: what is repeated, its grid, its values."""

    by: Callable[[Any, tuple[int, ...], Sequence[Any]], None] | None = None


watched = _Watched()


def launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]) -> None:
    """Runs `kernel[grid](*args, **meta)` on the device of the first argument.

    Args:
        kernel: a `triton.jit` function whose parameters are those of `args`, in order, and
            then the compile-time ones.
        grid: one to three sizes.
        args: tensors, their tiles (`tiles_in`), numbers or None; the first is a tensor.
        meta: compile-time arguments by name, and `num_warps`, `num_stages` and such.

    Raises:
        KernelError: the first tensor is on the CPU.
        UnsupportedShape: no GPU launches so large a grid.
    """
    first = args[0]
    if INTERPRETER or type(first) not in _TENSORS:  # a subclass of Tensor: Triton decides
        if type(first).__name__ == "FakeTensor":  # without numbers: a compiler asks for shapes
            return
        _check(kernel, grid)
        if not watched.by:
            kernel[grid](*args, **meta)
            return
        with untraced():
            kernel[grid](*args, **meta)
        watched.by(partial(kernel[grid], **meta), (), args)
        return
    device = first.get_device()
    if device != torch.cuda.current_device():
        if device < 0:
            raise KernelError(
                f"{kernel.__name__} was given a tensor on the CPU: move it to a GPU first"
            )
        with torch.cuda.device(device):
            launch(kernel, grid, args, meta)
        return
    key: list[Any] = [id(kernel), device, *meta.values()]
    values: list[Any] = []
    lowest = 0
    for arg in args:
        if type(arg) in _TENSORS:
            at = arg.data_ptr()
            lowest |= at
            values.append(at)
            key.append(arg.dtype)
        elif type(arg) is TensorDescriptor:
            values.append(arg)
            key.append((arg.base.dtype, *arg.block_shape))
        else:
            values.append(arg)
            key.append(arg)
    if lowest & 15:  # Triton compiles for multiples of 16 bytes
        key += [value & 15 for value in values if type(value) is int]
    found = _compiled.get(found_by := tuple(key))
    if found is None:
        if elsewhere and elsewhere(kernel, grid, args, meta):
            return
        found = _launched_by_triton(kernel, grid, args, meta)
        if len(_compiled) >= MOST:  # sizes are part of the key: new ones would pile up
            _compiled.clear()
        _compiled[found_by] = found
        ready, constants = found
    else:
        ready, constants = found
        repeat(ready, (*grid, 1, 1)[:3], device, *values, *constants)
    if watched.by:
        watched.by(ready, (*grid, 1, 1)[:3], (*args, *constants))


def _launched_by_triton(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]
) -> tuple[tuple[Any, Any, Any], list[Any]]:
    """Launches, and says what the launcher needs to do it again, addresses and numbers apart."""
    _check(kernel, grid)
    compiled = kernel[grid](*args, **meta)
    constants = [meta[name] for name in kernel.arg_names[len(args) :]]
    return repeatable(compiled), constants


def _check(kernel: Any, grid: tuple[int, ...]) -> None:
    """Raises `UnsupportedShape` for a grid that no GPU launches; sizes decide it, so once each."""
    if grid[0] >= 2**31 or max(grid[1:], default=0) > MOST_PROGRAMS:
        raise UnsupportedShape(
            f"{kernel.__name__} would need a grid of {' x '.join(map(str, grid))} programs and a "
            f"GPU launches {2**31 - 1} x {MOST_PROGRAMS} x {MOST_PROGRAMS} at most: pass fewer "
            "sequences, residues or samples at once"
        )


@lru_cache(maxsize=64)
def _tile_layout(rows: int, columns: int, dtype: torch.dtype) -> Any:
    kind = gl.float16 if dtype is torch.float16 else gl.bfloat16
    return gl.NVMMASharedLayout.get_default_for([rows, columns], kind)


def tiles_in(x: torch.Tensor, rows: int, columns: int) -> Any:
    """What the copy engine of a Hopper card needs to move tiles of x `[M, N]`, in 16 bits.

    x starts at a multiple of 16 bytes, as does each of its rows, whose numbers lie side by side.
    """
    found = object.__new__(TensorDescriptor)  # what it checks costs as much as a launch
    found.base, found.shape, found.strides = x, list(x.shape), list(x.stride())
    found.block_shape, found.padding = [rows, columns], "zero"
    found.layout = _tile_layout(rows, columns, x.dtype)
    return found


class _Address:
    """Memory of which a launcher asks the address alone."""

    __slots__ = ("_at",)

    def __init__(self, at: int) -> None:
        self._at = at

    def data_ptr(self) -> int:
        return self._at


def tiles_at(address: int, like: Any) -> Any:
    """`tiles_in` of memory elsewhere, of which nothing else differs."""
    found = object.__new__(TensorDescriptor)
    found.__dict__.update(like.__dict__)
    found.base = _Address(address)
    return found


_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
