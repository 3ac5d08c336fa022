"""`to_fused(model, cuda_graphs=True)`: when calls are recorded, and what they return."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from tests.kernels.weights import evoformer_block, randomised
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evofeed.base.errors import KernelError
from evofeed.kernels import to_fused, to_torch
from evofeed.kernels.fused_module import Fused
from evofeed.kernels.graphs import recorded, recording


class Layer(nn.Module):
    """Two results, one without a gradient; a weight that is used twice, one that is not."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.tied = self.inner
        self.scale = nn.Parameter(torch.ones(5 - size + 1))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, y: Tensor, power: int = 1) -> tuple[Tensor, Tensor]:
        value = self.tied(torch.tanh(self.inner(x))) * self.scale * y**power
        return value, value.detach() + 1


@pytest.fixture(autouse=True)
def layer_has_a_fused_form(has_a_fused_form: Callable[[type[nn.Module]], None]) -> None:
    has_a_fused_form(Layer)


def _pair() -> tuple[Layer, Layer]:
    torch.manual_seed(0)
    plain = Layer()
    return plain, to_fused(copy.deepcopy(plain), cuda_graphs=True)


def _grads(module: nn.Module, results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Any]:
    results[0].sin().sum().backward()
    return [t.grad for t in (*inputs, *module.parameters())]


def _recordings(module: nn.Module) -> int:
    return sum(map(len, recorded._states[module][True]._recordings.values()))


def _same(a: Sequence[Any], b: Sequence[Any]) -> None:
    for x, y in zip(a, b, strict=True):
        assert (x is None and y is None) or torch.allclose(x, y, atol=1e-6)


def test_results_and_gradients_are_those_of_the_eager_module(graphs: list[int]) -> None:
    plain, ours = _pair()
    ready: list[Tensor] = []  # as DDP learns that a gradient is there
    ours.inner.weight.register_post_accumulate_grad_hook(ready.append)
    for n in range(3):
        steps = []
        for module in (plain, ours):
            torch.manual_seed(n)
            x, y = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
            module.zero_grad()
            results = module(x, y, power=2)
            assert not results[1].requires_grad
            steps.append([*results, *_grads(module, results, [x])])
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(0.1)  # an optimizer's step reaches the recording
        _same(*steps)
    assert len(graphs) == 6
    assert len(ready) == 3 and all(t is ours.inner.weight for t in ready)


def test_results_of_a_recording_do_not_change(graphs: list[int]) -> None:
    _, ours = _pair()
    y = torch.ones(4, 3)
    first = ours(torch.randn(4, 3, requires_grad=True), y)
    _grads(ours, first, [])
    copies = [t.clone() for t in first]
    for _ in range(2):  # gradients of three steps add up
        x = torch.randn(4, 3, requires_grad=True)
        later = ours(x, y)
        before = [p.grad.clone() for p in ours.inner.parameters()]
        _grads(ours, later, [x])
        alone = torch.autograd.grad(ours(x, y)[0].sin().sum(), list(ours.inner.parameters()))
        for parameter, old, new in zip(ours.inner.parameters(), before, alone, strict=True):
            assert torch.allclose(parameter.grad, old + new)
    _same(copies, first)


def test_two_calls_before_a_backward_have_a_recording_each(graphs: list[int]) -> None:
    plain, ours = _pair()
    steps = []
    for module in (plain, ours):
        torch.manual_seed(1)
        x = torch.randn(4, 3, requires_grad=True)
        module(x, x)  # thrown away: what it took is free again
        results = module(module(x, x)[0], x)
        steps.append([*results, *_grads(module, results, [x])])
    _same(*steps)
    assert _recordings(ours) == 2


def test_a_second_backward_is_refused_after_another_forward(graphs: list[int]) -> None:
    _, ours = _pair()
    x = torch.randn(4, 3, requires_grad=True)
    result = ours(x, x)[0].sum()
    result.backward(retain_graph=True)
    result.backward(retain_graph=True)
    ours(x, x)
    with pytest.raises(KernelError, match="without cuda_graphs"):
        result.backward()


def test_kinds_of_calls(graphs: list[int]) -> None:
    _, ours = _pair()
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    for _ in range(2):
        ours(x, y)
        ours(x, y, power=2)
        ours(x[:2], y[:2])
        ours(x, y.clone().requires_grad_())
    with torch.no_grad():
        ours(x, y)
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x, y)[0].dtype is torch.float32  # times a float32 weight
    assert _recordings(ours) == 6
    replays = len(graphs)
    ours.eval()(x, y)
    assert len(graphs) == replays and _recordings(ours) == 6
    ours.train()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (5, 6, 7, 8):
            ours(torch.randn(rows, 3), torch.randn(rows, 3))
        ours(torch.randn(9, 3), torch.randn(9, 3))
    assert _recordings(ours) == recorded.MAX_RECORDINGS
    assert [str(w.message).split(":")[0] for w in caught] == ["Layer runs without CUDA graphs"]


def test_results_that_are_none_an_input_or_changed_in_place(graphs: list[int]) -> None:
    """As Protenix's blocks without a single track, and OpenFold3's predictions have them."""
    _, ours = _pair()
    x, y = torch.randn(4, 3), torch.randn(4, 3)

    def forward(self: Layer, a: Tensor, b: Tensor) -> tuple[None, Tensor, Tensor]:
        return None, a.add_(b), b

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(Layer, "forward", forward)
        for _ in range(2):
            nothing, made, same = ours(x, y)
            assert nothing is None and same is y
            torch.testing.assert_close(made, x + y)
    assert len(graphs) == 2


def test_moved_parameters_are_recorded_again(graphs: list[int]) -> None:
    _, ours = _pair()
    x = torch.randn(4, 3)
    before = ours(x, x)[0]
    ours.inner.weight.data = ours.inner.weight.data * 2
    after = ours(x, x)[0]
    torch.testing.assert_close(after, to_torch(copy.deepcopy(ours))(x, x)[0])
    assert not torch.equal(before, after)
    ours.inner.bias = None
    assert not torch.equal(ours(x, x)[0], after)
    ours.tied = nn.Identity()
    torch.testing.assert_close(ours(x, x)[0], torch.tanh(ours.inner(x)) * ours.scale * x)
    with pytest.warns(RuntimeWarning, match="keep moving"):
        for _ in range(recorded.MAX_MOVES):
            ours.inner.weight.requires_grad_(not ours.inner.weight.requires_grad)
            ours(x, x)


def test_a_rate_that_changes_is_recorded_again(graphs: list[int]) -> None:
    plain, ours = _pair()
    for module in (plain, ours):
        module.inner.register_forward_hook(lambda layer, _, out: out * layer.factor)
    x = torch.randn(4, 3)
    moves = []
    for factor in (2.0, 2.0, 3.0):
        plain.inner.factor = ours.inner.factor = factor  # type: ignore[assignment]
        _same(ours(x, x), plain(x, x))
        moves.append(recorded._states[ours][True]._moves)
    assert len(graphs) == 3 and moves == [0, 0, 1]


def test_where_nothing_is_recorded(graphs: list[int]) -> None:
    plain, ours = _pair()
    x = torch.randn(4, 3, requires_grad=True)
    for reason, call in {
        "hooks on saved tensors": lambda: checkpoint(ours, x, x, use_reentrant=False),
        "inside a backward": lambda: checkpoint(ours, x, x, use_reentrant=True),
        "a list": lambda: ours(x, x, power=[1]),
        "torch.func": lambda: torch.func.vmap(lambda t: ours(t, t)[0])(x.detach()[None]),
    }.items():
        with pytest.warns(RuntimeWarning, match=f"Layer runs without CUDA graphs: .*{reason}"):
            try:
                found = call()
                if found[0].requires_grad:
                    found[0].sum().backward()
            except TypeError:  # x ** [1], as it always was
                pass
    count = len(graphs)
    with recorded.paused():
        _same(ours(x, x), plain(x, x))
    assert len(graphs) == count


def test_recordings_die_with_their_module(
    graphs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_recorded", lambda device, pool, f: (f(), lambda: None))
    _, ours = _pair()
    x = torch.randn(4, 3, requires_grad=True)
    _grads(ours, ours(x, x), [x])
    ((only,),) = recorded._states[ours][True]._recordings.values()
    held = weakref.ref(only), weakref.ref(ours)
    del ours, only
    gc.collect()
    assert [ref() for ref in held] == [None, None]


def test_cycles_of_a_compiler_are_collected_before_a_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `torch.compile` leaves the first pass: its nodes belong to the stream of that pass."""
    inside: list[Any] = []
    for name in ("CUDAGraph", "default_generators"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **how: contextlib.nullcontext())
    monkeypatch.setattr(recording, "_recording_stream", lambda device: None)
    gc.collect()
    weight = torch.ones(2, requires_grad=True)
    cycle: dict[str, Any] = {"pass": (2 * weight).sum()}
    cycle["itself"] = cycle
    node = weakref.ref(cycle["pass"])
    del cycle
    assert node() is not None
    gc.disable()
    try:
        recording.record_graph(torch.device("cuda", 0), None, lambda: inside.append(node()))
    finally:
        gc.enable()
    assert inside == [None]


def test_functions_that_cannot_be_recorded_run_eagerly(
    graphs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, ours = _pair()
    x = torch.randn(4, 3)

    def fail(*arguments: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(recording, "_recorded", fail)
    with pytest.warns(RuntimeWarning, match="cannot be recorded: operation not permitted"):
        _same(ours(x, x), plain(x, x))
    assert ours.inner.weight is ours._modules["inner"]._parameters["weight"]
    assert isinstance(ours.inner.weight, nn.Parameter)


def test_a_model_on_the_cpu_says_so_once() -> None:
    plain, ours = _pair()
    x = torch.randn(4, 3)
    with pytest.warns(RuntimeWarning, match="Layer runs without CUDA graphs: .* on cpu"):
        _same(ours(x, x), plain(x, x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _same(ours(x, x), plain(x, x))


def test_only_the_outermost_module_is_recorded_and_classes_come_back() -> None:
    model = nn.Sequential(evoformer_block(), nn.LayerNorm(16), Layer())
    classes = [type(module) for module in model.modules()]
    to_fused(model)
    to_fused(model, cuda_graphs=True)
    fused = {n: module for n, module in model.named_modules() if isinstance(module, Fused)}
    assert {name for name, module in fused.items() if module.recorded} == {"0", "2"}
    assert "0.pair_stack" in fused and "1" in fused
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [type(a) for a in again.modules()] == [type(a) for a in model.modules()]
    to_fused(model)
    assert not any(module.recorded for module in model.modules() if isinstance(module, Fused))
    assert [type(module) for module in to_torch(model).modules()] == classes


@pytest.mark.gpu
@pytest.mark.parametrize("amp", [False, True])
def test_on_a_gpu_bits_are_those_of_the_eager_block(amp: bool, device: str) -> None:
    if device != "cuda":
        pytest.skip("records real CUDA graphs")
    torch.manual_seed(0)
    plain = randomised(evoformer_block())
    plain.to("cuda", torch.float32 if amp else torch.bfloat16)
    ours = to_fused(copy.deepcopy(plain), cuda_graphs=True)
    to_fused(plain)
    masks = [torch.ones(1, 8, 64, device="cuda"), torch.ones(1, 64, 64, device="cuda")]
    masks = [mask.bfloat16() for mask in masks]
    for n in range(3):
        found = []
        for block in (plain, ours):
            torch.manual_seed(n)
            m, z = (torch.randn(1, k, 64, 16, device="cuda").bfloat16() for k in (8, 64))
            block.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=amp):
                with torch.no_grad():
                    block(m, z, *masks)
                results = block(m.requires_grad_(), z.requires_grad_(), *masks)
            torch.autograd.backward(results, [torch.ones_like(t) for t in results])
            grads = [t.grad for t in (m, z, *block.parameters())]
            found.append([*results, *grads, torch.rand(3, device="cuda")])
        assert all(map(torch.equal, *found))


def test_a_recorded_module_compiles_whole() -> None:
    plain, ours = _pair()
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    x = torch.randn(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        _same(compiled(x, x), plain(x, x))
