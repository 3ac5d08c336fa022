"""Short fills of a CUDA graph become kernels before it is instantiated.

cuBLAS clears a few counters before many of its products. On a stream that costs nothing much; as a
node of a graph a fill is another engine's work, which the kernels before and after it wait for:
6 to 10 us in place of one.
"""

from __future__ import annotations

import ctypes
import logging
from ctypes import POINTER, byref, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

import torch

__all__ = ["fill_by_kernels"]

MOST = 1 << 20  # bytes: a longer fill takes longer than two engines need to agree
_FILL = 2  # CU_GRAPH_NODE_TYPE_MEMSET
_THREADS = 256
_LOG = logging.getLogger(__name__)
_KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry memset_kernel(.param .u64 to, .param .u32 value, .param .u32 words)
{
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .b64 %d<2>;
    ld.param.u64 %d0, [to];
    ld.param.u32 %r0, [value];
    ld.param.u32 %r1, [words];
    cvta.to.global.u64 %d0, %d0;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.u32 %r2, %r3, %r4, %r2;
    setp.ge.u32 %p, %r2, %r1;
    @%p ret;
    mul.wide.u32 %d1, %r2, 4;
    add.u64 %d1, %d0, %d1;
    st.global.u32 [%d1], %r0;
    ret;
}
"""


class _Fill(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = (
        ("to", c_uint64), ("pitch", c_size_t), ("value", c_uint), ("size", c_uint),
        ("width", c_size_t), ("height", c_size_t),
    )  # fmt: skip


class _Launch(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS."""

    _fields_ = (
        ("function", c_void_p), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint),
        ("arguments", POINTER(c_void_p)), ("extra", c_void_p), ("kernel", c_void_p),
        ("context", c_void_p),
    )  # fmt: skip


def fill_by_kernels(graph: int) -> int:
    """Replaces the fills of up to `MOST` bytes; returns how many.

    Where the driver refuses, what is left stays as it is.

    Args:
        graph: a `CUgraph` (`torch.cuda.CUDAGraph.raw_cuda_graph`) of the current device.
    """
    handle, found = c_void_p(graph), 0
    try:
        for node in _listed("cuGraphGetNodes", handle):
            fill = _fill_of(node)
            if fill is not None and _may_become_a_kernel(fill):
                _replace(handle, node, fill)
                found += 1
    except (RuntimeError, OSError, AttributeError) as error:  # no such driver, or no such call
        _LOG.warning("fills of a CUDA graph stay: %s", error)
    return found


def _fill_of(node: c_void_p) -> _Fill | None:
    """What a node fills; None for one that fills nothing."""
    kind, fill = ctypes.c_int(), _Fill()
    _call("cuGraphNodeGetType", node, byref(kind))
    if kind.value != _FILL:
        return None
    _call("cuGraphMemsetNodeGetParams", node, byref(fill))
    return fill


def _may_become_a_kernel(fill: _Fill) -> bool:
    """Whether it is one short row of whole words."""
    nbytes = fill.width * fill.size
    return fill.height == 1 and 0 < nbytes <= MOST and not (nbytes % 4 or fill.to % 4)


def _word(fill: _Fill) -> int:
    """What 32 bits of it are."""
    value = fill.value & ((1 << 8 * fill.size) - 1)
    return int(sum(value << 8 * at for at in range(0, 4, fill.size)))


def _replace(graph: c_void_p, node: c_void_p, fill: _Fill) -> None:
    words = fill.width * fill.size // 4
    values = c_uint64(fill.to), c_uint(_word(fill)), c_uint(words)
    arguments = (c_void_p * 3)(*(ctypes.addressof(value) for value in values))
    launch = _Launch(
        function=_function(torch.cuda.current_device()), block=(_THREADS, 1, 1),
        grid=(-(-words // _THREADS), 1, 1), arguments=arguments,
    )  # fmt: skip
    before, after = (
        _listed(f"cuGraphNodeGet{which}", node) for which in ("Dependencies", "DependentNodes")
    )
    kernel = c_void_p()
    _call(
        "cuGraphAddKernelNode_v2", byref(kernel), graph, _array(before), c_size_t(len(before)),
        byref(launch),
    )  # fmt: skip
    _call(
        "cuGraphAddDependencies", graph, _array([kernel] * len(after)), _array(after),
        c_size_t(len(after)),
    )  # fmt: skip
    _call("cuGraphDestroyNode", node)


def _listed(name: str, of: c_void_p) -> list[c_void_p]:
    """What a call lists that is asked for the length first."""
    count = c_size_t()
    _call(name, of, None, byref(count))
    nodes = (c_void_p * count.value)()
    if count.value:
        _call(name, of, nodes, byref(count))
    return [c_void_p(node) for node in nodes]


def _array(nodes: list[c_void_p]) -> Any:
    return (c_void_p * len(nodes))(*(node.value for node in nodes))


@cache
def _function(device: int) -> int:
    """The kernel, on a device that is the current one."""
    module, function = c_void_p(), c_void_p()
    _call("cuModuleLoadData", byref(module), _KERNEL)
    _call("cuModuleGetFunction", byref(function), module, b"memset_kernel")
    assert function.value is not None
    return function.value


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    error = getattr(_driver(), name)(*arguments)
    if error:
        raise RuntimeError(f"CUDA's driver gave error {error} at {name}")
