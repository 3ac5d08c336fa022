from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evofeed.trainer.model import ipa
from evofeed.trainer.model.ipa import InvariantPointAttention, SharedTerms
from evofeed.trainer.model.multimer.ipa import InvariantPointAttentionMultimer
from evofeed.trainer.model.rigid import Rigid

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("rots_too", [False, True])
def test_sides_and_gradients_are_those_of_separate_operators(
    rots_too: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    B, R, H = 2, 19, 3
    module = InvariantPointAttention(8, 4, 16, H, 4, 8).to(device)
    width = module.linear_q.out_features * 3 + 3 * H * (2 * 4 + 8)
    s, weight = torch.randn(B, R, 8), 0.5 * torch.randn(width, 8)
    rots = torch.linalg.qr(torch.randn(B, R, 3, 3))[0]
    trans, gamma = 3 * torch.randn(B, R, 3), torch.rand(H)
    sums = [torch.randn(B, H, R, 32), torch.randn(B, H, R, 32), torch.randn(B, R, H, 40)]

    def found(dtype: torch.dtype) -> list[Tensor]:
        leaves = [t.to(device, dtype).requires_grad_() for t in (s, trans, gamma, rots)]
        bias = torch.zeros(width, device=device, dtype=dtype)
        shared = SharedTerms(weight.to(device, dtype), bias, torch.empty(0), leaves[2])
        turned = leaves[3] if rots_too else leaves[3].detach()
        sides, values, _ = module.project(leaves[0], Rigid(turned, leaves[1]), shared)
        made = [*sides, values]
        loss = sum(
            ((a * b.to(a)).sum() for a, b in zip(made, sums, strict=True)), start=made[0].sum()
        )
        return [*made, *torch.autograd.grad(loss, leaves[: 4 if rots_too else 3])]

    exact = found(torch.float64)
    with monkeypatch.context() as patch:
        patch.setattr(ipa, "point_sides_fit", lambda *_: False)
        plain = found(torch.float32)
    monkeypatch.setattr(module, "_points", None)  # no way around the kernels
    for ours, theirs, true in zip(found(torch.float32), plain, exact, strict=True):
        error, allowed = (ours - true).norm(), (theirs - true).norm()
        assert error <= 1.5 * allowed + 1e-6 * true.norm()


@pytest.mark.parametrize("kind", [InvariantPointAttention, InvariantPointAttentionMultimer])
def test_ends_and_gradients_are_those_of_separate_operators(
    kind: type[InvariantPointAttention], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    B, R, H = 2, 19, 3
    module = kind(8, 4, 16, H, 4, 8).to(device)
    weights, z = torch.softmax(torch.randn(B, H, R, R), dim=-1), torch.randn(B, R, R, 4)
    rots = torch.linalg.qr(torch.randn(B, R, 3, 3))[0]
    values, trans, last = torch.randn(B, R, H, 40), 3 * torch.randn(B, R, 3), torch.randn(B, R, 8)
    torch.nn.init.normal_(module.linear_out.weight)

    def found(dtype: torch.dtype) -> list[Tensor]:
        module.linear_out.to(dtype)
        leaves = [t.to(device, dtype).requires_grad_() for t in (weights, values, z, trans)]
        frames = Rigid(rots.to(device, dtype), leaves[3])
        made = module._output(*leaves[:3], frames)
        return [made, *torch.autograd.grad((made * last.to(made)).sum(), leaves)]

    exact = found(torch.float64)
    with monkeypatch.context() as patch:
        patch.setattr(ipa, "point_ends_fit", lambda *_: False)
        plain = found(torch.float32)
    monkeypatch.setattr(module, "_norm", None)  # no way around the kernels
    for ours, theirs, true in zip(found(torch.float32), plain, exact, strict=True):
        error, allowed = (ours - true).norm(), (theirs - true).norm()
        assert error <= 1.5 * allowed + 1e-6 * true.norm()
