from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.trainer.model import structure_module
from evofeed.trainer.model.rigid import Rigid, quaternion_to_matrix
from evofeed.trainer.model.structure_module import update_frames

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("used", ["both", "quaternion", "origin"])
def test_updates_and_gradients_are_those_of_separate_operators(
    used: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (2, 37)
    quaternion = F.normalize(torch.randn(*shape, 4, dtype=torch.float64), dim=-1)
    trans, update = torch.randn(*shape, 3), torch.randn(*shape, 6)
    of_q, of_t = torch.randn(*shape, 4), torch.randn(*shape, 3)

    def found(dtype: torch.dtype) -> list[Tensor]:
        q = quaternion.to(device, dtype)
        leaves = [t.to(device, dtype).requires_grad_() for t in (trans, update)]
        new_q, new = update_frames(q, Rigid(quaternion_to_matrix(q), leaves[0]), leaves[1])
        loss = torch.zeros((), device=device, dtype=dtype)
        if used != "origin":
            loss = loss + (new_q * of_q.to(new_q)).sum()
        if used != "quaternion":
            loss = loss + (new.trans * of_t.to(new_q)).sum()
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        there = [
            torch.zeros_like(a) if g is None else g for a, g in zip(leaves, grads, strict=True)
        ]
        return [new_q, new.trans, new.rots, *there]

    exact = found(torch.float64)
    monkeypatch.setattr(structure_module, "compose_quaternion_update", None)  # only the kernels
    for ours, true in zip(found(torch.float32), exact, strict=True):
        torch.testing.assert_close(ours.double(), true, atol=2e-6, rtol=1e-5)
