from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evofeed.trainer.losses import renaming
from evofeed.trainer.losses.renaming import rename_ground_truth

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("samples", [(1,), (2,), ()])
def test_errors_are_those_of_all_pairs(
    samples: tuple[int, ...], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (*samples, 7, 14)
    pred, gt = 5 * torch.randn(*shape, 3), 5 * torch.randn(*shape, 3)
    batch = {
        "atom14_gt_exists": (torch.rand(shape) > 0.2).float(),
        "atom14_atom_is_ambiguous": (torch.rand(shape) > 0.5).float(),
        "atom14_gt_positions": gt,
        "atom14_alt_gt_positions": gt + torch.randn(*shape, 3),
        "atom14_alt_gt_exists": (torch.rand(shape) > 0.2).float(),
    }
    kept: list[Tensor] = []
    errors = renaming.renaming_errors

    def note(*given: object) -> Tensor:
        kept.append(errors(*given))  # type: ignore[arg-type]
        return kept[-1]

    plain = rename_ground_truth({k: v.double() for k, v in batch.items()}, pred.double())
    monkeypatch.setattr(renaming, "renaming_errors", note)
    monkeypatch.setattr(renaming, "_distances", None)  # no way around the kernel
    found = rename_ground_truth({k: v.to(device) for k, v in batch.items()}, pred.to(device))
    assert kept[0].shape == (2, *samples, 7) and (kept[0] > 0).any()
    assert plain["alt_naming_is_better"].unique().numel() == 2  # some are and some are not
    for name, value in plain.items():
        torch.testing.assert_close(found[name].cpu().double(), value, atol=1e-5, rtol=1e-6)
