"""CUDA graphs and recomputation of fused blocks inside the user's eager training loop.

A block of AF2 takes the GPU a few milliseconds and Python two or three times as long. So the
first call of a module with inputs of new shapes is recorded, forward and backward, and further
calls replay it: the loop stays eager, and the CPU launches two graphs per block. `recording.py`
makes recordings; this module decides when, for calls in evaluation mode with `evaluation.py`.

Between a forward and its backward a recording is in use; a module called again before that
(templates one by one, weights shared along the depth) is recorded again. A block outside its
budget (`budget.py`) keeps only its inputs: its backward graph contains the forward pass, and the
recording is free again at once. Optimizers may change parameters in place. If parameters move
(`.to`, `.data = `), or a submodule or a number inside (a dropout rate) changes, the module is
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
from evofeed.kernels.graphs.budget import Budget
from evofeed.kernels.graphs.evaluation import MAX_BYTES, Evaluation, RecordedCall
from evofeed.kernels.graphs.recording import Recording, Slots, replay_lock, stream_id
from evofeed.kernels.runtime.backend import Scope, autocast_type
from evofeed.kernels.runtime.private_apis import (
    backward_runs,
    functorch_active,
    saved_tensor_hooks_active,
    tf32_allowed,
)

MAX_RECORDINGS = 8  # of a module: shapes, and calls awaiting their backward
MAX_MOVES = 4  # of a module's parameters
_PLAIN = (Tensor, nn.Parameter)
_RECORDABLE = (Tensor, int, float, str, type(None), torch.dtype)
_warned: set[str] = set()
paused = Scope()
"""A scope in which modules run eagerly."""


def run(
    module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    record: bool, budget: Budget | None,
) -> Any:  # fmt: skip
    """Returns `call(*args, **kwargs)`, the forward of `module`.

    A plain call where gradients are enabled in evaluation mode.

    Args:
        record: replay a recording where possible.
        budget: recompute the forward pass where this does not keep its saved tensors.
    """
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and not module.training):
        return call(*args, **kwargs)
    if not module.training:
        return _run_evaluation(module, call, args, kwargs) if record else call(*args, **kwargs)
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    recompute = (
        budget is not None and _recomputable()
        and not budget.keeps(module, lambda: call(*args, **kwargs), tensors)
    )  # fmt: skip
    reason = _why_not(tensors) if record and not paused.depth else ""
    if reason is None:
        state = _state_of(module)
        recording, reason = state.find(module, call, args, kwargs, tensors, recompute)
        if recording is not None:
            return recording(tensors)
    if reason:
        _warn_once(f"{_name(module)} runs without CUDA graphs: {reason}")
    if recompute:
        return checkpoint(call, *args, use_reentrant=False, **kwargs)
    return call(*args, **kwargs)


def _run_evaluation(
    module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`call(*args, **kwargs)` in evaluation mode, recorded once such calls are repeated."""
    if paused.depth:
        return call(*args, **kwargs)
    arguments = Arguments(args, kwargs)
    reason = _why_not(arguments.on_device)
    if reason is None and (denoises(module) or arguments.nbytes <= MAX_BYTES):
        recording, reason = _state_of(module).find_evaluation(module, call, arguments)
        if recording is not None:
            return recording(arguments.leaves)
    if reason:
        _warn_once(f"{_name(module)} runs without CUDA graphs: {reason}")
        return call(*args, **kwargs)
    # Modules inside a denoising step are not recorded: the step will be.
    with paused() if denoises(module) else contextlib.nullcontext():
        return call(*args, **kwargs)


def denoises(module: Any) -> bool:
    """True if a swapped module is a complete denoising step."""
    return module.form is not None and module.form.denoises


def _state_of(module: nn.Module) -> _State:
    states = _states.setdefault(module, {})
    if module.training not in states:
        states[module.training] = _State(module)
    return states[module.training]


def _recomputable() -> bool:
    """True if a backward pass may follow and the caller does not recompute for it."""
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
    """The reason why nothing can be recorded or replayed; empty for one that needs no warning."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return f"it was called with a {type(tensor).__name__}"
    if not tensors or not all(tensor.is_cuda for tensor in tensors):
        devices = sorted({str(tensor.device) for tensor in tensors})
        return f"its inputs are on {', '.join(devices) or 'no device'}, not on a GPU"
    if torch.cuda.is_current_stream_capturing():
        return ""  # the caller records a larger graph
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
        self._evaluation = Evaluation(denoises(module))
        self._moves = 0
        self._take_snapshot(module)
        kinds = {type(owner[name]) for owner, name in self._slots} - set(_PLAIN)
        self._disabled = ""
        if kinds or getattr(module, "_is_replica", False):
            self._disabled = "its parameters are split or replicated; DDP and one GPU are fine"

    def find(
        self, module: nn.Module, call: Callable[..., Any], args: tuple[Any, ...],
        kwargs: dict[str, Any], tensors: list[Tensor], recompute: bool,
    ) -> tuple[Recording | None, str]:  # fmt: skip
        """A free recording of such a call, or None and the reason."""
        if self._is_disabled(module):
            return None, self._disabled
        for value in (*args, *kwargs.values()):
            if not isinstance(value, _RECORDABLE):
                return None, f"an argument is a {type(value).__name__}, not a tensor or a constant"
        signature = recompute, _signature(args, kwargs)
        for recording in self._recordings.get(signature, ()):
            if not recording.awaits_backward():
                return recording, ""
        recordings = self._recordings.setdefault(signature, [])
        if sum(map(len, self._recordings.values())) >= MAX_RECORDINGS:
            return None, (
                f"it has {MAX_RECORDINGS} recordings: more shapes, or more calls before their "
                "backward pass, are not recorded"
            )
        with self._recording():
            forward = _with_tensors(call, args, kwargs)
            recordings.append(Recording(forward, tensors, self._slots, recompute))
        return (None, self._disabled) if self._disabled else (recordings[-1], "")

    def find_evaluation(
        self, module: nn.Module, call: Callable[..., Any], arguments: Arguments
    ) -> tuple[RecordedCall | None, str]:
        """A recording of a repeated call in evaluation mode; otherwise None and the reason."""
        if self._is_disabled(module):
            return None, self._disabled
        recording = self._evaluation.find(arguments)
        if recording is None and self._evaluation.should_record(arguments):
            with replay_lock, self._recording():
                recording = self._evaluation.record(call, arguments, self._slots)
        return recording, self._disabled

    def _is_disabled(self, module: nn.Module) -> bool:
        """True if the module is no longer recorded; drops recordings of changed parameters."""
        if not self._disabled and self._changed():
            self._clear()
            self._take_snapshot(module)
            self._moves += 1
            if self._moves > MAX_MOVES:
                self._disabled = "its parameters or rates keep moving"
        return bool(self._disabled)

    def _clear(self) -> None:
        self._recordings.clear()
        self._evaluation.recordings.clear()

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """Runs modules inside eagerly; disables recording if something waits for the device."""
        grad = torch.is_grad_enabled()
        try:
            with paused(), torch.inference_mode(False), torch.set_grad_enabled(grad):
                yield
        except RuntimeError as error:  # or out of memory
            self._clear()
            self._disabled = f"it cannot be recorded: {str(error).splitlines()[0]}"

    def _take_snapshot(self, module: nn.Module) -> None:
        """Stores the parameters, submodules and rates that recordings depend on."""
        self._slots = _parameter_slots(module)
        self._addresses = _addresses(self._slots)
        self._inner = [
            (owner._modules, name, weakref.ref(inner), inner.training)
            for owner in module.modules()
            for name, inner in owner._modules.items()
            if inner is not None
        ]
        self._rates = [  # schedules change dropout rates
            (vars(owner), name, value)
            for owner in module.modules()
            for name, value in vars(owner).items()
            if type(value) is float
        ]

    def _changed(self) -> bool:
        """True if parameters moved, or submodules, their modes or rates changed."""
        try:
            return (
                _addresses(self._slots) != self._addresses
                or any(
                    owner[name] is not inner() or owner[name].training != training  # type: ignore[union-attr]
                    for owner, name, inner, training in self._inner
                )
                or any(owner[name] != value for owner, name, value in self._rates)
            )
        except (KeyError, AttributeError):  # one was removed
            return True


_states: weakref.WeakKeyDictionary[nn.Module, dict[bool, _State]] = weakref.WeakKeyDictionary()
"""By module, and its training mode."""


def _parameter_slots(module: nn.Module) -> Slots:
    return [
        (owner, name)
        for inner in module.modules()
        for owner in (inner._parameters, inner._buffers)
        for name, value in owner.items()
        if value is not None
    ]


def _addresses(slots: Slots) -> list[tuple[int, bool]]:
    """Address and `requires_grad` of every parameter."""
    values = [owner[name] for owner, name in slots]
    return [(value.data_ptr(), value.requires_grad) for value in values]


def _signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """A key that is equal for calls that can share a recording."""
    grad, device = torch.is_grad_enabled(), None
    parts: list[Hashable] = []
    for name, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, Tensor):
            device, requires_grad = value.device, grad and value.requires_grad
            parts.append((name, value.shape, value.stride(), value.dtype, device, requires_grad))
        else:
            parts.append((name, type(value), value))
    assert device is not None
    settings = grad, autocast_type(device.type), tf32_allowed()
    return (*parts, *settings, stream_id(device))


def _with_tensors(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[list[Tensor]], Any]:
    """The call with its tensors, in order, as the only argument."""

    def forward(tensors: list[Tensor]) -> Any:
        remaining = iter(tensors)
        positional = [next(remaining) if isinstance(value, Tensor) else value for value in args]
        named = {k: next(remaining) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        return call(*positional, **named)

    return forward
