"""Every private name of PyTorch and Triton that the kernels use, and nowhere else.

Each is here because no public one does the same at its cost. They were read and run on the
versions in `VERSIONS`; on another one a test says so, and this is the file to read again.
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
"""From and up to which versions these names hold."""


F = TypeVar("F", bound=Callable[..., Any])

DispatchMode = TorchDispatchMode
"""A context whose `__torch_dispatch__` is called for every operator below autograd and autocast."""
READ, MOVED = torch.ops.aten._local_scalar_dense.default, torch.ops.aten._to_copy.default
"""Operators that give the host a number, and that make a tensor on another device."""


# --- autograd -------------------------------------------------------------------------------------


def function_apply(function: type[torch.autograd.Function]) -> Any:
    """What `function.apply` calls after a look for functorch at each argument: saves 10 us."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def is_of_several(tensor: Tensor) -> bool:
    """Whether its numbers are in other tensors: quantised, split (FSDP2)."""
    # `is_traceable_wrapper_subclass`, which is False of those where the compiler traces it
    return hasattr(type(tensor), "__tensor_flatten__")


def functorch_active() -> bool:
    """Whether a transform of `torch.func` runs."""
    return torch._C._are_functorch_transforms_active()


def transformed() -> bool:
    """Whether what runs is more than a call: `torch.func`, forward-mode AD or `torch.jit.trace`."""
    return (
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def no_view(result: Tensor) -> Tensor:
    """The result of a function of ours, which may then be changed in place as any other.

    Autograd lets nobody change a view that such a function made.
    """
    if result._is_view():
        return torch.ops.aten._unsafe_view.default(result, result.shape)  # type: ignore[no-any-return]
    return result


def memory_of(tensor: Tensor) -> int:
    """What tensors that share memory have in common, those without numbers too."""
    return int(tensor.untyped_storage()._cdata)


def saved_tensor_hooks_active() -> bool:
    """Whether `torch.autograd.graph.saved_tensors_hooks` are in force."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def backward_runs() -> bool:
    """Whether this is called inside a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def constant_when_compiled(function: F) -> F:
    """`torch.compiler.assume_constant_result`, which first imports the compiler: seconds."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def no_modes() -> Any:
    """A context without modes that see operators, such as one of fake tensors."""
    return _disable_current_modes()


# --- what is set for all calls --------------------------------------------------------------------


def tf32_allowed() -> bool:
    """Whether the GPU's float32 products may be in TF32.

    There is an old and a new way to say so; the public `allow_tf32` raises where the new one was
    used.
    """
    if hasattr(torch._C, "_get_fp32_precision_getter"):  # from 2.9 on
        return bool(torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32")
    return bool(torch.backends.cuda.matmul.allow_tf32)


# --- many tensors at once -------------------------------------------------------------------------


def copy_all(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copies each source into its place, a launch for many of one type."""
    torch._foreach_copy_(list(to), list(source))


def norms(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Norm of each tensor, a scalar on its device, a launch for many."""
    return torch._foreach_norm(list(tensors))


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    """Views of a flat tensor in the shapes of others, one after the other."""
    return _unflatten_dense_tensors(flat, list(like))  # type: ignore[no-untyped-call, no-any-return]


def product_relu(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """relu(a b + bias) by cuBLAS, which does the relu on the way out."""
    return torch._addmm_activation(bias, a, b)


_UNSPLIT = 1 << 22
"""Numbers of a product whose tiles keep a card busy: cuBLAS need not split their sums."""


def scheduled_ahead(product: Callable[..., Tensor], a: Tensor, b: Tensor, **out: Tensor) -> Tensor:
    """`product(a, b)`; a large one in a graph that is recorded, by a cuBLAS without a workspace.

    With a workspace cuBLAS hands out tiles by a counter in it, and clears that by a memset before
    every product, which the kernels around wait for: 2 to 5 us on an H200. Without one it knows
    ahead who makes which tile, and makes it alike. It cannot split long sums then: gradients of
    weights and small products have the same bits as eagerly by keeping theirs. Products with a
    bias do too, as PyTorch warns of their workspace.
    """
    if has_torch_function((a, b)):  # a trace, which asks again whenever it is repeated
        traced: Tensor = handle_torch_function(scheduled_ahead, (a, b), product, a, b, **out)
        return traced
    large = a.element_size() == 2 and a.shape[:-1].numel() * b.shape[-1] >= _UNSPLIT
    recorded = large and a.is_cuda and torch.cuda.is_current_stream_capturing()
    if not recorded or torch.are_deterministic_algorithms_enabled():  # which wants its workspace
        return product(a, b, **out)
    torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]  # its workspace is there now
    with _no_workspace():
        return product(a, b, **out)


@contextlib.contextmanager
def _no_workspace() -> Iterator[None]:
    size: Any = getattr(torch.backends.cuda, "cublas_workspace_size", None)  # from 2.12 on
    name = "CUBLAS_WORKSPACE_CONFIG"  # read at every product where there is no such function
    before = size() if size else os.environ.get(name)
    if size:
        size(0)
    else:
        os.environ[name] = ":0:0"
    try:
        yield
    finally:
        if size:
            size(before)
        elif before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


# --- Triton's launcher ----------------------------------------------------------------------------


def repeatable(compiled: Any) -> tuple[Any, Any, Any]:
    """What of a compiled kernel its launcher takes again."""
    return compiled.run, compiled.function, compiled.packed_metadata


def repeat(ready: tuple[Any, Any, Any], grid: tuple[int, ...], device: int, *values: Any) -> None:
    """Launches a grid of three sizes on the device's current stream.

    `values` are addresses, numbers and constants. The three Nones are the launch's metadata
    and hooks, for profilers of Triton's.
    """
    run, function, metadata = ready
    stream = torch._C._cuda_getCurrentRawStream(device)
    run(*grid, stream, function, metadata, None, None, None, *values)


def launch_text(run: str, grid: str, function: str, metadata: str, values: str) -> str:
    """Source of what `repeat` does where `stream` is the current one, from those of its parts."""
    return f"{run}({grid}, stream, {function}, {metadata}, None, None, None, {values})"


def stream_of(device: int) -> int:
    """The device's current stream, as a launcher takes it."""
    return int(torch._C._cuda_getCurrentRawStream(device))


def untraced() -> Any:
    """A context in which modes of `torch.overrides` see nothing."""
    return torch._C.DisableTorchFunction()


# --- memory of other GPUs -------------------------------------------------------------------------


def peer_buffers(group: Any, device: torch.device, nbytes: int, most: int) -> list[Tensor] | None:
    """A buffer of bytes on each GPU of a group, all of them open to this process, full of zeros.

    None where there is only one GPU, more than `most`, or not all can reach each other; all ranks
    agree on that.
    """
    import torch.distributed as dist

    size = dist.get_world_size(group)
    if device.type != "cuda" or not 1 < size <= most:
        return None
    buffers: list[Tensor] | None = None
    try:
        import torch.distributed._symmetric_memory as symmetric

        # Multicast is not needed, and setting it up has side effects outside of the process.
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        own = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
        own.zero_()
        handle = symmetric.rendezvous(own, group=group)
        buffers = [
            own if rank == handle.rank else handle.get_buffer(rank, (nbytes,), torch.uint8)
            for rank in range(size)
        ]
    except (ImportError, AttributeError, RuntimeError):  # no such GPUs, or no such torch
        pass
    failed = torch.tensor(float(buffers is None), device=device)
    dist.all_reduce(failed, op=dist.ReduceOp.MAX, group=group)  # zeros are there when it is over
    return None if failed.item() else buffers
