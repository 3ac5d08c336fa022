"""Which calls are repeated, and for which others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from tests.kernels.runtime.prepared.common import (
    run,
    same_bits,
    written_calls,
)
from torch import Tensor, nn

from evofeed.kernels import OnePass
from evofeed.kernels.runtime.one_pass import once
from evofeed.kernels.runtime.prepared import Prepared, kind_of
from evofeed.kernels.runtime.projection import pack

pytestmark = pytest.mark.gpu


class Sums(NamedTuple):
    """What is made of a mask."""

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
        total, least = once(("sum",), (mask,), lambda mask: Sums(mask.sum(), mask.min()))
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
    assert len(call._found) == 2
