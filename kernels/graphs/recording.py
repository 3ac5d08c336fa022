# mypy: disable-error-code="no-untyped-call"
"""One forward pass of a module and its backward, recorded as two CUDA graphs.

A graph reads and writes fixed addresses. Inputs and gradients are copied there and results are
copied from there, so that tensors of the caller never change, even if the module works in place.
Parameters are read where they are. The recording differentiates aliases of them, and the
gradients leave through autograd: hooks, DDP and accumulation work as in eager mode. Random
numbers come from PyTorch's generator at every replay, as many as the eager module draws. A result
that is an input, or None, is returned as it is.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evofeed.base.errors import KernelError
from evofeed.kernels.runtime.backend import autocast_type
from evofeed.kernels.runtime.one_pass import unshared
from evofeed.kernels.runtime.private_apis import copy_all, function_apply, unflatten

WARM_UP = 2  # eager runs in which kernels are compiled and libraries select theirs

Slots = list[tuple[dict[str, Any], str]]
"""Where parameters and buffers are stored: a module's dictionary, and the name in it."""


class _PendingPass:
    """A forward pass before its backward; collected with the caller's autograd graph."""

    done = False


class Recording:
    """Replays `forward`, and its backward, over copies of the inputs.

    Args:
        forward: from tensors to a tensor or a sequence of tensors; must not wait for the device.
        inputs: the first inputs; later ones have the same shapes, types and device.
        slots: of the parameters and buffers that `forward` reads.
        recompute: the backward pass recomputes the forward pass from inputs that the caller's
            autograd graph keeps: the recording keeps nothing between calls.

    Raises:
        RuntimeError: `forward` cannot be recorded.
    """

    def __init__(
        self, forward: Callable[[list[Tensor]], Any], inputs: Sequence[Tensor], slots: Slots,
        recompute: bool = False,
    ) -> None:  # fmt: skip
        device, grad = inputs[0].device, torch.is_grad_enabled()
        self.device, self.recompute = device, recompute
        if recompute or not grad:
            self._memory = _shared_like(inputs, "inputs")
        else:
            self._memory = [torch.empty_like(t) for t in inputs]
        self._inputs = [
            memory.detach().requires_grad_(grad and t.requires_grad)
            for memory, t in zip(self._memory, inputs, strict=True)
        ]
        self._results: list[Tensor] = []  # keep the autograd graph and its saved tensors alive
        self._output_grads: list[Tensor] = []
        self._weight_groups: list[list[int]] = []
        self._pending: Callable[[], _PendingPass | None] = lambda: None

        def run_forward() -> list[Tensor]:
            versions = [t._version for t in self._inputs]
            with _autocast_without_cache(device), unshared():
                returned = forward(self._inputs)
            self._single = isinstance(returned, Tensor)
            results = [returned] if self._single else list(returned)
            if not all(t is None or isinstance(t, Tensor) for t in results):
                raise RuntimeError("it does not return tensors only")
            unchanged = {id(None): len(versions)}
            for index, (t, version) in enumerate(zip(self._inputs, versions, strict=True)):
                if t._version == version:  # otherwise it was changed in place: a result
                    unchanged[id(t)] = index
            self._passed_inputs = [unchanged.get(id(t)) for t in results]
            self._results = [t for t in results if id(t) not in unchanged]
            return self._results

        def run_backward() -> list[Tensor]:
            results = [t for t in self._results if t.requires_grad]
            grads = torch.autograd.grad(
                results, leaves, self._output_grads, retain_graph=True, allow_unused=True
            )
            input_grads, weight_grads = list(grads[:count]), grads[count:]
            self._input_used = [g is not None for g in input_grads]
            self._weight_groups = _indices_by_dtype(weight_grads)
            flat = [g for g in input_grads if g is not None]
            for indices in self._weight_groups:
                flat.append(torch.cat([weight_grads[n].reshape(-1) for n in indices]))
            return flat

        with torch.no_grad():
            copy_all(self._inputs, inputs)
        with _parameter_aliases(slots) as aliases:
            trained = [(slot, leaf) for slot, leaf in aliases if grad and leaf.requires_grad]
            self._weight_slots = [slot for slot, _ in trained]
            self._weights = [leaf for _, leaf in trained]
            leaves = [t for t in self._inputs if t.requires_grad]
            count = len(leaves)
            leaves += self._weights
            with _warm_up(device):
                for _ in range(WARM_UP):
                    outputs = run_forward()
                    self._differentiable = [t.requires_grad for t in outputs]
                    differentiable = [t for t in outputs if t.requires_grad]
                    self._output_grads = _shared_like(differentiable, "gradients")
                    grads = run_backward() if self._output_grads else []
            if self._output_grads and recompute:

                def forward_only() -> list[Tensor]:
                    with torch.no_grad():
                        return run_forward()

                def recomputed() -> list[Tensor]:
                    run_forward()
                    return run_backward()

                self._outputs, self._replay = _recorded_shared(device, outputs, forward_only)
                self._grads, self._replay_backward = _recorded_shared(device, grads, recomputed)
                self._results = []
            elif self._output_grads:
                # Tensors saved for the backward pass must outlive other replays: private memory.
                self._outputs, self._replay = _recorded(device, None, run_forward)
                self._grads, self._replay_backward = _recorded_shared(device, grads, run_backward)
            else:
                self._outputs, self._replay = _recorded_shared(device, outputs, run_forward)

    def awaits_backward(self) -> bool:
        """True if the backward of a forward pass has not run yet."""
        pending = self._pending()
        return pending is not None and not pending.done

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        """The results of the module's forward for these inputs."""
        if self._output_grads:
            weights = [owner[name] for owner, name in self._weight_slots]
            outputs = iter(_replayed(self, len(inputs), *inputs, *weights))
        else:
            outputs = iter(self.forward(inputs))
        passed = [*inputs, None]
        results = [next(outputs) if n is None else passed[n] for n in self._passed_inputs]
        return results[0] if self._single else tuple(results)

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The results, in new memory."""
        with replay_lock, torch.no_grad():
            copy_all(self._inputs, inputs)
            self._replay()
            return [t.detach().clone() for t in self._outputs]

    def begin(self) -> _PendingPass:
        """Reserves the recording for one forward pass and its backward."""
        pending = _PendingPass()
        self._pending = weakref.ref(pending)
        return pending

    def backward(self, pending: _PendingPass, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """Gradients of the inputs and of the weights, in new memory."""
        if self._pending() is not pending:
            raise KernelError(
                "a recorded module's backward pass was run again after another forward "
                "pass: call to_fused(model) without cuda_graphs to keep graphs for longer"
            )
        pending.done = True
        return self._backward(grads)

    def recompute_backward(
        self, inputs: Sequence[Tensor], rng_state: Tensor, grads: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Gradients as `backward`; recomputes the forward pass with its random numbers."""
        with torch.no_grad():
            copy_all(self._inputs, inputs)
        with drawing_from(self.device, rng_state):
            return self._backward(grads)

    def _backward(self, grads: Sequence[Tensor]) -> list[Tensor | None]:
        copy_all(self._output_grads, list(itertools.compress(grads, self._differentiable)))
        self._replay_backward()
        clones = (t.clone() for t in self._grads)
        used = iter(self._input_used)
        inputs = [next(clones) if t.requires_grad and next(used) else None for t in self._inputs]
        weights: list[Tensor | None] = [None] * len(self._weights)
        for indices, flat in zip(self._weight_groups, clones, strict=True):
            parts = unflatten(flat, [self._weights[n] for n in indices])
            for n, part in zip(indices, parts, strict=True):
                weights[n] = part
        return inputs + weights

    def non_differentiable(self, results: Sequence[Tensor]) -> list[Tensor]:
        """The results without a gradient."""
        return [t for t, grad in zip(results, self._differentiable, strict=True) if not grad]


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: Recording, count: int, *tensors: Tensor) -> Any:
        ctx.recording = recording
        if recording.recompute:
            ctx.rng_state = generator_state(recording.device)
            ctx.save_for_backward(*tensors[:count])
        else:
            ctx.pending = recording.begin()
        results = recording.forward(tensors[:count])
        ctx.mark_non_differentiable(*recording.non_differentiable(results))
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if ctx.recording.recompute:
            input_grads = ctx.recording.recompute_backward(ctx.saved_tensors, ctx.rng_state, grads)
        else:
            input_grads = ctx.recording.backward(ctx.pending, grads)
        return None, None, *input_grads


# Skips functorch's check of each of a hundred weights in `apply`; nothing is recorded under it.
_replayed = function_apply(_Replayed)


def _indices_by_dtype(grads: Sequence[Tensor | None]) -> list[list[int]]:
    """Indices of gradients by type; those of odd sizes last, so that the others are aligned."""
    present = [(n, g) for n, g in enumerate(grads) if g is not None]
    by_dtype: dict[torch.dtype, list[int]] = {}
    for n, g in sorted(present, key=lambda pair: pair[1].numel() % 8 != 0):
        by_dtype.setdefault(g.dtype, []).append(n)
    return list(by_dtype.values())


@contextlib.contextmanager
def _parameter_aliases(slots: Slots) -> Iterator[list[tuple[tuple[dict[str, Any], str], Tensor]]]:
    """Replaces parameters by leaves on the same memory; yields each alias and its slot."""
    values = [owner[name] for owner, name in slots]
    aliases: dict[int, Tensor] = {}
    yielded = []
    for slot, value in zip(slots, values, strict=True):
        if id(value) not in aliases:
            aliases[id(value)] = value.detach().requires_grad_(value.requires_grad)
            yielded.append((slot, aliases[id(value)]))
    for (owner, name), value in zip(slots, values, strict=True):
        owner[name] = aliases[id(value)]
    try:
        yield yielded
    finally:
        for (owner, name), value in zip(slots, values, strict=True):
            owner[name] = value


# --- the device -----------------------------------------------------------------------------------

replay_lock = threading.RLock()  # threads that predict share a stream, and so its memory
_streams: dict[torch.device, torch.cuda.Stream] = {}
_pools: dict[Hashable, Any] = {}
_shared: weakref.WeakValueDictionary[Hashable, Tensor] = weakref.WeakValueDictionary()


def _shared_like(tensors: Sequence[Tensor], role: str) -> list[Tensor]:
    """Buffers for one call, shared by all recordings of a stream."""
    next_index: dict[Hashable, int] = {}
    memories = []
    for t in tensors:
        key = role, t.shape, t.stride(), t.dtype, t.device, stream_id(t.device)
        index = next_index[key] = next_index.get(key, -1) + 1
        memory = _shared.get((key, index))
        if memory is None:
            memory = _shared[key, index] = torch.zeros_like(t, requires_grad=False)
        memories.append(memory)
    return memories


def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which graphs of a device are recorded."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def record_graph(
    device: torch.device, pool: Any, function: Callable[[], Any]
) -> tuple[Any, Callable[[], None]]:
    """Records `function` as a CUDA graph: its results, at fixed addresses, and the replay.

    Args:
        device: a GPU.
        pool: memory shared with other recordings (`torch.cuda.graph_pool_handle()`), or None for
            private memory.
        function: must not wait for the device.

    Raises:
        RuntimeError: it cannot be recorded; the random generator is restored.
    """
    # `torch.compile` leaves cycles that keep the pass it compiled in: its parameters' nodes belong
    # to the stream of that pass, which a recording may not wait for. Aliases have separate nodes,
    # so a module's recordings, of which there are hundreds, need not collect.
    gc.collect()
    return _recorded(device, pool, function)


def _recorded(
    device: torch.device, pool: Any, function: Callable[[], Any]
) -> tuple[Any, Callable[[], None]]:
    generator = torch.cuda.default_generators[device.index]
    state, graph = generator.clone_state(), torch.cuda.CUDAGraph()
    # thread_local: a loader's thread may allocate meanwhile.
    options = {
        "pool": pool, "stream": _recording_stream(device), "capture_error_mode": "thread_local",
    }  # fmt: skip
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, **options):
            outputs = function()
    except RuntimeError:
        # A failed recording leaves the generator in its state for recording, also for earlier
        # recordings, which draw from it: a small recording that succeeds resets it.
        try:
            with torch.cuda.device(device), torch.cuda.graph(torch.cuda.CUDAGraph(), **options):
                torch.zeros(1, device=device)
        except RuntimeError:
            generator.graphsafe_set_state(state)
        raise
    return outputs, graph.replay


@contextlib.contextmanager
def _autocast_without_cache(device: torch.device) -> Iterator[None]:
    """Autocast as set, without its cache: a cached cast would replay a parameter's old values."""
    dtype = autocast_type(device.type)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False):
        yield


def stream_id(device: torch.device) -> int:
    """The current stream's handle: recordings of two streams share no memory."""
    return torch.cuda.current_stream(device).cuda_stream


@contextlib.contextmanager
def _warm_up(device: torch.device) -> Iterator[None]:
    """Runs on the recording stream, and restores the random generator."""
    stream = _recording_stream(device)
    with drawing_from(device, generator_state(device)):
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(device).wait_stream(stream)


def generator_state(device: torch.device) -> Tensor:
    """State of the device's random generator."""
    return _generator(device).get_state()


@contextlib.contextmanager
def drawing_from(device: torch.device, state: Tensor) -> Iterator[None]:
    """Sets the state of the random generator, and restores it afterwards."""
    generator = _generator(device)
    previous = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(previous)


def _generator(device: torch.device) -> torch.Generator:
    on_gpu = device.type == "cuda"
    return torch.cuda.default_generators[device.index] if on_gpu else torch.default_generator


def _recorded_shared(
    device: torch.device, like: Sequence[Tensor], function: Callable[[], list[Tensor]]
) -> tuple[list[Tensor], Callable[[], None]]:
    """Records as `record_graph`, for results that are copied at once.

    All such graphs of a stream share the memory of results and of intermediates.
    """
    results = _shared_like(like, "results")
    pool = _pools.setdefault((device, stream_id(device)), torch.cuda.graph_pool_handle())
    _, replay = _recorded(device, pool, lambda: copy_all(results, function()))
    return results, replay
