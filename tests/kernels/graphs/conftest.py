"""A stand-in for CUDA graphs: it runs the recorded function again and writes its results where
the first ones lie, as a replay does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused
from evofeed.kernels.graphs import arguments, recorded, recording
from evofeed.kernels.swap.swap import RULES


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Recordings on the CPU; the list grows by one entry a replay."""
    replays: list[int] = []
    current: list[Any] = []  # aliases of the parameters during a recording
    real_aliases = recording._parameter_aliases

    @contextlib.contextmanager
    def aliases(slots: recording.Slots) -> Iterator[Any]:
        with real_aliases(slots) as yielded:
            current[:] = yielded
            yield yielded

    def undrawn(device: torch.device) -> contextlib.AbstractContextManager[None]:
        return recording.drawing_from(device, recording.generator_state(device))

    def capture(
        device: torch.device, pool: Any, function: Callable[[], Any]
    ) -> tuple[Any, Callable[[], None]]:
        with undrawn(device):
            results, leaves, grad = function(), list(current), torch.is_grad_enabled()

        def replay() -> None:
            replays.append(1)
            # in the modes of the recording, whatever is set around a replay
            usual, gradients = torch.inference_mode(False), torch.set_grad_enabled
            with usual, gradients(grad), recorded.paused(), monkeypatch.context() as patch:
                for (home, name), leaf in leaves:
                    patch.setitem(home, name, leaf)
                again = function()
            if results is not None:
                with torch.no_grad():
                    for old, new in zip(results, again, strict=True):
                        old.copy_(new)

        return results, replay

    plain = recorded._why_not
    monkeypatch.setattr(recording, "_recorded", capture)
    monkeypatch.setattr(recording, "_parameter_aliases", aliases)
    monkeypatch.setattr(recording, "_warm_up", undrawn)
    for module in (recording, recorded, arguments):
        monkeypatch.setattr(module, "stream_id", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def why_not(tensors: Sequence[Tensor]) -> str | None:
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "is_cuda", True)
            return plain(tensors)

    monkeypatch.setattr(recorded, "_why_not", why_not)
    return replays


@pytest.fixture(autouse=True)
def nothing_warned() -> Iterator[None]:
    recorded._warned.clear()
    yield


class FusedStandIn(Fused):
    """The fused class of a test's module: recordable, with the module's forward."""

    recordable = True

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        """Runs the module's forward."""
        return super().forward(*args, **options)  # type: ignore[misc]


@pytest.fixture
def has_a_fused_form(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[nn.Module]], None]:
    """Lets modules of a kind, and of its sub-classes, be swapped."""

    def swapped(kind: type[nn.Module]) -> None:
        def rule(module: nn.Module) -> type[Fused] | None:
            return FusedStandIn if isinstance(module, kind) else None

        monkeypatch.setattr("evofeed.kernels.swap.swap.RULES", [*RULES, rule])

    return swapped
