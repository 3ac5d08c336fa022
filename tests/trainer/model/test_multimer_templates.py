"""The model of complexes without templates."""

from __future__ import annotations

import torch
from tests.trainer.synthetic_batch import synthetic_complex

from evofeed.trainer import AlphaFold, AlphaFoldLoss, tiny_multimer


def test_a_complex_without_templates_has_the_result_of_an_empty_slot() -> None:
    torch.manual_seed(0)
    preset = tiny_multimer()
    model = AlphaFold(preset.model).eval()
    batch = synthetic_complex(num_res=12, num_seq=3, num_extra_seq=3, num_templates=1, num_chains=2)
    templates = {name for name in batch if name.startswith("template_")}
    slot = {name: torch.zeros_like(v) if name in templates else v for name, v in batch.items()}
    cut = {name: v[:, :0] if name in templates else v for name, v in batch.items()}
    without = {name: v for name, v in batch.items() if name not in templates}
    found = []
    for given in (slot, cut, without):
        outputs = model(given)
        loss, _ = AlphaFoldLoss(preset.loss)(outputs, given)
        assert torch.isfinite(loss)
        found.append(outputs["final_atom_positions"])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
