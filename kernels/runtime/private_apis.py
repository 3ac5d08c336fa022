"""All private names of PyTorch and Triton that the kernels use.

No public name does the same at their cost. They were read and run on the versions in `VERSIONS`;
with another version installed a test fails, and this file must be checked again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

VERSIONS = {"torch": ("2.8", "2.13"), "triton": ("3.4", "3.7")}
"""The first and last versions that these names were checked with."""


F = TypeVar("F", bound=Callable[..., Any])

DispatchMode = TorchDispatchMode
"""A context whose `__torch_dispatch__` is called for every operator below autograd and autocast."""
READ, MOVED = torch.ops.aten._local_scalar_dense.default, torch.ops.aten._to_copy.default
"""Operators that read a number to the host, and that copy a tensor to another device."""


# --- autograd -------------------------------------------------------------------------------------


def function_apply(function: type[torch.autograd.Function]) -> Any:
    """`function.apply` without its search for functorch in each argument: saves 10 us."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def is_wrapper_subclass(tensor: Tensor) -> bool:
    """True if its numbers are in inner tensors: quantised, sharded (FSDP2)."""
    # `is_traceable_wrapper_subclass` is False for them while the compiler traces
    return hasattr(type(tensor), "__tensor_flatten__")


def functorch_active() -> bool:
    """True inside a transform of `torch.func`."""
    return torch._C._are_functorch_transforms_active()


def in_transform() -> bool:
    """True inside a transform: `torch.func`, forward-mode AD or `torch.jit.trace`."""
    return (
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def as_non_view(result: Tensor) -> Tensor:
    """The result of an autograd function as a tensor that can be changed in place.

    Autograd forbids in-place changes of a view that a custom function returned.
    """
    if result._is_view():
        return torch.ops.aten._unsafe_view.default(result, result.shape)  # type: ignore[no-any-return]
    return result


def storage_id(tensor: Tensor) -> int:
    """An id that is equal for tensors that share memory, also for those without data."""
    return int(tensor.untyped_storage()._cdata)


def saved_tensor_hooks_active() -> bool:
    """True inside `torch.autograd.graph.saved_tensors_hooks`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def backward_runs() -> bool:
    """True inside a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def constant_when_compiled(function: F) -> F:
    """`torch.compiler.assume_constant_result`, which first imports the compiler: seconds."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def no_modes() -> Any:
    """A context without dispatch modes, such as that of fake tensors."""
    return _disable_current_modes()


# --- global settings ------------------------------------------------------------------------------


def tf32_allowed() -> bool:
    """True if the GPU's float32 products may use TF32.

    PyTorch has an old and a new setting; the public `allow_tf32` raises where the new one was set.
    """
    if hasattr(torch._C, "_get_fp32_precision_getter"):  # from 2.9 on
        return bool(torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32")
    return bool(torch.backends.cuda.matmul.allow_tf32)


# --- many tensors at once -------------------------------------------------------------------------


def copy_all(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copies each source into its destination, many tensors of one type a launch."""
    torch._foreach_copy_(list(to), list(source))


def norms(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Norm of each tensor, a scalar on its device, many tensors a launch."""
    return torch._foreach_norm(list(tensors))


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    """Views of a flat tensor in the shapes of others, one after the other."""
    return _unflatten_dense_tensors(flat, list(like))  # type: ignore[no-untyped-call, no-any-return]


def product_relu(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """relu(a b + bias) by cuBLAS, with the relu in its epilogue."""
    return torch._addmm_activation(bias, a, b)


_UNSPLIT = 1 << 22
"""Elements of a product whose tiles keep a card busy, so that cuBLAS need not split its sums."""


def scheduled_ahead(product: Callable[..., Tensor], a: Tensor, b: Tensor, **out: Tensor) -> Tensor:
    """`product(a, b)`; a large one in a CUDA graph capture runs without cuBLAS's workspace.

    With a workspace cuBLAS assigns tiles by a counter in it, cleared by a memset before every
    product, which adjacent kernels wait for: 2 to 5 us on an H200. Without one tiles are assigned
    ahead of the launch and computed alike, but long sums cannot be split: gradients of weights and
    small products keep the workspace, to have the same bits as eagerly. Products with a bias keep
    it too, because PyTorch warns about their workspace.
    """
    if has_torch_function((a, b)):  # a trace, which calls this at every replay
        traced: Tensor = handle_torch_function(scheduled_ahead, (a, b), product, a, b, **out)
        return traced
    large = a.element_size() == 2 and a.shape[:-1].numel() * b.shape[-1] >= _UNSPLIT
    recorded = large and a.is_cuda and torch.cuda.is_current_stream_capturing()
    if not recorded or torch.are_deterministic_algorithms_enabled():  # requires a workspace
        return product(a, b, **out)
    torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]  # allocates its workspace
    with _no_workspace():
        return product(a, b, **out)


@contextlib.contextmanager
def _no_workspace() -> Iterator[None]:
    size: Any = getattr(torch.backends.cuda, "cublas_workspace_size", None)  # from 2.12 on
    name = "CUBLAS_WORKSPACE_CONFIG"  # older versions read it at every product
    previous = size() if size else os.environ.get(name)
    if size:
        size(0)
    else:
        os.environ[name] = ":0:0"
    try:
        yield
    finally:
        if size:
            size(previous)
        elif previous is None:
            del os.environ[name]
        else:
            os.environ[name] = previous


# --- Triton's launcher ----------------------------------------------------------------------------


def launcher_of(compiled: Any) -> tuple[Any, Any, Any]:
    """The launcher of a compiled kernel, and its arguments that stay the same."""
    return compiled.run, compiled.function, compiled.packed_metadata


def launch_compiled(
    launcher: tuple[Any, Any, Any], grid: tuple[int, ...], device: int, *values: Any
) -> None:
    """Launches a grid of three sizes on the device's current stream.

    `values` are addresses, numbers and constants. The three Nones are the launch's metadata
    and hooks, for Triton's profilers.
    """
    run, function, metadata = launcher
    stream = torch._C._cuda_getCurrentRawStream(device)
    run(*grid, stream, function, metadata, None, None, None, *values)


def launch_source(run: str, grid: str, function: str, metadata: str, values: str) -> str:
    """Source of a call like `launch_compiled`, from its arguments' sources; `stream` is current."""
    return f"{run}({grid}, stream, {function}, {metadata}, None, None, None, {values})"


def raw_stream(device: int) -> int:
    """The device's current stream as a launcher takes it, a number."""
    return int(torch._C._cuda_getCurrentRawStream(device))


def without_torch_function() -> Any:
    """A context that hides calls from modes of `torch.overrides`."""
    return torch._C.DisableTorchFunction()


# --- memory of other GPUs -------------------------------------------------------------------------


def peer_buffers(
    group: Any, device: torch.device, nbytes: int, max_peers: int
) -> list[Tensor] | None:
    """A zeroed buffer of bytes on each GPU of a group, all of them mapped into this process.

    None on all ranks where there is one GPU, more than `max_peers`, or some cannot reach others.
    """
    import torch.distributed as dist

    size = dist.get_world_size(group)
    if device.type != "cuda" or not 1 < size <= max_peers:
        return None
    buffers: list[Tensor] | None = None
    try:
        import torch.distributed._symmetric_memory as symmetric

        # Multicast is not needed, and setting it up has side effects outside of the process.
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        local = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
        local.zero_()
        handle = symmetric.rendezvous(local, group=group)
        buffers = [
            local if rank == handle.rank else handle.get_buffer(rank, (nbytes,), torch.uint8)
            for rank in range(size)
        ]
    except (ImportError, AttributeError, RuntimeError):  # no such GPUs, or no such torch
        pass
    failed = torch.tensor(float(buffers is None), device=device)
    dist.all_reduce(
        failed, op=dist.ReduceOp.MAX, group=group
    )  # also a barrier: all buffers are zeroed after it
    return None if failed.item() else buffers
