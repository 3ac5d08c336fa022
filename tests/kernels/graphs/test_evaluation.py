"""`to_fused(model, cuda_graphs=True)` in evaluation mode: calls that come again."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.kernels.weights import evoformer_block, randomised
from torch import Tensor, nn

from evofeed.kernels import to_fused
from evofeed.kernels.fused_module import Fused
from evofeed.kernels.graphs import arguments, recorded, recording
from evofeed.kernels.graphs.evaluation import EAGER_CALLS, MAX_RECORDINGS

DENOISES = recorded.denoises
MODES = pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])


class Step(nn.Module):
    """A step of sampling: its batch says how many atoms a token has, and is the same every time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(
        self, x: Tensor, t: Tensor, batch: dict[str, Any], cache: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        if cache is not None and "wide" not in cache:
            cache["wide"] = functools.partial(torch.repeat_interleave, repeats=batch["counts"])
        counts = batch["counts"] * batch["inner"]["mask"].int()
        scale = torch.zeros(1).fill_(2.0).to(x)  # a number of the host's
        tokens = torch.tanh(self.inner(x)) * t * scale
        wide = torch.repeat_interleave(tokens, counts, dim=0)
        return {"atoms": wide.reshape(int(counts.sum()), 3), "tokens": [tokens, None]}


@pytest.fixture(autouse=True)
def step_has_a_fused_form(
    has_a_fused_form: Callable[[type[nn.Module]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    has_a_fused_form(Step)
    monkeypatch.setattr(recorded, "denoises", lambda module: isinstance(module, Step))


def _pair() -> tuple[Step, Step]:
    torch.manual_seed(0)
    plain = Step().eval()
    return plain, to_fused(copy.deepcopy(plain), cuda_graphs=True)


def _batch(*counts: int) -> dict[str, Any]:
    return {"counts": torch.tensor(counts), "inner": {"mask": torch.ones(len(counts))}}


def _recordings(module: nn.Module) -> dict[Any, Any]:
    return recorded._states[module][False]._evaluation.recordings


def _assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected)


@MODES
def test_the_ninth_call_of_a_kind_in_a_row_is_recorded(
    graphs: list[int], monkeypatch: pytest.MonkeyPatch, mode: Callable[[], Any]
) -> None:
    plain, ours = _pair()
    batch, t = _batch(1, 2), torch.ones(1)
    batches = [_batch(*[2] * (count + 1)) for count in range(MAX_RECORDINGS + 2)]
    for count, shape in enumerate(batches, 1):
        for call in range(EAGER_CALLS + 2):
            x, replays = torch.randn(count, 3), len(graphs)
            with mode():
                _assert_close(ours(x, t + call, shape), plain(x, t + call, shape))
            assert len(graphs) == replays + (call >= EAGER_CALLS)
        assert len(_recordings(ours)) == min(count, MAX_RECORDINGS)
    with mode():
        _assert_close(ours(x[:2], t, batch), plain(x[:2], t, batch))
    with pytest.warns(RuntimeWarning, match="an argument is a dict"):  # a step that is trained
        ours.train()(x, t, shape)["atoms"].sum().backward()
    assert recorded._states[ours][False]._moves == 0
    assert len(_recordings(ours)) == MAX_RECORDINGS
    monkeypatch.setattr(arguments.SameArgument, "gone", lambda same: True)  # batches of the past
    with mode():
        ours.eval()(x[:2], t, batch | {"more": 1})
    assert not _recordings(ours)


@torch.no_grad()
def test_a_batch_is_read_in_place_as_long_as_it_is_the_same(graphs: list[int]) -> None:
    plain, ours = _pair()
    x, t = torch.randn(2, 3), torch.ones(1)

    def recorded_with(batch: dict[str, Any], t: Tensor = t) -> bool:
        before = len(graphs)
        _assert_close(ours(x, t, batch), plain(x, t, batch))
        return len(graphs) > before

    def again(batch: dict[str, Any]) -> None:
        assert not any(recorded_with(batch, t + n) for n in range(EAGER_CALLS))
        assert all(recorded_with(batch, t + n) for n in range(3))

    batch = _batch(1, 2)
    again(batch)
    (only,) = _recordings(ours).values()
    assert len(only.stable) == 3 and only.recording._inputs[0].shape == t.shape  # x too stays
    again(_batch(2, 1))  # other tensors, of equal shapes
    for _ in range(2):  # predictions that are too short
        batch = _batch(1, 3)
        assert not any(recorded_with(batch, t + n) for n in range(EAGER_CALLS // 2))
    batch = _batch(3, 1)
    again(batch)
    batch["counts"].copy_(torch.tensor([2, 2]))  # a tensor that changed, and one in its place
    assert not recorded_with(batch)
    batch["inner"]["mask"] = torch.zeros(2)
    assert not recorded_with(batch)
    assert len(_recordings(ours)) == 0
    counts = weakref.ref(batch["counts"])
    again(batch)
    recordings = _recordings(ours)
    del batch
    recordings.clear()  # the fixture's graphs keep the function that they run; real ones do not
    gc.collect()
    assert counts() is None


@torch.no_grad()
def test_a_cache_that_the_first_call_fills(graphs: list[int]) -> None:
    plain, ours = _pair()
    batch, caches = _batch(1, 2), ({}, {})
    for n in range(EAGER_CALLS + 3):
        x, t = torch.randn(2, 3), torch.full([1], float(n))
        _assert_close(ours(x, t, batch, cache=caches[0]), plain(x, t, batch, cache=caches[1]))
    assert len(graphs) == 2  # the second call was the first of its kind


class StepOf(Step):
    """A step with the forward of a test."""

    def __init__(self, how: Callable[[Tensor, Tensor, Any], Any]) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, t: Tensor, batch: Any, cache: Any = None) -> Any:
        return self.how(x, t, batch)


def _step(how: Callable[[Tensor, Tensor, Any], Any]) -> Any:
    return to_fused(StepOf(how).eval(), cuda_graphs=True)


def _reads_overwritten(x: Tensor, t: Tensor, batch: Any) -> Tensor:
    buffer = torch.zeros(2)
    buffer[:1] = t
    return x * int(buffer.sum())


def _reads_written_twice(x: Tensor, t: Tensor, batch: Any) -> Tensor:
    buffer = torch.zeros(2).mul_(t)
    buffer.add_(t.expand(2)).add_(x[0, 0])
    return x * int(buffer.add_(1).sum())


READS: dict[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    "a changing value": lambda x, t, batch: x * (2 if t.sum() > 3 else 1),
    "uninitialised memory": lambda x, t, batch: (
        x * int(torch.empty(2, dtype=torch.int64).copy_(t.long().expand(2)).sum())
    ),
    "a random number": lambda x, t, batch: x * int(torch.randint(9, [1])),
    "overwritten memory": _reads_overwritten,
    "memory written twice": _reads_written_twice,
    "a number of repeats": lambda x, t, batch: torch.repeat_interleave(
        x, t.long().expand(2), dim=0
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("case", READS)
def test_a_number_that_may_change_is_not_taken_for_a_constant(graphs: list[int], case: str) -> None:
    how, batch = READS[case], _batch(1, 2)
    ours = _step(how)
    with pytest.warns(RuntimeWarning, match="cannot be recorded: the host waits for a number"):
        for n in range(EAGER_CALLS + 2):
            x, t = torch.randn(2, 3), torch.full([1], float(n))
            torch.manual_seed(n)
            result = ours(x, t, batch)
            torch.manual_seed(n)
            assert torch.equal(result, how(x, t, batch))
    assert not graphs


def _products(x: Tensor, t: Tensor, batch: Any) -> Tensor:
    fixed = torch.relu(x @ x.T) * 2
    return fixed.T @ x * t + fixed.sum()


def _in_place(x: Tensor, t: Tensor, batch: Any) -> tuple[Tensor, ...]:
    one_hot = torch.zeros(2, 4).scatter_(1, batch["counts"][:, None], 1.0)
    summed = one_hot * 2
    summed += one_hot
    read_before = x * 3
    half = read_before / 2
    read_before.add_(1)
    mixed = x.exp()
    view = mixed[:1]
    double = mixed * 2
    view.mul_(t)
    begun = torch.zeros(3)
    begun[:2] += x.sum(0)[:2]
    begun[1:] += t
    return summed * t, half * t, read_before * t, double + mixed, begun, one_hot


def _several(x: Tensor, t: Tensor, batch: Any) -> tuple[Tensor, ...]:
    values, order = (x * 2).sort(0)
    first, second = torch.cat([values, x]).chunk(2)
    return first[order[:, 0]] * t, second + t, torch.cat([x * 5, x * t]), torch.zeros(2) + t


@MODES
@pytest.mark.parametrize("how", [_products, _in_place, _several])
def test_results_of_unchanging_tensors_are_computed_once(
    graphs: list[int], mode: Callable[[], Any], how: Callable[..., Any]
) -> None:
    ours, batch, x = _step(how), _batch(1, 2), torch.randn(2, 3)
    for n in range(EAGER_CALLS + 4):
        t = torch.full([1], float(n))
        with mode():
            _assert_close(ours(x, t, batch), how(x, t, batch))
    assert len(graphs) == 4
    (only,) = _recordings(ours).values()
    assert only.constants[1]


@MODES
@pytest.mark.parametrize("denoises", [True, False])
def test_tensors_that_the_caller_changes_in_place(
    graphs: list[int], monkeypatch: pytest.MonkeyPatch, mode: Callable[[], Any], denoises: bool
) -> None:
    monkeypatch.setattr(recorded, "denoises", lambda module: denoises)
    ours = _step(_products)
    with mode():
        x, t, batch = torch.randn(2, 3), torch.ones(1), {"unused": torch.ones(2)}
        for n in range(4 * EAGER_CALLS):
            t.add_(1)
            batch["unused"].add_(1)
            if n % 11 == 10:
                x.add_(t)
            _assert_close(ours(x, t, batch), _products(x, t, batch))
    assert len(graphs) >= EAGER_CALLS


@torch.no_grad()
def test_weights_that_an_optimizer_changed_are_read_again(graphs: list[int]) -> None:
    plain, ours = _pair()
    x, batch = torch.randn(2, 3), _batch(1, 2)
    for _ in range(2):
        for n in range(EAGER_CALLS + 2):
            t = torch.full([1], float(n))
            _assert_close(ours(x, t, batch), plain(x, t, batch))
        for step in (plain, ours):
            step.inner.weight.add_(1)
    assert len(graphs) == 4


@MODES
def test_a_tensor_that_a_step_changes_is_copied(graphs: list[int], mode: Callable[[], Any]) -> None:
    """Inference tensors have no version counter."""
    ours = _step(lambda x, t, batch: (batch["sum"].add_(t), x))
    with mode():
        batch, x = {"sum": torch.zeros(1)}, torch.zeros(2)
        for n in range(EAGER_CALLS + 2):
            batch["sum"].fill_(1.0)
            total, same = ours(x, torch.full([1], float(n)), batch)
            assert total.item() == 1 + n and torch.equal(same, x)
    assert len(graphs) == 2


class _Slots:
    __slots__ = ()


@torch.no_grad()
@pytest.mark.parametrize("odd", [_Slots(), 1j])
def test_an_argument_that_is_neither_tensor_nor_constant(graphs: list[int], odd: Any) -> None:
    _, ours = _pair()
    x, t, batch = torch.randn(2, 3), torch.ones(1), {**_batch(1, 1), "odd": odd}
    with pytest.warns(RuntimeWarning, match="an argument is a .*, not a tensor or a constant"):
        for _ in range(EAGER_CALLS + 2):
            ours(x, t, batch)
    assert not graphs


@torch.no_grad()
def test_threads_that_predict_get_their_own_results(graphs: list[int]) -> None:
    plain, ours = _pair()
    batch, t = _batch(1, 2), torch.ones(1)

    @torch.no_grad()
    def predict(number: int) -> bool:
        xs = [torch.full([2, 3], float(number)) for _ in range(60)]
        return all(
            torch.allclose(ours(x, t, batch)["atoms"], plain(x, t, batch)["atoms"]) for x in xs
        )

    assert predict(0)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(predict, range(4)))
    assert not recorded.paused.depth
    before = len(graphs)
    assert predict(9) and len(graphs) > before


def _unpickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


class Sampled(nn.Module):
    """With the parts and arguments of Boltz-2's diffusion module."""

    def __init__(self) -> None:
        super().__init__()
        for name in (
            "single_conditioner", "atom_attention_encoder", "s_to_a_linear", "token_transformer",
            "a_norm", "atom_attention_decoder",
        ):  # fmt: skip
            self.add_module(name, nn.Identity())

    def forward(
        self, s_inputs: Tensor, s_trunk: Tensor, r_noisy: Tensor, times: Any = None,
        feats: Any = None, diffusion_conditioning: Any = None, multiplicity: int = 1,
    ) -> Tensor:  # fmt: skip
        return self.a_norm(s_trunk * 2) + r_noisy


@torch.no_grad()
@pytest.mark.parametrize("copied", [lambda model: model, copy.deepcopy, _unpickled])
def test_a_roll_out_of_a_model_in_training_is_not_recorded(
    copied: Callable[[Any], Any], graphs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Protenix has it: twenty steps of its diffusion module in evaluation mode."""
    monkeypatch.setattr(recorded, "denoises", DENOISES)
    model = nn.ModuleList([Sampled()])
    assert not isinstance(to_fused(model)[0], Fused)
    model = copied(to_fused(model, cuda_graphs=True))
    step: Any = model[0].eval()
    pairs = torch.randn(2, 3)

    def roll_out() -> int:
        before = len(graphs)
        for _ in range(EAGER_CALLS + 2):
            x = torch.randn(2, 3)
            assert torch.equal(step(pairs, pairs, x), pairs * 2 + x)
        return len(graphs) - before

    assert model.training and roll_out() == 0
    model.eval()
    assert roll_out() == 2
    assert not isinstance(to_fused(model)[0], Fused)


@pytest.mark.gpu
def test_on_a_gpu_a_failed_recording_leaves_earlier_ones_intact(device: str) -> None:
    if device != "cuda":
        pytest.skip("records real CUDA graphs")
    gpu = torch.device("cuda", torch.cuda.current_device())
    memory = torch.zeros(4, device=gpu)
    _, replay = recording.record_graph(gpu, None, lambda: memory.copy_(torch.rand_like(memory)))

    def cut() -> Tensor:
        torch.rand(4, device=gpu)
        raise RuntimeError("cut short")

    drawn = []
    for short in (False, True):
        torch.manual_seed(0)
        for _ in range(2):
            if short:
                with pytest.raises(RuntimeError):
                    recording.record_graph(gpu, None, cut)
                with pytest.raises(RuntimeError):
                    recording.record_graph(gpu, None, lambda: memory.sum().item())
            replay()
            drawn.append([memory.tolist(), torch.rand(2, device=gpu).tolist()])
    assert drawn[:2] == drawn[2:]


@pytest.mark.gpu
@MODES
def test_on_a_gpu_bits_are_those_of_eager_calls(mode: Callable[[], Any], device: str) -> None:
    """A block's, whose arguments change, and a step's, which asks the host for numbers."""
    if device != "cuda":
        pytest.skip("records real CUDA graphs")
    plain = randomised(evoformer_block()).to("cuda", torch.bfloat16).eval()
    ours = to_fused(copy.deepcopy(plain), cuda_graphs=True)
    to_fused(plain)
    masks = [torch.ones(1, k, 64, device="cuda").bfloat16() for k in (8, 64)]
    steps = [step.cuda() for step in _pair()]
    batch, caches = _batch(1, 2), ({}, {})
    batch = {"counts": batch["counts"].cuda(), "inner": {"mask": batch["inner"]["mask"].cuda()}}
    for n in range(EAGER_CALLS + 4):
        m, z = (torch.randn(1, k, 64, 16, device="cuda").bfloat16() for k in (8, 64))
        x, t = torch.randn(2, 3, device="cuda"), torch.full([1], n + 1.0, device="cuda")
        with mode():
            assert all(map(torch.equal, ours(m, z, *masks), plain(m, z, *masks)))
            made, expected = (s(x, t, batch, c) for s, c in zip(steps, caches, strict=True))
        assert torch.equal(made["atoms"], expected["atoms"])
        assert torch.equal(made["tokens"][0], expected["tokens"][0])
    assert len(_recordings(ours)) == len(_recordings(steps[1])) == 1
    held = weakref.ref(batch["counts"])
    del batch, caches, made, expected
    gc.collect()
    assert held() is None
    for block in (plain.train(), ours.train()):
        torch.manual_seed(0)
        block(m, z, *masks)[1].square().sum().backward()
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        if a.grad is None or b.grad is None:
            assert a.grad is b.grad
        else:
            assert torch.equal(a.grad, b.grad)
