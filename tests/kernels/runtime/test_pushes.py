"""What a kernel writes where another GPU reads it: two ranks' memory on one device, in turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import hopper, linear, norm, to
from torch import Tensor

from evofeed.kernels import PeerMemory, sending
from evofeed.kernels.ops.transition.op import TransitionWeights, transition
from evofeed.kernels.ops.triangle_multiplication.hopper import launch
from evofeed.kernels.runtime.peer_memory import nbytes

pytestmark = pytest.mark.gpu
SLOT = 1 << 22
S, N = 7, 5  # no two parts are equal
Op = Callable[[Tensor], Tensor]


class Counting(PeerMemory):
    """Memory that counts what was there already."""

    there = 0

    def _is_there(self, x: Tensor, how: str, *axes: int) -> bool:
        found = super()._is_there(x, how, *axes)
        self.there += found
        return found


def _two(device: str) -> list[Counting]:
    """Those of two ranks."""
    buffers = [torch.zeros(nbytes(SLOT), dtype=torch.uint8, device=device) for _ in range(2)]
    return [Counting(buffers, rank) for rank in range(2)]


def _parts(x: Tensor, dim: int) -> list[Tensor]:
    return [part.contiguous() for part in x.split((x.shape[dim] + 1) // 2, dim)]


def _transition(device: str, C: int, dtype: torch.dtype) -> Op:
    weights = to(norm(C) + linear(4 * C, C) + linear(C, 4 * C), device, dtype)
    return lambda x: transition(x, TransitionWeights(*weights), residual=True)


def _check_exchange(
    made: list[Tensor], memory: list[Counting], axes: tuple[int, int], length: int, there: bool
) -> None:
    """Through memory what the ranks made becomes parts along the axis that is cut.

    If it is not there already, the first to exchange reads before the other sends: both begin anew.
    """
    split, join = axes
    expected, begun = _parts(torch.cat(made, join), split), [own._count.clone() for own in memory]
    for turn in range(1 if there else 2):
        for own, x, part, count in zip(memory, made, expected, begun, strict=True):
            own._count.copy_(count)
            own._flags[own._rank].fill_(1 << 20)  # the other's: it takes turns, and is never there
            found = own.exchange(x, split, join, length)
            assert torch.equal(found, part) or (turn == 0 and not there)
    assert [own.there for own in memory] == [int(there)] * 2


@pytest.mark.parametrize(("split", "join"), [(-3, -2), (-2, -3)])
def test_a_gradient_is_exchanged_without_being_sent(split: int, join: int, device: str) -> None:
    op, memory = _transition(device, 32, torch.float32), _two(device)
    whole = torch.randn(2, S, N, 32, device=device)
    length, grads = whole.shape[join], []
    for x, own in zip(_parts(whole, join), memory, strict=True):
        x.requires_grad_()
        with sending(own.push(x.shape, split, join, length)):
            y = op(x)
        grads += torch.autograd.grad(y, x, y.detach())
        assert torch.equal(grads[-1], torch.autograd.grad(z := op(x), x, z.detach())[0])
    _check_exchange(grads, memory, (split, join), length, there=True)


def test_what_changed_meanwhile_is_sent_once_more(device: str) -> None:
    op, memory = _transition(device, 32, torch.float32), _two(device)
    parts = [x.requires_grad_() for x in _parts(torch.randn(1, S, N, 32, device=device), -2)]
    grads = []
    for x, own in zip(parts, memory, strict=True):
        with sending(own.push(x.shape, -3, -2, N)):
            y = op(x)
        grads.append(torch.autograd.grad(y, x, y.detach())[0].mul_(2))
    _check_exchange(grads, memory, (-3, -2), N, there=False)
    other = [torch.ones_like(grad) for grad in grads]
    _check_exchange(other, memory, (-3, -2), N, there=False)


@hopper
def test_projections_of_triangles_are_gathered_without_being_sent() -> None:
    C, R, bf16 = 128, 32, torch.bfloat16
    a_and_b, gates = ((torch.randn(2 * C, C) * C**-0.5).to("cuda", bf16) for _ in range(2))
    weight = torch.cat([a_and_b[:C], gates[:C], a_and_b[C:], gates[C:]])
    bias, (gamma, beta) = torch.randn(4 * C, device="cuda"), to(norm(C), "cuda", torch.float32)
    memory, whole = _two("cuda"), torch.randn(1, R, R, C, device="cuda").to(bf16)
    made = []
    for z, own in zip(_parts(whole, -3), memory, strict=True):
        ab = z.new_empty(2, C, *z.shape[1:3])
        mask = z.new_ones(z.shape[:3])
        stats = z.new_empty(2, mask.numel(), dtype=torch.float32)
        push = own.push(ab.shape[1:], -2, -2, R)
        launch.run_in(z, gamma, beta, weight, bias, mask, ab, stats, 1e-5, push)
        made.append(ab[1])
    for own, b in zip(memory, made, strict=True):
        own._flags[own._rank].fill_(1 << 20)
        assert torch.equal(own.gather(b, -2, R), torch.cat(made, -2))
    assert [own.there for own in memory] == [1, 1]
