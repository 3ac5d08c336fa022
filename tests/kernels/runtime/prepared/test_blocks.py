"""Calls that are repeated without their Python: same bits, whatever is asked of autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.kernels.runtime.prepared.common import (
    as_written,
    same_bits,
    written_calls,
)
from tests.kernels.weights import evoformer_block, results
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evofeed.kernels import OnePass, to_fused
from evofeed.kernels.runtime.cases import Draw, declared
from evofeed.trainer.model.outer_product_mean import OuterProductMean
from evofeed.trainer.model.transition import MSATransition

pytestmark = [
    pytest.mark.gpu,
    # PyTorch's remark where the first product of a process is made in autograd's own thread
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]


SOME = [  # interpreted, with as little as may be given and with most of it
    (name, case)
    for name, it in declared().items()
    for case in it.cases
    if torch.cuda.is_available() or case in (next(iter(it.cases)), [*it.cases][-1])
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


class Two(nn.Module):
    """A transition of the MSA, and pairs made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.msa_transition, self.outer = MSATransition(16, 2), OuterProductMean(16, 16, 16)

    def forward(self, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor) -> Any:
        """The MSA and the pairs behind both."""
        m = m + self.msa_transition(m, msa_mask)
        return m, z * pair_mask[..., None] + self.outer(m, msa_mask)


def _whole() -> nn.Module:
    return evoformer_block()


HOW = (
    _without_gradients, _checkpointed, _checkpointed_again, _checkpointed_in_a_row, _cast,
    _offloaded, _in_a_pass, _twice,
)  # fmt: skip


@pytest.mark.parametrize(("make", "how"), [(_whole, _plain), *((Two, how) for how in HOW)])
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
    assert len(written_calls()) >= (6 if make is _whole else 2)
    with as_written():
        same_bits(ours, step(2))
