"""Launches of Triton kernels that cost a few microseconds of the CPU's time instead of twenty.

Triton finds the compiled kernel of every launch anew from all its arguments. Here the
arguments that it specialises on make a short key, and a kernel seen before is launched
as it is; the first time, Triton's own launch runs.
"""

from __future__ import annotations

from typing import Any

import torch

from evofeed.kernels.backend import INTERPRETER

__all__ = ["launch"]

_compiled: dict[tuple[Any, ...], Any] = {}
_hooks = None


def launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]) -> None:
    """Runs `kernel[grid](*args, **meta)`.

    Args:
        kernel: a `triton.jit` function whose parameters are those of `args`, in order, and
            then the compile-time ones.
        grid: one to three sizes.
        args: tensors, numbers or None; the first is a tensor.
        meta: compile-time arguments by name, and `num_warps`, `num_stages` and such.
    """
    first = args[0]
    if INTERPRETER or type(first) not in _TENSORS:  # a fake tensor: somebody traces
        kernel[grid](*args, **meta)
        return
    device = first.device.index
    key: list[Any] = [kernel, device, *meta.values()]
    for arg in args:
        kind = type(arg)
        if kind in _TENSORS:
            key.append(arg.dtype)
            key.append(arg.data_ptr() & 15 == 0)
        elif kind is int:  # Triton compiles for 1, for multiples of 16, and for 64 bits
            key.append(1 if arg == 1 else 2 + (arg & 15 == 0) + 2 * (arg > 2147483647))
        else:
            key.append(kind)
    found = _compiled.get(found_by := tuple(key))
    if found is None:
        compiled = kernel[grid](*args, **meta)
        if compiled is not None:
            names = kernel.arg_names[len(args) :]
            _compiled[found_by] = compiled, tuple(meta[name] for name in names)
        return
    compiled, constants = found
    x, y, z = (*grid, 1, 1)[:3]
    compiled.run(
        x, y, z, torch._C._cuda_getCurrentRawStream(device), compiled.function,
        compiled.packed_metadata, None, None, None, *args, *constants,
    )  # fmt: skip


_TENSORS = (torch.Tensor, torch.nn.Parameter)
