"""Calls that are repeated without their Python: same bits, whatever is asked of autograd."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from tests.kernels.runtime.cases import CASES
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evofeed.kernels import OnePass, to_fused
from evofeed.kernels.runtime import launching, prepared, torch_library
from evofeed.kernels.runtime.backend import HAS_GLUON
from evofeed.kernels.runtime.one_pass import once
from evofeed.kernels.runtime.prepared import Prepared, kind_of, restored
from evofeed.kernels.runtime.projection import pack
from evofeed.kernels.runtime.tiles import override
from evofeed.kernels.runtime.torch_library import Operator
from evofeed.kernels.runtime.written import places
from evofeed.trainer.model.evoformer import EvoformerBlock

pytestmark = [
    pytest.mark.gpu,
    # PyTorch's remark where the first product of a process is made in autograd's own thread
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]


@contextmanager
def _as_written() -> Iterator[None]:
    """Every call runs its own Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_library, "kind_of", lambda *call: None)
        yield


def _written() -> list[Callable[..., Any]]:
    return [call[0] for found in prepared._known for call in found.values() if type(call) is tuple]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call of a kind is traced already."""
    monkeypatch.setattr(prepared, "OFTEN", 1)


def _bits(ours: Sequence[Tensor | None], plain: Sequence[Tensor | None]) -> None:
    assert len(ours) == len(plain)
    for a, b in zip(ours, plain, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(a, b)


# --- every operator -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_repeated_calls_give_the_same_bits(name: str, half: torch.dtype, device: str) -> None:
    op, inputs = CASES[name]()

    def run(call: int) -> list[Tensor | None]:
        leaves = [(t * (1 + 0.1 * call)).to(device, half).requires_grad_() for t in inputs]
        out = op(*leaves)
        weight = torch.linspace(-1, 1, out.numel(), device=device, dtype=half).view_as(out)
        return [out.detach(), *torch.autograd.grad(out, leaves, weight, allow_unused=True)]

    *_, ours = [run(call) for call in range(3)]
    assert len(_written()) >= 2  # the third ran no other
    with _as_written():
        _bits(ours, run(2))


# --- memory and addresses -------------------------------------------------------------------------


class _AddOne:
    """A kernel that writes x + 1 to y, both given by address, and its launcher."""

    __name__ = "add_one"
    arg_names = ("x", "y", "n")
    function, packed_metadata = 0, ()

    def __getitem__(self, grid: Any) -> Any:
        return lambda x, y, n, **meta: (self.run(*(0,) * 9, x.data_ptr(), y.data_ptr(), n), self)[1]

    @staticmethod
    def run(*arguments: Any) -> None:
        x, y, n = arguments[9:]
        source, to = ((ctypes.c_float * n).from_address(at) for at in (x, y))
        for i in range(n):
            to[i] = source[i] + 1


ADD_ONE = _AddOne()


def _one_more(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    launching.launch(ADD_ONE, (1,), (x, y, x.numel()), {})
    return y


class _AddTwo(Operator, name="test_add_two"):
    """x + 2, with a gradient that reads what the forward pass made."""

    @staticmethod
    def forward(tensors: Sequence[Any], *options: Any) -> list[Tensor | None]:
        y = _one_more(tensors[0])
        return [_one_more(y), y]

    @staticmethod
    def backward(tensors: Sequence[Any], *options: Any) -> list[Tensor | None]:
        grad, y = tensors
        return [_one_more(grad.contiguous()) + _one_more(y)]

    @staticmethod
    def gradients(
        grad: Tensor, found: Sequence[Any], kinds: Sequence[Any], *options: Any
    ) -> Sequence[Tensor | None]:
        return found


@pytest.fixture
def by_address(monkeypatch: pytest.MonkeyPatch) -> _AddOne:
    """A kernel that is launched as on a GPU; CPU tensors pass for those of device 0."""
    monkeypatch.setattr(launching, "INTERPRETER", False)
    monkeypatch.setattr(launching, "_compiled", {})
    monkeypatch.setattr(Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 99, raising=False)
    return ADD_ONE


class _AddOneToTiles(_AddOne):
    """It gets the tiles of what it writes."""

    __name__ = "add_one_to_tiles"

    def __getitem__(self, grid: Any) -> Any:
        return lambda x, y, n, **meta: (self.run(*(0,) * 9, x.data_ptr(), y, n), self)[1]

    @staticmethod
    def run(*arguments: Any) -> None:
        x, y, n = arguments[9:]
        assert y.block_shape == [1, 8] and y.strides == [8, 1] and y.layout is not None
        _AddOne.run(*(0,) * 9, x, y.base.data_ptr(), n)


def _run(call: Prepared, tensors: list[Any], *constants: Any) -> Sequence[Tensor | None]:
    with torch.no_grad():
        return call(kind_of(tensors, *constants), tensors, *constants)[0]


@pytest.mark.skipif(not HAS_GLUON, reason="needs Triton 3.6")
def test_tiles_of_a_repeated_call_are_of_its_own_memory(by_address: _AddOne) -> None:
    kernel = _AddOneToTiles()

    def compute(tensors: Sequence[Any]) -> list[Tensor | None]:
        (x,) = tensors
        y = torch.empty_like(x)
        launching.launch(kernel, (1,), (x[8:], launching.tiles_in(y.view(4, 8)[1:], 1, 8), 24), {})
        return [y[8:] * 2]

    call = Prepared(compute)
    for k in range(4):
        x = torch.arange(32.0) + k
        (found,) = _run(call, [x])
        assert found is not None and torch.equal(found, (x[8:] + 1) * 2)
    assert len(_written()) == 1


def test_what_only_kernels_see_is_an_address_in_shared_memory(by_address: _AddOne) -> None:
    def compute(tensors: Sequence[Any], times: int) -> list[Tensor | None]:
        (x,) = tensors
        for _ in range(times):  # x + times, each in memory of its own
            y = torch.empty_like(x)
            launching.launch(by_address, (1,), (x[2:], y[2:], x.numel() - 2), {})
            launching.launch(by_address, (1,), (x, y, 2), {})
            x = y
        last = x.view(2, -1) * 2
        return [last, None, tensors[0]]

    call = Prepared(compute)
    for k in range(4):
        x = torch.arange(8.0) + k
        made = _run(call, [x], 5)
        _bits(made, [2 * (x + 5).view(2, 4), None, x])
        assert made[2] is x
    ((function, _),) = call._found.values()
    assert function.__code__.co_names.count("empty") == 1
    assert 512 in function.__code__.co_consts  # two tensors at a time, of the five
    assert 3 * 512 not in function.__code__.co_consts


def test_results_that_only_kernels_see_are_parts_of_one(by_address: _AddOne) -> None:
    def compute(tensors: Sequence[Any]) -> list[Tensor | None]:
        (x,) = tensors
        made = [torch.empty_like(x), torch.empty(2, 4), torch.empty(1, 8), torch.empty(0)]
        for y in made[:3]:
            launching.launch(by_address, (1,), (x, y, 8), {})
        made[2] += 1  # not by a kernel
        return [*made, x]

    call, x = Prepared(compute, joins=True), torch.arange(8.0)
    for _ in range(3):
        with torch.no_grad():
            results, parts = call(kind_of([x]), [x])
    assert [part.place for part in parts] == [-4] and results[1] is None
    y = x + 1
    whole = restored(results, parts)
    _bits(whole, [y, y.view(2, 4), y.view(1, 8) + 1, torch.empty(0), x])
    late, other = torch.arange(9.0)[1:], torch.arange(8.0)
    for given in (late, other):  # the first does not begin at a multiple of 16 bytes
        with torch.no_grad():
            results, parts = call(kind_of([given]), [given])
        assert bool(parts) == (given is other)
        _bits(restored(results, parts)[:1], [given + 1])


@pytest.mark.usefixtures("by_address")
@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_is_saved_is_joined_but_not_where_it_is_counted(checkpointed: bool) -> None:
    """A checkpoint wants the same tensors of a repeated call as of the one before it was traced."""
    saved: list[int] = []

    def run() -> list[Tensor | None]:
        x = y = torch.arange(8.0).requires_grad_()
        for _ in range(4):
            if checkpointed:
                y = checkpoint(lambda t: _AddTwo.apply((), t), y, use_reentrant=False)
            else:
                y = _AddTwo.apply((), y)
                assert y.grad_fn is not None
                saved.append(y.grad_fn.saved_tensors[-1].dtype.itemsize)
        (grad,) = torch.autograd.grad(y.sum(), x)
        return [y.detach(), grad]

    ours = [run() for _ in range(2)]
    assert saved == ([] if checkpointed else [4, 4, 1, 1, 1, 1, 1, 1])  # 1: bytes, with all in them
    with _as_written():
        plain = run()
    for each in ours:
        _bits(each, plain)


def test_parts_in_use_at_the_same_time_do_not_overlap() -> None:
    draw = random.Random(0)
    for _ in range(200):
        parts = {}
        for number in range(draw.randint(0, 12)):
            first = draw.randint(0, 10)
            parts[number] = draw.choice([0, 1, 512, 700, 5000]), first, draw.randint(first, 10)
        found, size = places(parts)
        for a, (bytes_a, first_a, last_a) in parts.items():
            assert found[a] % 512 == 0 and found[a] + bytes_a <= size
            for b, (bytes_b, first_b, last_b) in parts.items():
                if a < b and first_a <= last_b and first_b <= last_a and bytes_a and bytes_b:
                    assert found[a] + bytes_a <= found[b] or found[b] + bytes_b <= found[a]
        assert size <= sum(-(-part[0] // 512) * 512 for part in parts.values())


class Sums(NamedTuple):
    """What is made of a mask."""

    total: Tensor
    least: Tensor


# --- what makes a call another --------------------------------------------------------------------


def _outcomes(call: Prepared, *calls: tuple[Any, ...]) -> list[Any]:
    return [_run(call, *arguments)[0] for arguments in calls]


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
        _bits(got[:3], [compute(other, 2.0)[0]] * 3)
        _bits(got[4:], compute(other, 3.0))


def test_tensors_that_were_one_may_be_two_the_next_time() -> None:
    call = Prepared(lambda tensors: [tensors[0] - tensors[1]])
    x, y = torch.ones(3), torch.zeros(3)
    got = _outcomes(call, ([x, x],), ([x, x],), ([x, y],))
    _bits(got, [y, y, x])


def test_what_reads_a_tensor_from_elsewhere_runs_its_own_python() -> None:
    elsewhere = torch.ones(3)
    call, x = Prepared(lambda tensors: [torch.cat([tensors[0], elsewhere])]), torch.zeros(2)
    _outcomes(call, ([x],), ([x],))
    elsewhere = torch.zeros(3)
    assert not _outcomes(call, ([x],))[0].any()


def test_while_a_graph_is_recorded_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    call, x = Prepared(lambda tensors: [tensors[0] + 1]), torch.zeros(2)
    with monkeypatch.context() as recording:
        recording.setattr(prepared, "_recorded", lambda tensors: True)
        _outcomes(call, *[([x],)] * 3)
        assert not _written()
    _outcomes(call, ([x],))
    assert len(_written()) == 1


def test_another_tile_is_asked_for_again(device: str) -> None:
    ran: list[int] = []
    call, x = Prepared(lambda tensors: [ran.append(1), tensors[0] + 1][1:]), torch.zeros(2)
    _outcomes(call, *[([x],)] * 3)
    override("small_norm", 0)
    _outcomes(call, ([x],))
    assert len(ran) == 3


def test_what_a_pass_keeps_is_asked_for_again() -> None:
    def compute(tensors: Sequence[Any]) -> list[Tensor | None]:
        weight, mask = tensors
        total, least = once(("sum",), (mask,), lambda mask: Sums(mask.sum(), mask.min()))
        return [pack([weight], torch.float64) * total + least]

    call, weight, mask = Prepared(compute), nn.Parameter(torch.ones(2)), torch.ones(3)
    one_pass = OnePass()
    for value in range(5):
        with torch.no_grad():
            weight.fill_(value)
            mask.fill_(value + 1)
        with one_pass:
            (got,) = _run(call, [weight, mask])
        _bits([got], [weight.double() * 3 * (value + 1) + value + 1])
    assert len(_written()) == 1
    (got,) = _run(call, [weight, mask])  # outside it is another kind of call
    assert len(call._found) == 2


# --- what is asked of autograd --------------------------------------------------------------------


def _plain(block: nn.Module, *inputs: Tensor) -> Any:
    return block(*inputs)


def _without_gradients(block: nn.Module, *inputs: Tensor) -> Any:
    with torch.no_grad():
        return block(*inputs)


def _checkpointed(block: nn.Module, *inputs: Tensor) -> Any:
    return checkpoint(block, *inputs, use_reentrant=False)


def _checkpointed_again(block: nn.Module, *inputs: Tensor) -> Any:
    return checkpoint(block, *inputs, use_reentrant=True)


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


def _twice(block: nn.Module, *inputs: Tensor) -> Any:
    m, z = block(*inputs)
    return block(m, z, *inputs[2:])


def _checkpointed_in_a_row(block: nn.Module, *inputs: Tensor) -> Any:
    """The first runs its Python, the others and what is made again later do not."""
    m, z, *masks = inputs
    for _ in range(3):
        m, z = checkpoint(block, m, z, *masks, use_reentrant=False)
    return m, z


HOW = (
    _plain, _without_gradients, _checkpointed, _checkpointed_again, _checkpointed_in_a_row, _cast,
    _offloaded, _in_a_pass, _twice,
)  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_a_block_keeps_its_gradients_and_hooks(how: Callable[..., Any], device: str) -> None:
    torch.manual_seed(0)
    block = EvoformerBlock(
        c_m=16, c_z=16, c_hidden_msa_att=8, c_hidden_opm=16, c_hidden_mul=16, c_hidden_pair_att=8,
        no_heads_msa=2, no_heads_pair=2, transition_n=2, msa_dropout=0.15, pair_dropout=0.25,
    ).to(device)  # fmt: skip
    to_fused(block)
    frozen = block.msa_transition.linear_1.weight.requires_grad_(False)
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
    assert len(_written()) >= 6
    with _as_written():
        _bits(ours, step(2))
