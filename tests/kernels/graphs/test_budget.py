"""`to_fused(model, keep=...)`: blocks that recompute their forward pass for the backward pass."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
import torch
from tests.kernels.weights import evoformer_block, randomised
from torch import Tensor, nn

from evofeed.kernels import to_fused, to_torch
from evofeed.kernels.runtime import backend
from evofeed.trainer.model.evoformer import EvoformerBlock

RESIDUES, SEQUENCES = 5, 3


class Stack(nn.Module):
    """A stack of blocks as in the projects, with an attribute for its own checkpointing."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        parts = [randomised(evoformer_block()) for _ in range(blocks)]
        self.blocks = nn.ModuleList(parts)
        self.blocks_per_ckpt = 1

    def forward(self, m: Tensor, z: Tensor) -> Tensor:
        masks = m.new_ones(m.shape[:-1]), z.new_ones(z.shape[:-1])
        for block in self.blocks:
            m, z = block(m, z, *masks)
        return m.sum() + z.sum()


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU: a block's own forward runs."""
    monkeypatch.setattr(backend.interpreted, "depth", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Every forward pass of a block."""
    modules: list[nn.Module] = []
    forward = EvoformerBlock.forward

    @functools.wraps(forward)
    def counted(self: EvoformerBlock, *args: Any, **options: Any) -> Any:
        modules.append(self)
        return forward(self, *args, **options)

    monkeypatch.setattr(EvoformerBlock, "forward", counted)
    return modules


def _stack(device: str = "cpu") -> Stack:
    torch.manual_seed(0)
    return Stack().to(device)


def _step(stack: Stack, seed: int = 1, residues: int = RESIDUES) -> list[Tensor | None]:
    """Loss, gradients, and what the generator draws next."""
    device = next(stack.parameters()).device
    torch.manual_seed(seed)
    m = torch.randn(1, SEQUENCES, residues, 16, device=device, requires_grad=True)
    z = torch.randn(1, residues, residues, 16, device=device, requires_grad=True)
    stack.zero_grad()
    loss = stack(m, z)
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss, *(t.grad for t in (m, z, *stack.parameters())), torch.rand(3, device=device)]


def _assert_equal(actual: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", ["blocks", "all", 1e-6, 1.0])
def test_losses_gradients_and_dropout_are_the_same(keep: Any) -> None:
    plain = _stack()
    assert any(getattr(module, "r", 0.0) for module in plain.modules())  # it drops
    _assert_equal(_step(to_fused(copy.deepcopy(plain), keep=keep)), _step(plain))


def test_within_the_budget_blocks_keep_in_the_order_of_their_calls(calls: list[nn.Module]) -> None:
    stack = to_fused(_stack(), keep=1.0)
    budget: Any = stack.blocks[0].budget
    _step(stack)
    total = sum(nbytes for _, nbytes in budget._blocks.values())
    counts = {}
    for share in (1.0, 0.75, 0.25):
        budget.limit = share * total
        budget._blocks.clear()
        _step(stack)  # counts
        calls.clear()
        _step(stack)
        counts[share] = [calls.count(block) for block in stack.blocks]
    assert counts == {1.0: [1, 1], 0.75: [1, 2], 0.25: [2, 2]}


def test_a_longer_sample_is_counted_again(calls: list[nn.Module]) -> None:
    stack = to_fused(_stack(), keep=2e-3)
    counts = []
    for residues in (RESIDUES, 4 * RESIDUES, RESIDUES):
        _step(stack, residues=residues)
        calls.clear()
        _step(stack, residues=residues)
        counts.append(len(calls))
    assert counts[0] == 2 and counts[1] > 2 and counts[2] == counts[1]


def test_a_stack_s_own_checkpointing_comes_back() -> None:
    stack = to_fused(_stack(), keep="blocks")
    assert stack.blocks_per_ckpt is None
    for again in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))):
        assert [type(a) for a in again.modules()] == [type(a) for a in stack.modules()]
        _assert_equal(_step(again), _step(stack))
    assert to_fused(stack).blocks_per_ckpt == 1
    assert to_torch(to_fused(stack, keep="all")).blocks_per_ckpt == 1
    stack.blocks[1] = nn.Identity()  # not a fused block: it has no budget
    assert to_fused(stack, keep="blocks").blocks_per_ckpt == 1


def test_inside_another_checkpoint_a_block_is_recomputed_once(calls: list[nn.Module]) -> None:
    stack = to_fused(_stack(), keep="blocks")
    m, z = torch.randn(1, 3, 5, 16, requires_grad=True), torch.randn(1, 5, 5, 16)
    torch.utils.checkpoint.checkpoint(stack, m, z, use_reentrant=False).backward()
    assert len(calls) == 4


@pytest.mark.parametrize("keep", ["some", -1.0])
def test_other_values_of_keep_are_refused(keep: Any) -> None:
    with pytest.raises(ValueError, match=f"keep is {keep!r}, not 'all', 'blocks' or a number"):
        to_fused(nn.Linear(2, 2), keep=keep)


def test_recorded_blocks_recompute_and_hold_nothing(graphs: list[int]) -> None:
    plain, ours = _stack(), to_fused(_stack(), cuda_graphs=True, keep="blocks")
    for seed in range(3):
        for actual, expected in zip(_step(ours, seed), _step(plain, seed), strict=True):
            assert (actual is None) == (expected is None)
            if actual is not None and expected is not None:
                error = (actual - expected).abs().max()
                assert error <= 1e-5 * expected.abs().max() + 1e-4  # some vanish
    assert len(graphs) == 3 * 2 * 2
    m, z = torch.randn(1, 3, 5, 16, requires_grad=True), torch.randn(1, 5, 5, 16)
    first, second = ours(m, z), ours(m, z)  # one recording does for both
    (first + second).backward()
    first = ours(m, z)
    first.backward(retain_graph=True)
    first.backward()


@pytest.mark.gpu
def test_on_a_gpu_recorded_blocks_recompute_with_the_same_bits(device: str) -> None:
    if device != "cuda":
        pytest.skip("records real CUDA graphs")
    eager = to_fused(_stack("cuda"), keep="blocks")
    ours = to_fused(_stack("cuda"), cuda_graphs=True, keep="blocks")
    for seed in range(4):
        _assert_equal(_step(ours, seed, 64), _step(eager, seed, 64))
