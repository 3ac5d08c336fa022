# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,no-any-return"
"""Triton, if it is installed, and the tensors that its kernels can run on.

`triton` and `tl` are imported from here, so that every module of this package
imports on a machine without Triton; there `usable` is False and callers
take their PyTorch path. On a CPU the kernels run only under Triton's
interpreter and only inside `interpreted()`: it is for tests, and slow.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.runtime.private_apis import in_transform, is_wrapper_subclass


class _Absent:
    """Stands in for a Triton name: kernels can be defined with it, not run."""

    def __getattr__(self, name: str) -> Any:
        return _Absent()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else _Absent()


class _Triton:
    """The package, with its two functions of sizes in plain Python.

    Triton's own versions can also be called by kernels and therefore unwrap their arguments: 4 us
    a call, and a block makes 250 calls a step. A compiler's symbolic sizes have no next power of
    2 and are returned as they are: nothing is launched with them.
    """

    def __init__(self, package: Any) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        return getattr(self._package, name)

    @staticmethod
    def cdiv(a: int, b: int) -> int:
        return -(-a // b)

    @staticmethod
    def next_power_of_2(n: int) -> int:
        return 1 << (n - 1).bit_length() if isinstance(n, int) else n


try:
    import triton as _package
    import triton.language as tl

    HAS_TRITON = True
    triton: Any = _Triton(_package)
except ImportError:  # macOS, Windows, or a CPU-only install
    HAS_TRITON = False
    triton, tl = _Absent(), _Absent()

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia import hopper
    from triton.experimental.gluon.language.nvidia.ampere import async_copy as cp
    from triton.experimental.gluon.language.nvidia.ampere import mma_v2
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    # called thread_barrier before Triton 3.7
    barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
    HAS_GLUON = True
except ImportError:  # before Triton 3.6
    HAS_GLUON = False
    gluon, gl, hopper, cp, barrier, mma_v2, mbarrier, tma = (_Absent() for _ in range(8))
    TensorDescriptor = None

INTERPRETER = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"


class Scope:
    """A switch that is on for the calls of all threads inside `with scope():`.

    Attributes:
        depth: number of blocks entered and not left; 0: off.
    """

    def __init__(self) -> None:
        self.depth, self._lock = 0, threading.Lock()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Turns the switch on inside the block."""
        with self._lock:
            self.depth += 1
        try:
            yield
        finally:
            with self._lock:
                self.depth -= 1


interpreted = Scope()
"""Lets kernels take CPU tensors (needs TRITON_INTERPRET=1 before the first import)."""
plain_versions = Scope()
"""Every op computes its plain version inside, for inputs that its kernels would take on a GPU."""


def launchable(*tensors: Tensor | None) -> bool:
    """True if a kernel runs on these tensors: `usable`, and outside of `plain_versions`."""
    return not plain_versions.depth and usable(*tensors)


def usable(*tensors: Tensor | None) -> bool:
    """True if a kernel can run on these tensors: all on one GPU, or interpreted on the CPU.

    The first, which is never None, must not be empty. Transforms need PyTorch's own operators.
    Weights that are still sharded over ranks are gathered by their module (FSDP2), and quantised
    tensors are read by PyTorch's operators.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    if any(is_wrapper_subclass(tensor) for tensor in present):
        return False
    if plain_versions.depth:
        return True
    if not HAS_TRITON or not present[0].numel():
        return False
    if not torch.compiler.is_compiling() and in_transform():
        return False
    if INTERPRETER:
        return interpreted.depth > 0 and all(t.device.type == "cpu" for t in present)
    device = present[0].device
    return device.type == "cuda" and all(tensor.device == device for tensor in present)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type of matrix products: autocast's where it is on, else the tensor's."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype is torch.float32:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def autocast_type(device_type: str) -> torch.dtype | None:
    """Autocast's type on devices of this type, None where autocast is off."""
    enabled = torch.is_autocast_enabled(device_type)
    return torch.get_autocast_dtype(device_type) if enabled else None


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """A context without autocast on x's device; where it is off already, one that costs nothing."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return _NULL_CONTEXT  # entering `torch.autocast` takes 4 us


_NULL_CONTEXT = contextlib.nullcontext()
_capabilities: dict[int, tuple[int, int]] = {}
_sm_counts: dict[int, int] = {}


def on_hopper(x: Tensor, dtype: torch.dtype) -> bool:
    """True if the hand-written kernels for Hopper's 16-bit products can run on x in `dtype`."""
    if not HAS_GLUON or INTERPRETER or x.device.type != "cuda":
        return False
    index = x.device.index or 0
    if index not in _capabilities:
        _capabilities[index] = torch.cuda.get_device_capability(index)
    return _capabilities[index] == (9, 0) and dtype in (torch.bfloat16, torch.float16)


def sm_count(x: Tensor) -> int:
    """Streaming multiprocessors of the tensor's GPU (4 under the interpreter)."""
    if x.device.type != "cuda":
        return 4
    index = x.device.index or 0
    if index not in _sm_counts:
        _sm_counts[index] = torch.cuda.get_device_properties(index).multi_processor_count
    return _sm_counts[index]
