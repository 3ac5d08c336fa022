from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evofeed.kernels import Spared, clashes
from evofeed.trainer.losses import violation
from evofeed.trainer.losses.violation import between_residue_clashes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("samples", [(1,), (2,), ()])
@pytest.mark.parametrize("chains", [None, False, True])
def test_clashes_are_those_of_all_pairs(
    samples: tuple[int, ...], chains: bool | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    residues = 5
    atom14 = 2.5 * torch.randn(*samples, residues, 14, 3)
    exists = (torch.rand(*samples, residues, 14) > 0.2).float()
    radius = 1.5 + torch.rand(*samples, residues, 14)
    index = torch.tensor([3, 4, 5, 3, 4]).expand(*samples, residues)
    asym = None if chains is None else torch.tensor([1, 1, 1, 2, 2]).expand(*samples, residues)
    weight = torch.rand(*samples, residues, 14)

    def found(dtype: torch.dtype, where: str) -> list[Tensor]:
        atoms = atom14.to(where, dtype).requires_grad_()
        made = between_residue_clashes(
            atoms, exists.to(where, dtype), radius.to(where, dtype), index.to(where),
            1.5, None if asym is None else asym.to(where), same_number_never_clashes=bool(chains),
        )  # fmt: skip
        loss = (made["clashes_per_atom_loss_sum"] * weight.to(where, dtype)).sum()
        loss = loss + made["clashes_mean_loss"].sum()
        return [*made.values(), *torch.autograd.grad(loss, atoms)]

    plain = found(torch.float64, "cpu")
    monkeypatch.setattr(violation, "_all_distances", None)  # no way around the kernels
    for ours, theirs in zip(found(torch.float32, device), plain, strict=True):
        torch.testing.assert_close(ours.cpu().double(), theirs, atol=2e-5, rtol=1e-5)
    assert plain[3].max() > 1  # atoms that clash with more than one other


def test_one_residue_alone_has_no_pairs(device: str) -> None:
    atoms = torch.zeros(1, 1, 14, 3, device=device)
    ones = torch.ones(1, 1, 14, device=device)
    index = torch.zeros(1, 1, dtype=torch.long, device=device)
    found = clashes(atoms, ones, ones, index, None, 1.5, Spared(2, 0, 5, False))
    assert not any(t.any() for t in found)
