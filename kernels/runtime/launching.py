"""Launches of Triton kernels that cost a few microseconds of the CPU's time instead of twenty.

At every launch Triton looks up the compiled kernel by everything it specialises on.
Here numbers, types and compile-time arguments are the key, and a launch with a known key
reuses the compiled kernel; the first launch with a key is Triton's own. Tensors go to the
launcher as addresses: for each tensor object it would call the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from evofeed.base.errors import KernelError, UnsupportedShape
from evofeed.kernels.runtime.backend import INTERPRETER, TensorDescriptor, gl
from evofeed.kernels.runtime.private_apis import (
    launch_compiled,
    launcher_of,
    without_torch_function,
)

MAX_COMPILED = 1 << 16
MAX_PROGRAMS = 65535  # along a grid's second and third axis; 2^31 - 1 along its first

_compiled: dict[tuple[Any, ...], Any] = {}
on_new_launch: Callable[..., bool] | None = None
"""Called with a launch that was not compiled yet; True if it takes it over: see `runtime.ahead`."""


class _Observer(threading.local):
    """A callback for this thread's launches: the launcher, its grid, its values."""

    notify: Callable[[Any, tuple[int, ...], Sequence[Any]], None] | None = None


observer = _Observer()


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
    if INTERPRETER or type(first) not in _TENSORS:  # a subclass of Tensor: left to Triton
        if type(first).__name__ == "FakeTensor":  # a compiler asks for shapes: no data
            return
        _check_grid(kernel, grid)
        if not observer.notify:
            kernel[grid](*args, **meta)
            return
        with without_torch_function():
            kernel[grid](*args, **meta)
        observer.notify(partial(kernel[grid], **meta), (), args)
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
    address_bits = 0
    for arg in args:
        if type(arg) in _TENSORS:
            address = arg.data_ptr()
            address_bits |= address
            values.append(address)
            key.append(arg.dtype)
        elif type(arg) is TensorDescriptor:
            values.append(arg)
            key.append((arg.base.dtype, *arg.block_shape))
        else:
            values.append(arg)
            key.append(arg)
    if address_bits & 15:  # Triton specialises on multiples of 16 bytes
        key += [value & 15 for value in values if type(value) is int]
    compiled = _compiled.get(cache_key := tuple(key))
    if compiled is None:
        if on_new_launch and on_new_launch(kernel, grid, args, meta):
            return
        _check_grid(kernel, grid)
        launcher = launcher_of(kernel[grid](*args, **meta))
        constants = [meta[name] for name in kernel.arg_names[len(args) :]]
        if len(_compiled) >= MAX_COMPILED:  # sizes are part of the key: new ones would pile up
            _compiled.clear()
        _compiled[cache_key] = launcher, constants
    else:
        launcher, constants = compiled
        launch_compiled(launcher, (*grid, 1, 1)[:3], device, *values, *constants)
    if observer.notify:
        observer.notify(launcher, (*grid, 1, 1)[:3], (*args, *constants))


def _check_grid(kernel: Any, grid: tuple[int, ...]) -> None:
    """Raises `UnsupportedShape` for a grid that no GPU launches; checked once for each key."""
    if grid[0] >= 2**31 or max(grid[1:], default=0) > MAX_PROGRAMS:
        raise UnsupportedShape(
            f"{kernel.__name__} would need a grid of {' x '.join(map(str, grid))} programs and a "
            f"GPU launches {2**31 - 1} x {MAX_PROGRAMS} x {MAX_PROGRAMS} at most: pass fewer "
            "sequences, residues or samples at once"
        )


@lru_cache(maxsize=64)
def _tile_layout(rows: int, columns: int, dtype: torch.dtype) -> Any:
    kind = gl.float16 if dtype is torch.float16 else gl.bfloat16
    return gl.NVMMASharedLayout.get_default_for([rows, columns], kind)


def tma_tiles(x: torch.Tensor, rows: int, columns: int) -> Any:
    """A descriptor for Hopper's copy engine (TMA) to move tiles of x `[M, N]`, in 16 bits.

    x and each of its rows start at multiples of 16 bytes; rows are contiguous.
    """
    descriptor = object.__new__(TensorDescriptor)  # its own checks cost as much as a launch
    descriptor.base, descriptor.shape, descriptor.strides = x, list(x.shape), list(x.stride())
    descriptor.block_shape, descriptor.padding = [rows, columns], "zero"
    descriptor.layout = _tile_layout(rows, columns, x.dtype)
    return descriptor


class _Address:
    """Stands in for a tensor of which a launcher reads only the address."""

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def tma_tiles_at(address: int, like: Any) -> Any:
    """The descriptor `like` with another address."""
    descriptor = object.__new__(TensorDescriptor)
    descriptor.__dict__.update(like.__dict__)
    descriptor.base = _Address(address)
    return descriptor


_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
