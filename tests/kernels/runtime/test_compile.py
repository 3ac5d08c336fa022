"""The fused ops as `torch.library` operators, and under `torch.compile`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.kernels.weights import evoformer_block, extra_msa_block, randomised, results
from torch import Tensor, nn

from evofeed.kernels import to_fused
from evofeed.kernels.runtime.cases import Draw, declared
from evofeed.kernels.runtime.torch_library import Operator

pytestmark = pytest.mark.slow

S, R = 2, 3
C_M, C_Z = 16, 16
CASES = [(name, [*it.cases][-1]) for name, it in declared().items()]
"""Of each operator the case that is declared last, which has most of what it may be given."""
Call = tuple[Any, tuple[Any, ...], tuple[Tensor | None, ...]]


def _inputs(names: list[str], device: str) -> list[Tensor]:
    shapes = {"m": (1, S, R, C_M), "z": (1, R, R, C_Z), "msa_mask": (1, S, R)}
    torch.manual_seed(0)
    made = {name: torch.randn(*shape) for name, shape in shapes.items()}
    made["msa_mask"] = (torch.rand(1, S, R) > 0.2).float()
    made["pair_mask"] = (torch.rand(1, R, R) > 0.2).float()
    return [made[name].to(device) for name in names]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Call]:
    """Operators that were applied, by name, with their options and tensors."""
    calls: dict[str, Call] = {}
    for how in ("apply", "apply_with_input"):
        plain = getattr(Operator, how).__func__

        def spy(cls: Any, options: Any, *tensors: Any, plain: Any = plain, **more: Any) -> Any:
            calls[cls.compiled._schema.name.removeprefix("evofeed::")] = (cls, options, tensors)
            return plain(cls, options, *tensors, **more)

        monkeypatch.setattr(Operator, how, classmethod(spy))
    return calls


def _check(call: Call, *tests: str) -> None:
    """The forward and the backward operator keep the contract of `torch.library`."""
    op, options, tensors = call
    leaves = [
        torch.empty(0, device=tensors[0].device)  # type: ignore[union-attr]
        if t is None
        else t.detach().clone().requires_grad_(t.requires_grad)
        for t in tensors
    ]
    torch.library.opcheck(op.compiled, (leaves, *options), test_utils=tests)
    made = op.compiled(leaves, *options)
    saved = [leaves[n] for n in op.saved_inputs] + list(made[0 if op.saves_result else 1 :])
    backward = getattr(torch.ops.evofeed, f"{op.compiled._schema.name[9:]}_backward").default
    inputs = [torch.randn_like(made[0]), *(t.detach() for t in saved)]
    torch.library.opcheck(
        backward, (inputs, *options), test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize(("operator", "case"), CASES)
def test_an_operator_keeps_its_contract(
    operator: str, case: str, seen: dict[str, Call], half: torch.dtype, device: str
) -> None:
    """Shapes without numbers are those of the kernels, no result shares memory with another."""
    it = declared()[operator]
    made = it.cases[case](Draw(S, R, device, half))
    made.call(it.op)(*(t.requires_grad_() for t in made.tensors.values()))
    assert seen
    for call in seen.values():
        _check(call, "test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize(("operator", "case"), CASES)
def test_a_compiled_operator_gives_the_eager_gradients(
    operator: str, case: str, device: str
) -> None:
    torch._dynamo.reset()
    it = declared()[operator]
    made = it.cases[case](Draw(S, R, device))
    op = made.call(it.op)
    leaves = [t.requires_grad_() for t in made.tensors.values()]
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    for a, b in zip(results(op, leaves), results(compiled, leaves), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


def test_symbolic_sizes_go_through(seen: dict[str, Call], device: str) -> None:
    it = declared()["layer_norm"]
    made = it.cases["plain"](Draw(S, R, device))
    made.call(it.op)(*(t.requires_grad_() for t in made.tensors.values()))
    _check(seen["layer_norm"], "test_aot_dispatch_dynamic")


def _grads(module: nn.Module, call: Any, names: list[str], device: str) -> list[Tensor]:
    leaves = _inputs(names, device)
    given = [t.requires_grad_("mask" not in n) for t, n in zip(leaves, names, strict=True)]
    return results(call, given, [*module.parameters()])


def test_a_compiled_model_recompiles_for_another_length(device: str) -> None:
    torch._dynamo.reset()
    norm = to_fused(nn.LayerNorm(C_M)).to(device)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    for length in (3, 4, 7):  # the second length makes the sizes symbolic
        x = torch.randn(length, C_M, device=device, requires_grad=True)
        (ours,) = torch.autograd.grad(compiled(x).sin().sum(), [x])
        (eager,) = torch.autograd.grad(norm(x).sin().sum(), [x])
        torch.testing.assert_close(ours, eager)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """The tests' shape checks are no code for a compiler."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked")
def test_a_whole_block_is_traced_without_a_break_or_a_warning() -> None:
    torch._dynamo.reset()
    # its kinds of attention are all but global columns, which are compiled as an operator
    fused = to_fused(evoformer_block().eval())
    inputs = _inputs(["m", "z", "msa_mask", "pair_mask"], "cpu")
    with torch.no_grad():
        compiled = torch.compile(fused, fullgraph=True, backend="eager")(*inputs)
        assert all(map(torch.equal, compiled, fused(*inputs)))


@pytest.mark.gpu
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("block", [evoformer_block, extra_msa_block])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_whole_block_compiles_and_captures(block: Any, mode: str, device: str) -> None:
    if device != "cuda":
        pytest.skip("needs a GPU: minutes under the interpreter")
    torch._dynamo.reset()
    fused = to_fused(randomised(block().to(device).eval()))
    compiled = torch.compile(fused, fullgraph=True, mode=mode)
    names = ["m", "z", "msa_mask", "pair_mask"]
    eager = _grads(fused, fused, names, device)
    for _ in range(3):  # the third call of `reduce-overhead` replays a graph
        ours = _grads(fused, compiled, names, device)
        for a, b in zip(ours, eager, strict=True):
            # gradients that are nothing but rounding exist: a shift of all logits changes nothing
            assert float((a - b).abs().max()) < 1e-4 * max(1.0, float(b.abs().max()))


@pytest.mark.gpu
def test_a_graph_of_a_training_block_draws_fresh_dropout(device: str) -> None:
    if device != "cuda":
        pytest.skip("CUDA graphs need a GPU")
    block = to_fused(randomised(evoformer_block().to(device)))
    inputs = _inputs(["m", "z", "msa_mask", "pair_mask"], device)
    leaves = [inputs[0].requires_grad_(), inputs[1].requires_grad_()]

    def step() -> list[Tensor]:
        outs = block(*inputs)
        return [*outs, *torch.autograd.grad([o.sum() for o in outs], leaves)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
    replays = []
    for _ in range(2):
        graph.replay()
        replays.append([t.clone() for t in kept])
    assert all(torch.isfinite(t).all() for t in replays[0])
    assert not torch.equal(replays[0][1], replays[1][1])
