"""Fused blocks away from the first GPU, and recorded ones under DDP on the GPUs there are."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.kernels.weights import evoformer_block, randomised
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from evofeed.kernels import to_fused

pytestmark = pytest.mark.gpu
GPUS = min(2, torch.cuda.device_count())


def _block(device: str) -> nn.Module:
    torch.manual_seed(0)
    return randomised(evoformer_block()).to(device, torch.bfloat16)


def _steps(block: nn.Module, device: str, seed: int) -> list[Tensor]:
    """Gradients of three steps that add up, and the last results."""
    for n in range(3):
        torch.manual_seed(100 * seed + n)
        m, z = (torch.randn(1, k, 64, 16).to(device, torch.bfloat16) for k in (8, 64))
        masks = [torch.ones(1, k, 64, device=device, dtype=torch.bfloat16) for k in (8, 64)]
        results = block(m.requires_grad_(), z.requires_grad_(), *masks)
        torch.autograd.backward(results, [torch.ones_like(t) for t in results])
    grads = [p.grad for p in block.parameters() if p.grad is not None]
    return [*(t.detach().cpu() for t in results), *(g.cpu() for g in grads)]


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_block_on_the_second_gpu_while_the_first_is_current(cuda_graphs: bool) -> None:
    found = []
    for device in ("cuda:0", "cuda:1"):
        assert torch.cuda.current_device() == 0
        found.append(_steps(to_fused(_block(device), cuda_graphs=cuda_graphs), device, 1))
    assert all(map(torch.equal, *found))


def _rank(rank: int, rendezvous: str, out: str) -> None:
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=rendezvous, rank=rank, world_size=GPUS)
    device = f"cuda:{rank}"
    plain = _block(device)
    found = []
    for cuda_graphs in (False, True):
        block = to_fused(copy.deepcopy(plain), cuda_graphs=cuda_graphs)
        model = DistributedDataParallel(block, device_ids=[rank])
        found.append(_steps(model, device, rank))
    alone = _steps(to_fused(copy.deepcopy(plain)), device, rank)
    torch.save([*found, alone], f"{out}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(GPUS == 0, reason="needs a GPU")
def test_a_recorded_block_under_ddp(tmp_path: Path) -> None:
    mp.spawn(_rank, (f"file://{tmp_path}/rendezvous", str(tmp_path)), nprocs=GPUS)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(GPUS)]
    for eager, recorded, _ in ranks:
        assert all(map(torch.equal, eager, recorded))
    grads = [recorded[2:] for _, recorded, _ in ranks]
    assert all(map(torch.equal, grads[0], grads[-1]))  # they are averaged
    differ = not all(map(torch.equal, grads[0], ranks[0][2][2:]))
    assert differ == (GPUS == 2)
