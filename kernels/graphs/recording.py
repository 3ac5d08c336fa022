# mypy: disable-error-code="no-untyped-call"
"""One forward pass of a module and its backward, recorded as two CUDA graphs.

What a graph reads and writes is at fixed addresses. Inputs and gradients are copied
there and results are copied from there: nothing that a caller holds is changed, not even by
a module that works in place.
Parameters are read where they are. The recording differentiates stand-ins on their
memory, and their gradients leave through autograd: hooks, DDP and accumulation see
what they always see. Random numbers come from PyTorch's generator at every replay, as
many as the eager module draws. A result that is an input, or None, is handed on as it came.
"""

from __future__ import annotations

import contextlib
import gc
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

WARM_UP = 2  # eager runs that compile kernels and let libraries choose theirs

Homes = list[tuple[dict[str, Any], str]]
"""Where parameters and buffers are: a module's dictionary, and the name in it."""


class _Turn:
    """One forward pass on its way to its backward; dies with the caller's autograd graph."""

    done = False


class Recording:
    """Replays `forward`, and its backward, over copies of the inputs.

    Args:
        forward: from tensors to a tensor or a sequence of tensors; must not wait for the device.
        given: the inputs; later ones have the same shapes, types and device.
        homes: of the parameters and buffers that `forward` reads.
        recompute: the backward pass makes the forward pass again, from inputs that the caller's
            autograd graph holds: between calls nothing is held here.

    Raises:
        RuntimeError: `forward` cannot be recorded.
    """

    def __init__(
        self, forward: Callable[[list[Tensor]], Any], given: Sequence[Tensor], homes: Homes,
        recompute: bool = False,
    ) -> None:  # fmt: skip
        device, grad = given[0].device, torch.is_grad_enabled()
        self.device, self.recompute = device, recompute
        shared = recompute or not grad
        self._memory = (
            _memory_like(given, "inputs") if shared else [torch.empty_like(t) for t in given]
        )
        self._inputs = [
            memory.detach().requires_grad_(grad and t.requires_grad)
            for memory, t in zip(self._memory, given, strict=True)
        ]
        self._results: list[Tensor] = []  # hold the autograd graph, and so what it saved
        self._given: list[Tensor] = []
        self._joined: list[list[int]] = []
        self._turn: Callable[[], _Turn | None] = lambda: None

        def forth() -> list[Tensor]:
            before = [t._version for t in self._inputs]
            with _autocast_without_cache(device), unshared():
                found = forward(self._inputs)
            self._single = isinstance(found, Tensor)
            results = [found] if self._single else list(found)
            if not all(t is None or isinstance(t, Tensor) for t in results):
                raise RuntimeError("it returns something else than tensors")
            places = {id(None): len(before)}
            for number, (t, version) in enumerate(zip(self._inputs, before, strict=True)):
                if t._version == version:  # else it was changed in place: a result
                    places[id(t)] = number
            self._through = [places.get(id(t)) for t in results]
            self._results = [t for t in results if id(t) not in places]
            return self._results

        def back() -> list[Tensor]:
            results = [t for t in self._results if t.requires_grad]
            grads = torch.autograd.grad(
                results, leaves, self._given, retain_graph=True, allow_unused=True
            )
            of_inputs, of_weights = list(grads[:count]), grads[count:]
            self._joined = _alike(of_weights)
            flat = [torch.cat([of_weights[n].reshape(-1) for n in ns]) for ns in self._joined]
            self._used = [g is not None for g in of_inputs]
            return [g for g in of_inputs if g is not None] + flat

        with torch.no_grad():
            copy_all(self._inputs, given)
        with _stand_ins(homes) as found:
            learnt = [(home, leaf) for home, leaf in found if grad and leaf.requires_grad]
            self._learnt = [home for home, _ in learnt]
            self._weights = [leaf for _, leaf in learnt]
            leaves = [t for t in self._inputs if t.requires_grad]
            count = len(leaves)
            leaves += self._weights
            with _beside(device):
                for _ in range(WARM_UP):
                    made = forth()
                    self._wanted = [t.requires_grad for t in made]
                    self._given = _memory_like([t for t in made if t.requires_grad], "gradients")
                    grads = back() if self._given else []
            if self._given and recompute:

                def ahead() -> list[Tensor]:
                    with torch.no_grad():
                        return forth()

                def again() -> list[Tensor]:
                    forth()
                    return back()

                self._made, self._replay = _onto(device, made, ahead)
                self._grads, self._replay_back = _onto(device, grads, again)
                self._results = []
            elif self._given:
                # What a forward pass saves must outlive other replays: it has its own memory.
                self._made, self._replay = _recorded(device, None, forth)
                self._grads, self._replay_back = _onto(device, grads, back)
            else:
                self._made, self._replay = _onto(device, made, forth)

    def taken(self) -> bool:
        """Whether a forward pass still waits for its backward."""
        turn = self._turn()
        return turn is not None and not turn.done

    def __call__(self, given: Sequence[Tensor]) -> Any:
        """What the module's forward returns for these inputs."""
        if self._given:
            weights = [home[name] for home, name in self._learnt]
            made = iter(_replayed(self, len(given), *given, *weights))
        else:
            made = iter(self.forth(given))
        handed_on = [*given, None]
        results = [next(made) if number is None else handed_on[number] for number in self._through]
        return results[0] if self._single else tuple(results)

    def forth(self, given: Sequence[Tensor]) -> list[Tensor]:
        """The results, in memory of their own."""
        with one_at_a_time, torch.no_grad():
            copy_all(self._inputs, given)
            self._replay()
            return [t.detach().clone() for t in self._made]

    def begin(self) -> _Turn:
        """Takes the recording for one forward pass."""
        turn = _Turn()
        self._turn = weakref.ref(turn)
        return turn

    def back(self, turn: _Turn, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """Gradients of the inputs and of the weights, in memory of their own."""
        if self._turn() is not turn:
            raise KernelError(
                "a recorded module's backward pass was run again after another forward "
                "pass: call to_fused(model) without cuda_graphs to keep graphs for longer"
            )
        turn.done = True
        return self._back(grads)

    def back_again(
        self, given: Sequence[Tensor], drawn: Tensor, grads: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The same, the forward pass of `given` made again, with what was `drawn` then."""
        with torch.no_grad():
            copy_all(self._inputs, given)
        with drawing_from(self.device, drawn):
            return self._back(grads)

    def _back(self, grads: Sequence[Tensor]) -> list[Tensor | None]:
        copy_all(self._given, [g for g, wanted in zip(grads, self._wanted, strict=True) if wanted])
        self._replay_back()
        made = (t.clone() for t in self._grads)
        used = iter(self._used)
        of_inputs = [next(made) if t.requires_grad and next(used) else None for t in self._inputs]
        of_weights: list[Tensor | None] = [None] * len(self._weights)
        for numbers, flat in zip(self._joined, made, strict=True):
            parts = unflatten(flat, [self._weights[n] for n in numbers])
            for n, part in zip(numbers, parts, strict=True):
                of_weights[n] = part
        return of_inputs + of_weights

    def marked(self, results: Sequence[Tensor]) -> list[Tensor]:
        """Those of the results that have no gradient."""
        return [t for t, wanted in zip(results, self._wanted, strict=True) if not wanted]


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: Recording, count: int, *tensors: Tensor) -> Any:
        ctx.recording = recording
        if recording.recompute:
            ctx.drawn = generator_state(recording.device)
            ctx.save_for_backward(*tensors[:count])
        else:
            ctx.turn = recording.begin()
        results = recording.forth(tensors[:count])
        ctx.mark_non_differentiable(*recording.marked(results))
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if ctx.recording.recompute:
            found = ctx.recording.back_again(ctx.saved_tensors, ctx.drawn, grads)
        else:
            found = ctx.recording.back(ctx.turn, grads)
        return None, None, *found


# Without `apply`'s look at each of a hundred weights for functorch; nothing is recorded under it.
_replayed = function_apply(_Replayed)


def _alike(grads: Sequence[Tensor | None]) -> list[list[int]]:
    """Numbers of gradients of one type; those of odd sizes last, so that the others are aligned."""
    present = [(n, g) for n, g in enumerate(grads) if g is not None]
    found: dict[torch.dtype, list[int]] = {}
    for n, g in sorted(present, key=lambda pair: pair[1].numel() % 8 != 0):
        found.setdefault(g.dtype, []).append(n)
    return list(found.values())


@contextlib.contextmanager
def _stand_ins(homes: Homes) -> Iterator[list[tuple[tuple[dict[str, Any], str], Tensor]]]:
    """Puts leaves on the same memory in the place of parameters; yields each and its home."""
    real = [home[name] for home, name in homes]
    made: dict[int, Tensor] = {}
    found = []
    for at, value in zip(homes, real, strict=True):
        if id(value) not in made:
            made[id(value)] = value.detach().requires_grad_(value.requires_grad)
            found.append((at, made[id(value)]))
    for (home, name), value in zip(homes, real, strict=True):
        home[name] = made[id(value)]
    try:
        yield found
    finally:
        for (home, name), value in zip(homes, real, strict=True):
            home[name] = value


# --- the device -----------------------------------------------------------------------------------

one_at_a_time = threading.RLock()  # threads that predict share a stream, and so its memory
_streams: dict[torch.device, torch.cuda.Stream] = {}
_pools: dict[Hashable, Any] = {}
_shared: weakref.WeakValueDictionary[Hashable, Tensor] = weakref.WeakValueDictionary()


def _memory_like(given: Sequence[Tensor], role: str) -> list[Tensor]:
    """Memory that means nothing between calls: all recordings of a stream share it."""
    counts: dict[Hashable, int] = {}
    found = []
    for t in given:
        kind = role, t.shape, t.stride(), t.dtype, t.device, stream_number(t.device)
        number = counts[kind] = counts.get(kind, -1) + 1
        memory = _shared.get((kind, number))
        if memory is None:
            memory = _shared[kind, number] = torch.zeros_like(t, requires_grad=False)
        found.append(memory)
    return found


def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device that graphs are recorded on."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def record_graph(
    device: torch.device, pool: Any, function: Callable[[], Any]
) -> tuple[Any, Callable[[], None]]:
    """What `function` makes, at addresses that stay, and what makes it again there.

    Args:
        device: a GPU.
        pool: memory that other recordings use too (`torch.cuda.graph_pool_handle()`), or None
            for memory of its own.
        function: must not wait for the device.

    Raises:
        RuntimeError: it cannot be recorded; the random generator is as if it had not been tried.
    """
    # `torch.compile` leaves cycles that hold the pass it compiled in: its parameters' nodes belong
    # to the stream of that pass, which a recording may not wait for. Stand-ins have nodes of
    # their own, so a module's recordings, of which there are hundreds, need not collect.
    gc.collect()
    return _recorded(device, pool, function)


def _recorded(
    device: torch.device, pool: Any, function: Callable[[], Any]
) -> tuple[Any, Callable[[], None]]:
    generator = torch.cuda.default_generators[device.index]
    state, graph = generator.clone_state(), torch.cuda.CUDAGraph()
    # thread_local: a loader's thread allocates meanwhile.
    how = {
        "pool": pool, "stream": _recording_stream(device), "capture_error_mode": "thread_local",
    }  # fmt: skip
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, **how):
            found = function()
    except RuntimeError:
        # A recording cut short leaves the generator's state as while one is made, for earlier
        # recordings too, which draw from it: one that ends well, of nothing much, puts that right.
        try:
            with torch.cuda.device(device), torch.cuda.graph(torch.cuda.CUDAGraph(), **how):
                torch.zeros(1, device=device)
        except RuntimeError:
            generator.graphsafe_set_state(state)
        raise
    return found, graph.replay


@contextlib.contextmanager
def _autocast_without_cache(device: torch.device) -> Iterator[None]:
    """A cached cast of a parameter would be replayed with its old numbers."""
    dtype = autocast_type(device.type)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False):
        yield


def stream_number(device: torch.device) -> int:
    """The stream in use: recordings of two streams share no memory."""
    return torch.cuda.current_stream(device).cuda_stream


@contextlib.contextmanager
def _beside(device: torch.device) -> Iterator[None]:
    """Runs on the stream that is recorded, random numbers put back."""
    stream = _recording_stream(device)
    with drawing_from(device, generator_state(device)):
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(device).wait_stream(stream)


def generator_state(device: torch.device) -> Tensor:
    """From where random numbers come next."""
    return _generator(device).get_state()


@contextlib.contextmanager
def drawing_from(device: torch.device, state: Tensor) -> Iterator[None]:
    """Random numbers come from there, and afterwards from where they would have come."""
    generator = _generator(device)
    before = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(before)


def _generator(device: torch.device) -> torch.Generator:
    on_gpu = device.type == "cuda"
    return torch.cuda.default_generators[device.index] if on_gpu else torch.default_generator


def _onto(
    device: torch.device, like: Sequence[Tensor], function: Callable[[], list[Tensor]]
) -> tuple[list[Tensor], Callable[[], None]]:
    """As `record_graph`, with results that are copied at once: nothing else outlives a replay.

    So all such graphs of a stream share them, and what they need meanwhile.
    """
    kept = _memory_like(like, "results")
    pool = _pools.setdefault((device, stream_number(device)), torch.cuda.graph_pool_handle())
    _, replay = _recorded(device, pool, lambda: copy_all(kept, function()))
    return kept, replay
