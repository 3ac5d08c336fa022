"""Launches of Triton kernels that cost a few microseconds of the CPU's time instead of twenty.

Triton finds the compiled kernel of every launch anew from all that it specialises on.
Here numbers, types and compile-time arguments are the key, and a launch seen before is
repeated as it was; the first time, Triton's own runs. Tensors go to the launcher as
addresses: of a tensor object it would ask the driver where it lies, one by one.
"""

from __future__ import annotations

from typing import Any

import torch

from evofeed.kernels.backend import INTERPRETER

__all__ = ["launch"]

MOST = 1 << 16

_compiled: dict[tuple[Any, ...], Any] = {}


def launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]) -> None:
    """Runs `kernel[grid](*args, **meta)` on the device of the first argument.

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
    device = first.get_device()
    if device != torch.cuda.current_device():
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
        else:
            values.append(arg)
            key.append(arg)
    if lowest & 15:  # Triton compiles for multiples of 16 bytes
        key += [value & 15 for value in values if type(value) is int]
    found = _compiled.get(found_by := tuple(key))
    if found is None:
        compiled = kernel[grid](*args, **meta)
        if compiled is not None and device >= 0:
            constants = [meta[name] for name in kernel.arg_names[len(args) :]]
            if len(_compiled) >= MOST:  # sizes are part of the key: ever new ones would pile up
                _compiled.clear()
            _compiled[found_by] = (
                compiled.run, compiled.function, compiled.packed_metadata, constants,
            )  # fmt: skip
        return
    run, function, metadata, constants = found
    x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
    run(
        x, y, z, torch._C._cuda_getCurrentRawStream(device), function, metadata,
        None, None, None, *values, *constants,
    )  # fmt: skip


_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
