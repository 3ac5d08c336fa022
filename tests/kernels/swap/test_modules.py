"""Every module of the trainer, swapped, against itself: outputs and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from evofeed.kernels import to_fused, to_torch
from evofeed.kernels.fused_module import Fused
from evofeed.trainer.model import (
    evoformer,
    extra_msa,
    msa_attention,
    template,
    transition,
    triangle,
)
from evofeed.trainer.model import outer_product_mean as opm

pytestmark = pytest.mark.slow

S, R, C_M, C_Z = 3, 5, 32, 16
BLOCK = {
    "c_m": C_M, "c_z": C_Z, "c_hidden_msa_att": 8, "c_hidden_opm": 16, "c_hidden_mul": 16,
    "c_hidden_pair_att": 8, "no_heads_msa": 4, "no_heads_pair": 2, "transition_n": 2,
    "msa_dropout": 0.15, "pair_dropout": 0.25,
}  # fmt: skip


def _inputs(device: str) -> dict[str, Tensor]:
    masks = {
        "msa_mask": (torch.rand(1, S, R) > 0.2).float(),
        "pair_mask": (torch.rand(1, R, R) > 0.2).float(),
    }
    tensors = {"m": torch.randn(1, S, R, C_M), "z": torch.randn(1, R, R, C_Z), **masks}
    tensors |= {"t": torch.randn(1, 2, R, R, C_Z), "t_mask": masks["pair_mask"][:, None]}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _randomise(module: nn.Module) -> nn.Module:
    """AF2 starts many weights at 0, which would hide mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def _assert_same(plain: nn.Module, names: list[str], device: str) -> None:
    plain = _randomise(plain).to(device)
    fused = to_fused(copy.deepcopy(plain))
    assert isinstance(fused, Fused)
    assert list(fused.state_dict()) == list(plain.state_dict())
    inputs = _inputs(device)
    results = []
    for module in (plain, fused):
        leaves = {n: inputs[n].clone() for n in names}
        active = [t.requires_grad_() for n, t in leaves.items() if "mask" not in n]
        torch.manual_seed(1)
        out = module(*leaves.values())
        outs = [out] if isinstance(out, Tensor) else list(out)
        loss = sum((o * torch.linspace(-1, 1, o.numel()).view_as(o).to(o)).sum() for o in outs)
        assert isinstance(loss, Tensor)
        grads = torch.autograd.grad(loss, active + list(module.parameters()))
        results.append([*outs, *grads])
    # A shift of all logits changes nothing: the gradient of that norm's bias is rounding noise.
    kinds = ["out"] * len(outs) + ["input"] * len(active)
    kinds += [name for name, _ in plain.named_parameters()]
    for kind, ours, theirs in zip(kinds, results[1], results[0], strict=True):
        scale = 10.0 if kind.endswith("layer_norm_z.bias") else float(theirs.detach().abs().max())
        error = float((ours - theirs).detach().abs().max()) / scale
        assert error < 1e-4, f"{kind}: {error:.1e}"


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: triangle.TriangleMultiplicationOutgoing(C_Z, 16), ["z", "pair_mask"]),
        (lambda: triangle.TriangleMultiplicationIncoming(C_Z, 16), ["z", "pair_mask"]),
        (lambda: triangle.FusedTriangleMultiplicationIncoming(C_Z, 16), ["z", "pair_mask"]),
        (lambda: triangle.TriangleAttentionStartingNode(C_Z, 8, 2), ["z", "pair_mask"]),
        (lambda: triangle.TriangleAttentionEndingNode(C_Z, 8, 2), ["z", "pair_mask"]),
        (
            lambda: msa_attention.MSARowAttentionWithPairBias(C_M, C_Z, 8, 4),
            ["m", "z", "msa_mask"],
        ),
        (lambda: msa_attention.MSAColumnGlobalAttention(C_M, 8, 4), ["m", "msa_mask"]),
        (lambda: transition.MSATransition(C_M, 2), ["m", "msa_mask"]),
        (lambda: opm.OuterProductMean(C_M, C_Z, 16), ["m", "msa_mask"]),
    ],
)
def test_a_swapped_module_computes_the_same(make, names: list[str], device: str) -> None:  # type: ignore[no-untyped-def]
    _assert_same(make(), names, device)


def test_swapped_column_attention_computes_the_same(device: str) -> None:
    plain = _randomise(msa_attention.MSAColumnAttention(C_M, 8, 4)).to(device)
    fused = to_fused(copy.deepcopy(plain))
    assert isinstance(fused._msa_att, Fused)
    inputs = _inputs(device)
    expected = plain(inputs["m"], inputs["msa_mask"])
    torch.testing.assert_close(
        fused(inputs["m"], inputs["msa_mask"]), expected, atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("block", "opm_first"), [(evoformer.EvoformerBlock, False), (extra_msa.ExtraMSABlock, True)]
)
def test_a_swapped_block_computes_the_same_with_the_same_dropout(
    block: type[nn.Module], opm_first: bool, device: str
) -> None:
    torch.manual_seed(3)
    plain = block(**BLOCK, opm_first=opm_first)
    _assert_same(plain, ["m", "z", "msa_mask", "pair_mask"], device)


@pytest.mark.parametrize("multiplications_first", [False, True])
def test_a_swapped_template_block_computes_the_same_with_the_same_dropout(
    multiplications_first: bool, device: str
) -> None:
    torch.manual_seed(3)
    plain = template.TemplatePairStackBlock(C_Z, 8, 16, 2, 2, 0.25, multiplications_first)
    _assert_same(plain, ["t", "t_mask"], device)


def test_to_torch_gives_the_block_back(device: str) -> None:
    block = evoformer.EvoformerBlock(**BLOCK).to(device)
    classes = [type(module) for module in block.modules()]
    assert [type(module) for module in to_torch(to_fused(block)).modules()] == classes


def test_without_a_kernel_a_swapped_block_is_the_original(device: str) -> None:
    block = _randomise(evoformer.EvoformerBlock(**BLOCK)).to(device).double().eval()
    inputs = {name: t.double() for name, t in _inputs(device).items()}
    arguments = [inputs[name] for name in ("m", "z", "msa_mask", "pair_mask")]
    expected = block(*arguments)
    got = to_fused(block)(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
