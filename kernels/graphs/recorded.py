"""CUDA graphs and recomputation of fused blocks inside somebody's own eager training loop.

A block of AF2 takes the GPU a few milliseconds and Python two or three times as long.
So the first call of a module with inputs of new shapes is recorded, forward and
backward, and further calls replay it: the loop stays eager, the CPU launches two graphs
a block. `recording.py` has the recording itself; here is when there can be one, for calls in
evaluation mode with `evaluation.py`.

Between a forward and its backward a recording is taken; a module called again before
that (templates one by one, weights shared along the depth) is recorded again. A block outside
its budget (`keeping.py`) keeps its inputs alone: its backward graph has the forward pass in
it, and is free again at once. An optimizer may step as it likes; with parameters that have
moved (`.to`, `.data = `) or another module or number (a dropout's rate) inside, a module is
recorded again. Other attributes count as constants.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evofeed.kernels.graphs.arguments import Arguments
from evofeed.kernels.graphs.evaluation import MOST_BYTES, Evaluation, RecordedCall
from evofeed.kernels.graphs.keeping import Budget
from evofeed.kernels.graphs.recording import Homes, Recording, one_at_a_time, stream_number
from evofeed.kernels.runtime.backend import Scope, autocast_type
from evofeed.kernels.runtime.private_apis import (
    backward_runs,
    functorch_active,
    saved_tensor_hooks_active,
    tf32_allowed,
)

MOST_RECORDINGS = 8  # of a module: shapes, and calls in flight
MOST_MOVES = 4  # times its parameters may have moved
_PLAIN = (Tensor, nn.Parameter)
_KNOWN = (Tensor, int, float, str, type(None), torch.dtype)
_warned: set[str] = set()
paused = Scope()
"""Modules run eagerly inside."""


def run(
    module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    record: bool, budget: Budget | None,
) -> Any:  # fmt: skip
    """`call(*args, **kwargs)`, the forward of `module`.

    It is no more than that where gradients are wanted in evaluation mode.

    Args:
        record: replay it from a recording where there can be one.
        budget: where this does not keep what the backward pass needs, make it again there.
    """
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and not module.training):
        return call(*args, **kwargs)
    if not module.training:
        return _run_again(module, call, args, kwargs) if record else call(*args, **kwargs)
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    recompute = (
        budget is not None and _recomputable()
        and not budget.keeps(module, lambda: call(*args, **kwargs), tensors)
    )  # fmt: skip
    why_not = _why_not(tensors) if record and not paused.depth else ""
    if why_not is None:
        state = _state_of(module)
        recording, why_not = state.find(module, call, args, kwargs, tensors, recompute)
        if recording is not None:
            return recording(tensors)
    if why_not:
        _warn_once(f"{_name(module)} runs without CUDA graphs: {why_not}")
    if recompute:
        return checkpoint(call, *args, use_reentrant=False, **kwargs)
    return call(*args, **kwargs)


def _run_again(
    module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`call(*args, **kwargs)` in evaluation mode, recorded once such calls come again."""
    if paused.depth:
        return call(*args, **kwargs)
    given = Arguments(args, kwargs)
    why_not = _why_not(given.on_device)
    if why_not is None and (denoises(module) or given.nbytes <= MOST_BYTES):
        found, why_not = _state_of(module).find_again(module, call, given)
        if found is not None:
            return found(given.leaves)
    if why_not:
        _warn_once(f"{_name(module)} runs without CUDA graphs: {why_not}")
        return call(*args, **kwargs)
    # What is inside of a step is not recorded: the step will be.
    with paused() if denoises(module) else contextlib.nullcontext():
        return call(*args, **kwargs)


def denoises(module: Any) -> bool:
    """Whether a swapped module is a whole step of sampling."""
    return module.form is not None and module.form.denoises


def _state_of(module: nn.Module) -> _State:
    states = _states.setdefault(module, {})
    if module.training not in states:
        states[module.training] = _State(module)
    return states[module.training]


def _recomputable() -> bool:
    """Whether there will be a backward pass that nobody else recomputes for."""
    return (
        torch.is_grad_enabled() and not saved_tensor_hooks_active() and not backward_runs()
        and not functorch_active()
    )  # fmt: skip


def _name(module: nn.Module) -> str:
    return getattr(module, "torch_class", type(module)).__name__


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=5)


def _why_not(tensors: Sequence[Tensor]) -> str | None:
    """Why nothing can be recorded or replayed here; empty where that goes without saying."""
    for t in tensors:
        if type(t) not in _PLAIN:
            return f"it was called with a {type(t).__name__}"
    if not tensors or not all(t.is_cuda for t in tensors):
        places = sorted({str(t.device) for t in tensors})
        return f"its inputs are on {', '.join(places) or 'no device'}, not on a GPU"
    if torch.cuda.is_current_stream_capturing():
        return ""  # somebody records more than this module
    if saved_tensor_hooks_active():
        return "hooks on saved tensors are active (activation checkpointing or offloading)"
    if backward_runs():
        return "it was called inside a backward pass (activation checkpointing)"
    if functorch_active():
        return "a transform of torch.func is active"
    if torch.is_anomaly_enabled():
        return "anomaly detection is on"
    return None


class _State:
    """The recordings of one module, in training or in evaluation mode."""

    def __init__(self, module: nn.Module) -> None:
        self._recordings: dict[Hashable, list[Recording]] = {}
        self._again = Evaluation(denoises(module))
        self._moves = 0
        self._look(module)
        kinds = {type(home[name]) for home, name in self._homes} - set(_PLAIN)
        self._given_up = ""
        if kinds or getattr(module, "_is_replica", False):
            self._given_up = "its parameters are split or replicated; DDP and one GPU are fine"

    def find(
        self, module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...],
        kwargs: dict[str, Any], tensors: list[Tensor], recompute: bool,
    ) -> tuple[Recording | None, str]:  # fmt: skip
        """A free recording of such a call, else None and why."""
        if self._gives_up(module):
            return None, self._given_up
        for value in (*args, *kwargs.values()):
            if not isinstance(value, _KNOWN):
                return None, f"an argument is a {type(value).__name__}, no tensor and no constant"
        kind = recompute, _kind(args, kwargs)
        for recording in self._recordings.get(kind, ()):
            if not recording.taken():
                return recording, ""
        found = self._recordings.setdefault(kind, [])
        if sum(map(len, self._recordings.values())) >= MOST_RECORDINGS:
            return None, (
                f"it has {MOST_RECORDINGS} recordings: more shapes, or more calls whose backward "
                "pass has not come yet, are not recorded"
            )
        with self._recording():
            forward = _of_tensors(call, args, kwargs)
            found.append(Recording(forward, tensors, self._homes, recompute))
        return (None, self._given_up) if self._given_up else (found[-1], "")

    def find_again(
        self, module: nn.Module, call: Callable[..., Any], given: Arguments
    ) -> tuple[RecordedCall | None, str]:
        """A recording of a call in evaluation mode, if it comes often enough; else None and why."""
        if self._gives_up(module):
            return None, self._given_up
        found = self._again.find(given)
        if found is None and self._again.comes_again(given):
            with one_at_a_time, self._recording():
                found = self._again.record(call, given, self._homes)
        return found, self._given_up

    def _gives_up(self, module: nn.Module) -> bool:
        """Whether nothing of the module is recorded any more."""
        if not self._given_up and self._changed():
            self._forget()
            self._look(module)
            self._moves += 1
            if self._moves > MOST_MOVES:
                self._given_up = "its parameters or rates keep moving"
        return bool(self._given_up)

    def _forget(self) -> None:
        self._recordings.clear()
        self._again.recordings.clear()

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """Modules inside run eagerly; gives up where something waits for the device."""
        grad = torch.is_grad_enabled()
        try:
            with paused(), torch.inference_mode(False), torch.set_grad_enabled(grad):
                yield
        except RuntimeError as error:  # or memory is short
            self._forget()
            self._given_up = f"it cannot be recorded: {str(error).splitlines()[0]}"

    def _look(self, module: nn.Module) -> None:
        """Remembers what recordings rely on."""
        self._homes = _homes(module)
        self._places = _places(self._homes)
        self._inner = [
            (home._modules, name, weakref.ref(inner), inner.training)
            for home in module.modules()
            for name, inner in home._modules.items()
            if inner is not None
        ]
        self._rates = [  # dropout's are changed by schedules
            (vars(home), name, value)
            for home in module.modules()
            for name, value in vars(home).items()
            if type(value) is float
        ]

    def _changed(self) -> bool:
        """Whether parameters are elsewhere, or modules inside were exchanged or set otherwise."""
        try:
            return (
                _places(self._homes) != self._places
                or any(
                    home[name] is not inner() or home[name].training != training  # type: ignore[union-attr]
                    for home, name, inner, training in self._inner
                )
                or any(home[name] != value for home, name, value in self._rates)
            )
        except (KeyError, AttributeError):  # one is gone
            return True


_states: weakref.WeakKeyDictionary[nn.Module, dict[bool, _State]] = weakref.WeakKeyDictionary()
"""By module, and whether it was in training mode."""


def _homes(module: nn.Module) -> Homes:
    return [
        (home, name)
        for inner in module.modules()
        for home in (inner._parameters, inner._buffers)
        for name, value in home.items()
        if value is not None
    ]


def _places(homes: Homes) -> list[tuple[int, bool]]:
    """What a recording knows of the parameters."""
    values = [home[name] for home, name in homes]
    return [(value.data_ptr(), value.requires_grad) for value in values]


def _kind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """What two calls must have in common to share a recording."""
    grad, device = torch.is_grad_enabled(), None
    parts: list[Hashable] = []
    for name, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, Tensor):
            device, wants = value.device, grad and value.requires_grad
            parts.append((name, value.shape, value.stride(), value.dtype, device, wants))
        else:
            parts.append((name, type(value), value))
    assert device is not None
    settings = grad, autocast_type(device.type), tf32_allowed()
    return (*parts, *settings, stream_number(device))


def _of_tensors(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[list[Tensor]], Any]:
    """The call with its tensors, in order, as the only argument."""

    def forward(tensors: list[Tensor]) -> Any:
        given = iter(tensors)
        put = [next(given) if isinstance(value, Tensor) else value for value in args]
        named = {k: next(given) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        return call(*put, **named)

    return forward
