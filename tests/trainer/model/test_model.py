"""The assembled model: its parameters, its conventions, and a gradient for every parameter."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.trainer.synthetic_batch import synthetic_batch
from torch import Tensor

from evofeed.trainer import AlphaFold, AlphaFoldLoss, LossConfig, ModelConfig, tiny
from evofeed.trainer.model.primitives import LayerNorm, gated_attention, mask_bias

SIZES = {"num_res": 14, "num_seq": 5, "num_extra_seq": 6, "num_templates": 2}


def _model(config: ModelConfig | None = None, seed: int = 0) -> AlphaFold:
    torch.manual_seed(seed)
    return AlphaFold(config or tiny().model)


def _noisy(model: AlphaFold) -> AlphaFold:
    """Weights moved off their start, where many of them are zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def _grads(model: AlphaFold, batch: dict[str, Tensor], loss: LossConfig) -> dict[str, Tensor]:
    model.zero_grad()
    value, _ = AlphaFoldLoss(loss)(model(batch), batch)
    value.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("templates", "no_recycling_iters", "masked"), [(0, 0, False), (2, 1, False), (2, 0, True)]
)
def test_every_parameter_gets_a_gradient_on_every_path(
    templates: int, no_recycling_iters: int, masked: bool
) -> None:
    sizes = SIZES | {"num_templates": templates}
    batch = synthetic_batch(**sizes, no_recycling_iters=no_recycling_iters)
    if masked:  # templates there but none valid, no extra row, no resolution
        for name in ("template_mask", "extra_msa_mask", "resolution", "bert_mask"):
            batch[name] = torch.zeros_like(batch[name])
    model = _noisy(_model(replace(tiny().model, tm_bins=64)))
    grads = _grads(model, batch, replace(LossConfig(), tm=0.1, violation=1.0))
    assert set(grads) == {name for name, _ in model.named_parameters()}
    assert all(torch.isfinite(grad).all() for grad in grads.values())


def test_a_batch_without_template_features_runs_with_zero_templates() -> None:
    batch = synthetic_batch(**SIZES | {"num_templates": 0})
    bare = {name: value for name, value in batch.items() if not name.startswith("template_")}
    model = _noisy(_model()).eval()
    full, without = model(batch), model(bare)
    assert torch.equal(full["pair"], without["pair"])


def test_the_loss_of_a_batch_is_the_mean_of_its_samples_losses() -> None:
    batches = [synthetic_batch(**SIZES, no_recycling_iters=1, seed=seed) for seed in (1, 2)]
    batches[1]["seq_length"] = torch.tensor([9])  # samples of unlike length weigh unlike
    axis = {
        name: 1 if name.startswith(("msa", "bert", "true", "extra")) else 0 for name in batches[0]
    }
    joined = {name: torch.cat([b[name] for b in batches], axis[name]) for name in batches[0]}
    model, loss = _noisy(_model()).eval(), AlphaFoldLoss(LossConfig(violation=1.0))
    values = [loss(model(batch), batch)[0] for batch in batches]
    together, breakdown = loss(model(joined), joined)
    assert torch.allclose(together, torch.stack(values).mean(), rtol=1e-5)
    assert breakdown["loss"] == together


def test_padding_changes_nothing_where_the_protein_is() -> None:
    batch = synthetic_batch(**SIZES)
    padded = dict(batch)
    for name in ("seq_mask", "msa_mask", "extra_msa_mask"):
        padded[name] = batch[name].clone()
        padded[name][..., -3:] = 0
    padded["template_torsion_angles_mask"] = batch["template_torsion_angles_mask"].clone()
    padded["template_torsion_angles_mask"][..., -3:, :] = 0
    model = _noisy(_model()).eval()
    first = model(padded)
    for name in ("msa_feat", "target_feat"):
        padded[name] = padded[name].clone()
        padded[name][..., -3:, :] += 1
    second = model(padded)
    keep = slice(None, -3)
    assert torch.equal(first["pair"][:, keep, keep], second["pair"][:, keep, keep])
    assert not torch.equal(first["pair"], second["pair"])


def test_activation_checkpointing_changes_no_gradient() -> None:
    batch = synthetic_batch(**SIZES)
    model = _noisy(_model())
    grads = []
    for enabled in (False, True):
        torch.manual_seed(3)  # of the dropout
        model.set_activation_checkpointing(enabled)
        grads.append(_grads(model, batch, LossConfig()))
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in grads[0])


def test_recycling_passes_on_the_structure_but_no_gradient() -> None:
    batch = synthetic_batch(**SIZES, no_recycling_iters=2)
    model = _noisy(_model()).eval()
    last = {k: v[-1:] if v.shape[0] == 3 else v for k, v in batch.items()}
    assert not torch.equal(model(batch)["pair"], model(last)["pair"])
    batch["msa_feat"].requires_grad_()
    model(batch)["pair"].sum().backward()
    grad = batch["msa_feat"].grad
    assert grad is not None
    assert not grad[:-1].any()
    assert grad[-1].any()


def test_passes_one_by_one_are_the_whole_forward() -> None:
    """As a step in CUDA graphs runs them."""
    model = _model().eval()
    batch = synthetic_batch(**SIZES, no_recycling_iters=2)
    cycles = [
        {k: v[r : r + 1] if k in model.per_recycle else v for k, v in batch.items()}
        for r in range(3)
    ]
    state = tuple(map(torch.zeros_like, model.recycle(cycles[0], None)))
    for cycle in cycles[:2]:
        state = model.recycle(cycle, state)
    by_pass, full = model(cycles[2], state), model(batch)
    for name in ("pair", "final_atom_positions", "distogram_logits"):
        assert torch.equal(by_pass[name], full[name]), name


def test_in_bfloat16_the_trunk_is_half_and_the_structure_is_not() -> None:
    batch = synthetic_batch(**SIZES, no_recycling_iters=1)
    model = _noisy(_model())
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(batch)
    loss, _ = AlphaFoldLoss(LossConfig())(outputs, batch)
    loss.backward()
    assert outputs["pair"].dtype == outputs["msa"].dtype == torch.bfloat16
    assert {v.dtype for v in outputs["sm"].values()} == {torch.float32}
    assert loss.dtype == torch.float32
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_norm_over_many_rows_loses_nothing_in_bfloat16() -> None:
    rows = torch.randn(20_000, 8, dtype=torch.bfloat16)
    gradient = torch.randn_like(rows)
    gradients = []
    for dtype in (torch.bfloat16, torch.float64):
        norm = LayerNorm(8).to(torch.promote_types(dtype, torch.float32))
        norm(rows.to(dtype)).backward(gradient.to(dtype))
        gradients.append([norm.weight.grad, norm.bias.grad])
    for half, exact in zip(*gradients, strict=True):
        assert half is not None and exact is not None
        assert (half - exact).norm() < 2**-8 * exact.norm()  # rounded once, not at every row


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("lead", [(2, 3), (1, 4), (5,)])
def test_attention_without_gradients_is_that_with_them(lead: tuple[int, ...], masked: bool) -> None:
    draw = partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k, v, gate = (draw(*lead, 2, size, 4) for size in (6, 7, 7, 6))
    if len(lead) == 1:  # as global attention has it: one key and value for all heads
        q, k, v, gate = (x[:, 0] for x in (q, k, v, gate))
    mask = torch.ones(*lead, 7, dtype=torch.float64)
    mask[..., 2:4] = 1.0 - masked
    mask[0] = 1.0 - masked  # all keys of one are masked
    middle = (None,) * (q.dim() - mask.dim())
    biases = [mask_bias(mask[(..., *middle, slice(None))], 1e9)]
    if len(lead) == 2:
        biases.append(draw(lead[0], 1, 2, 6, 7))
    with torch.enable_grad():
        expected = gated_attention(q, k, v, biases, gate)
    with torch.no_grad():
        torch.testing.assert_close(gated_attention(q, k, v, biases, gate), expected)
