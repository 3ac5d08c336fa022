"""cuBLASLt's products with an algorithm of one's own choice, through its C interface.

PyTorch takes the first algorithm that the library proposes, and offers no way to take another. The
library is the one that PyTorch has loaded; where there is none, or a call of it fails, there is no
plan, and the caller makes the product as it always did.

Letters: M and K rows and columns of a, K and N of b. cuBLASLt counts columns first: its first
factor is our b, its result our result turned.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64
from functools import cache
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.runtime.private_apis import stream_of

# Numbers of cublasLt.h and library_types.h, the same in all versions.
COMPUTE_FLOAT32, SCALE_FLOAT32 = 68, 0
TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
TURNED_FIRST, TURNED_SECOND = 3, 4  # of a product
BATCH, BATCH_STRIDE = 5, 6  # of a matrix
WORKSPACE = 1  # of a search


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", c_uint64 * 8),)


class _Proposal(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
        ("reserved", c_int * 4),
    )  # fmt: skip


@cache
def library() -> Any:
    """The library that PyTorch has loaded; None if there is none."""
    major = (torch.version.cuda or "0").split(".")[0]
    try:
        found = ctypes.CDLL(f"libcublasLt.so.{major}", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        found.cublasLtGetVersion.restype = c_size_t
        found.cublasLtMatmul.argtypes = [*[ctypes.c_void_p] * 14, c_size_t, ctypes.c_void_p]
    except (OSError, AttributeError):  # no such library, or no such system
        return None
    return found


def version() -> int:
    """Of the library; algorithms are saved for one version. 0 if there is none."""
    found = library()
    return 0 if found is None else int(found.cublasLtGetVersion())


class Failed(Exception):
    """A call of the library did not succeed."""


def _do(name: str, *args: Any) -> None:
    status = getattr(library(), name)(*args)
    if status:
        raise Failed(f"{name} gave {status}")


@cache
def _handle(device: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _do("cublasLtCreate", byref(handle))
    return handle


def _matrix(x: Tensor, turned: bool) -> ctypes.c_void_p:
    """Of the last two axes of x, of which one lies in order, the last unless it is `turned`."""
    rows, columns = x.shape[-2:]
    if turned:
        rows, columns = columns, rows
    matrix, apart = ctypes.c_void_p(), x.stride(-1 if turned else -2)
    _do(
        "cublasLtMatrixLayoutCreate", byref(matrix), TYPES[x.dtype], c_uint64(columns),
        c_uint64(rows), c_int64(apart),
    )  # fmt: skip
    if x.dim() == 3:
        for name, value in ((BATCH, c_int32(x.shape[0])), (BATCH_STRIDE, c_int64(x.stride(0)))):
            size = c_size_t(ctypes.sizeof(value))
            _do("cublasLtMatrixLayoutSetAttribute", matrix, name, byref(value), size)
    return matrix


class Plan:
    """out = a b: all products of a kind, which differ in addresses alone.

    Args:
        a, b, out: `[M, K]`, `[K, N]`, `[M, N]`, or several of each.

    Raises:
        Failed: the library does not know such a product.
    """

    def __init__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        self._description = ctypes.c_void_p()
        _do("cublasLtMatmulDescCreate", byref(self._description), COMPUTE_FLOAT32, SCALE_FLOAT32)
        turned = [is_turned(b), is_turned(a)]
        for name, value in zip((TURNED_FIRST, TURNED_SECOND), map(c_int32, turned), strict=True):
            size = c_size_t(ctypes.sizeof(value))
            _do("cublasLtMatmulDescSetAttribute", self._description, name, byref(value), size)
        self._matrices = _matrix(b, turned[0]), _matrix(a, turned[1]), _matrix(out, False)
        self._device = a.get_device()
        self._handle = _handle(self._device)
        self._one, self._zero = c_float(1), c_float(0)

    def proposals(self, most: int, workspace: int) -> list[tuple[bytes, int]]:
        """Algorithms and the workspace each needs, the one that PyTorch gets among the first."""
        preference, count = ctypes.c_void_p(), c_int()
        _do("cublasLtMatmulPreferenceCreate", byref(preference))
        size = c_uint64(workspace)
        _do("cublasLtMatmulPreferenceSetAttribute", preference, WORKSPACE, byref(size), c_size_t(8))
        found = (_Proposal * most)()
        first, second, result = self._matrices
        _do(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, self._description, first, second,
            result, result, preference, most, found, byref(count),
        )  # fmt: skip
        _do("cublasLtMatmulPreferenceDestroy", preference)
        proposals = (found[n] for n in range(count.value))
        return [(bytes(p.algorithm), p.workspace) for p in proposals if not p.state]

    def workspace(self, algorithm: bytes) -> int:
        """What a saved algorithm needs for this product.

        Raises:
            Failed: it cannot make this product.
        """
        found, chosen = _Proposal(), _Algorithm.from_buffer_copy(algorithm)
        first, second, result = self._matrices
        _do(
            "cublasLtMatmulAlgoCheck", self._handle, self._description, first, second, result,
            result, byref(chosen), byref(found),
        )  # fmt: skip
        if found.state:
            raise Failed(f"the algorithm cannot make this product: {found.state}")
        return int(found.workspace)

    def take(self, algorithm: bytes) -> None:
        """The algorithm of all calls from now on."""
        self._needs = self.workspace(algorithm)
        self._chosen = _Algorithm.from_buffer_copy(algorithm)

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> bool:
        """Launches it on the current stream; whether it could."""
        space = None
        if self._needs:
            space = torch.empty(self._needs, dtype=torch.uint8, device=a.device)
        first, second, result = self._matrices
        at = out.data_ptr()
        status = library().cublasLtMatmul(
            self._handle, self._description, byref(self._one), b.data_ptr(), first, a.data_ptr(),
            second, byref(self._zero), at, result, at, result, byref(self._chosen),
            None if space is None else space.data_ptr(), self._needs, stream_of(self._device),
        )  # fmt: skip
        return not status


def is_turned(x: Tensor) -> bool:
    """Whether the last but one axis lies in order, not the last."""
    return x.stride(-1) != 1
