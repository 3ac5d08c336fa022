"""Traced calls: which are traced, which calls replay them, and their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from tests.kernels.weights import evoformer_block, results
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evofeed.kernels import OnePass, to_fused
from evofeed.kernels.runtime import prepared, torch_library
from evofeed.kernels.runtime.cases import Draw, declared
from evofeed.kernels.runtime.one_pass import computed_once
from evofeed.kernels.runtime.prepared import Prepared, kind_of
from evofeed.kernels.runtime.projection import pack
from evofeed.trainer.model.outer_product_mean import OuterProductMean
from evofeed.trainer.model.transition import MSATransition

pytestmark = [
    pytest.mark.gpu,
    # PyTorch's remark where the first product of a process is made in autograd's own thread
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call of a kind is traced already."""
    monkeypatch.setattr(prepared, "TRACE_AFTER", 1)


@contextmanager
def as_written() -> Iterator[None]:
    """Every call runs its own Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_library, "kind_of", lambda *call: None)
        yield


def written_calls() -> list[Callable[..., Any]]:
    return [call for found in prepared._caches for call in found.values() if type(call) is not int]


def same_bits(ours: Sequence[Tensor | None], plain: Sequence[Tensor | None]) -> None:
    assert len(ours) == len(plain)
    for a, b in zip(ours, plain, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(a, b)


def run(call: Prepared, tensors: list[Any], *constants: Any) -> Sequence[Tensor | None]:
    with torch.no_grad():
        return call(kind_of(tensors, *constants), tensors, *constants)


SOME = [  # interpreted, with most of what may be given
    (name, case)
    for name, it in declared().items()
    for case in it.cases
    if torch.cuda.is_available() or case == [*it.cases][-1]
]


@pytest.mark.parametrize(("operator", "case"), SOME)
def test_repeated_calls_give_the_same_bits(
    operator: str, case: str, half: torch.dtype, device: str
) -> None:
    it = declared()[operator]
    made = it.cases[case](Draw(2, 3, device, half))
    op = made.call(it.op)

    def run(call: int) -> list[Tensor]:
        leaves = [(t * (1 + 0.1 * call)).detach().requires_grad_() for t in made.tensors.values()]
        return results(op, leaves)

    *_, ours = [run(call) for call in range(3)]
    assert len(written_calls()) >= 2  # the third ran no other
    with as_written():
        same_bits(ours, run(2))


def _without_gradients(block: nn.Module, *inputs: Tensor) -> Any:
    with torch.no_grad():
        return block(*inputs)


def _cast(block: nn.Module, *inputs: Tensor) -> Any:
    device = inputs[0].device.type
    with torch.autocast(device, torch.float16 if device == "cpu" else torch.bfloat16):
        return block(*inputs)


def _offloaded(block: nn.Module, *inputs: Tensor) -> Any:
    def pack(t: Tensor) -> Tensor:  # kept elsewhere, and other strides when it comes back
        return t.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.clone()):
        return block(*inputs)


ONE_PASS = OnePass()


def _in_a_pass(block: nn.Module, *inputs: Tensor) -> Any:
    with ONE_PASS:
        return _cast(block, *inputs)


def _checkpointed_in_a_row(block: nn.Module, *inputs: Tensor) -> Any:
    """The first runs its Python, the others and what is made again later do not."""
    m, z, *masks = inputs
    for _ in range(2):
        m, z = checkpoint(block, m, z, *masks, use_reentrant=False)
    return m, z


class Two(nn.Module):
    """A transition of the MSA, and pairs made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.msa_transition, self.outer = MSATransition(16, 2), OuterProductMean(16, 16, 16)

    def forward(self, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor) -> Any:
        """The MSA and the pairs behind both."""
        m = m + self.msa_transition(m, msa_mask)
        return m, z * pair_mask[..., None] + self.outer(m, msa_mask)


HOW: list[Callable[..., Any]] = [
    lambda block, *inputs: checkpoint(block, *inputs, use_reentrant=False),
    lambda block, *inputs: checkpoint(block, *inputs, use_reentrant=True),
    lambda block, m, z, *masks: block(*block(m, z, *masks), *masks),
    _without_gradients, _checkpointed_in_a_row, _cast, _offloaded, _in_a_pass,
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "how"), [(evoformer_block, nn.Module.__call__), *((Two, how) for how in HOW)]
)
def test_a_block_keeps_its_gradients_and_hooks(
    make: Callable[[], nn.Module], how: Callable[..., Any], device: str
) -> None:
    torch.manual_seed(0)
    block = to_fused(make().to(device))
    frozen: Any = block.get_parameter("msa_transition.linear_1.weight").requires_grad_(False)
    shapes = (1, 2, 3, 16), (1, 3, 3, 16), (1, 2, 3), (1, 3, 3)
    fired: list[str] = []
    for name, weight in block.named_parameters():
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))

    def step(call: int) -> list[Tensor | None]:
        torch.manual_seed(call)
        m, z, *masks = (torch.randn(shape, device=device) for shape in shapes)
        inputs = m.requires_grad_(), z.requires_grad_(), *(mask.sign().relu() for mask in masks)
        block.zero_grad()
        fired.clear()
        out = how(block, *inputs)
        if how is not _without_gradients:
            torch.autograd.backward(out, [torch.ones_like(t) for t in out])
            assert sorted(fired) == sorted(
                name for name, weight in block.named_parameters() if weight is not frozen
            )
        return [*(t.detach() for t in out), m.grad, z.grad, *(w.grad for w in block.parameters())]

    *_, ours = [step(call) for call in range(3)]
    assert len(written_calls()) >= (6 if make is evoformer_block else 2)
    with as_written():
        same_bits(ours, step(2))


class Sums(NamedTuple):
    """Sums of a mask."""

    total: Tensor
    least: Tensor


def _outcomes(call: Prepared, *calls: tuple[Any, ...]) -> list[Any]:
    return [run(call, *arguments)[0] for arguments in calls]


def test_a_call_is_repeated_only_for_its_like(device: str) -> None:
    ran: list[Any] = []

    def compute(tensors: Sequence[Any], factor: float) -> list[Tensor | None]:
        ran.append(factor)
        a, b = tensors
        return [a * factor if b is None else a @ b.t() * factor]

    call, x = Prepared(compute), torch.randn(4, 4, device=device)
    for other in ([x, None], [x, x], [x.t(), x], [x[:2], x], [x.half(), x.half()], [x[1:], x]):
        ran.clear()
        got = _outcomes(call, *[(other, 2.0)] * 4, (other, 3.0))
        assert ran == [2.0, 2.0, 3.0]  # once as it is, once traced, then repeated
        same_bits(got[:3], [compute(other, 2.0)[0]] * 3)
        same_bits(got[4:], compute(other, 3.0))


def test_tensors_that_were_one_may_be_two_the_next_time() -> None:
    call = Prepared(lambda tensors: [tensors[0] - tensors[1]])
    x, y = torch.ones(3), torch.zeros(3)
    got = _outcomes(call, ([x, x],), ([x, x],), ([x, y],))
    same_bits(got, [y, y, x])


def test_what_reads_a_tensor_from_elsewhere_runs_its_own_python() -> None:
    elsewhere = torch.ones(3)
    call, x = Prepared(lambda tensors: [torch.cat([tensors[0], elsewhere])]), torch.zeros(2)
    _outcomes(call, ([x],), ([x],))
    elsewhere = torch.zeros(3)
    assert not _outcomes(call, ([x],))[0].any()


class Pair(NamedTuple):
    """Two tensors, given to PyTorch as such."""

    first: Tensor
    second: Tensor


def _in_float32(tensors: Sequence[Any]) -> list[Tensor | None]:
    with torch.autocast("cpu", enabled=False):
        return [tensors[0] @ tensors[0]]


NEVER: dict[str, Callable[[Sequence[Any]], list[Tensor | None]]] = {
    "a number": lambda tensors: [tensors[0] * tensors[0].max().item()],
    "a branch": lambda tensors: [tensors[0] + 1 if tensors[0].sum() > 9 else tensors[0] - 1],
    "an index": lambda tensors: [tensors[0][: int(tensors[0].sum()) % 4]],
    "autocast": _in_float32,
    "a tuple of another type": lambda tensors: [torch.cat(Pair(tensors[0], tensors[0] * 2))],
    "old and new": lambda tensors: [sum(torch.broadcast_tensors(tensors[0], tensors[0][:1]))],
}


@pytest.mark.parametrize("name", NEVER)
def test_what_cannot_be_repeated_runs_its_own_python(name: str) -> None:
    call = Prepared(NEVER[name])
    with torch.autocast("cpu", torch.bfloat16):
        for k in range(5):
            x = torch.full((2, 2), float(k))
            same_bits(run(call, [x]), NEVER[name]([x]))
    assert not written_calls()


def test_autocast_and_tf32_make_a_call_another() -> None:
    x, kinds = [torch.ones(2, 2)], set()
    for dtype in (torch.bfloat16, torch.float16):
        with torch.no_grad(), torch.autocast("cpu", dtype):
            kinds.add(kind_of(x))
    matmul: Any = torch.backends.cuda.matmul
    try:
        for name, values in (("allow_tf32", (False, True)), ("fp32_precision", ("ieee", "tf32"))):
            if hasattr(matmul, name):
                for value in values:
                    setattr(matmul, name, value)
                    with torch.no_grad():
                        kinds.add(kind_of(x))
    finally:
        matmul.allow_tf32 = False
    assert len(kinds) == 4


def test_what_a_pass_keeps_is_asked_for_again() -> None:
    def compute(tensors: Sequence[Any]) -> list[Tensor | None]:
        weight, mask = tensors
        total, least = computed_once(("sum",), (mask,), lambda mask: Sums(mask.sum(), mask.min()))
        return [pack([weight], torch.float64) * total + least]

    call, weight, mask = Prepared(compute), nn.Parameter(torch.ones(2)), torch.ones(3)
    one_pass = OnePass()
    for value in range(5):
        with torch.no_grad():
            weight.fill_(value)
            mask.fill_(value + 1)
        with one_pass:
            (got,) = run(call, [weight, mask])
        same_bits([got], [weight.double() * 3 * (value + 1) + value + 1])
    assert len(written_calls()) == 1
    (got,) = run(call, [weight, mask])  # outside it is another kind of call
    assert len(call._by_kind) == 2
