"""Blocks of MSA and pairs: AF2's, fused, and those of AF3-class models, recorded as a whole.

Dropout and residual are fused into the op before them. A swapped block calls the ops directly with
its modules' parameters: forward hooks on the modules inside do not fire.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from evofeed.kernels.ops.gated_attention.op import gated_attention_fits
from evofeed.kernels.ops.outer_product_mean.op import outer_product_mean_fits
from evofeed.kernels.ops.pair_bias.op import pair_bias_fits
from evofeed.kernels.swap.forms import Dropout, Form, Part
from evofeed.kernels.swap.msa import (
    add_outer_product,
    outer_product_weights,
    row_attention,
    run_global_attention,
    run_outer_product_mean,
    run_row_attention,
    run_weighted_average,
)
from evofeed.kernels.swap.pair_blocks import TRIANGLES, drop_mask, run_boltz_pairs, run_pair_stack
from evofeed.kernels.swap.parameters import attention_weights, covers, four_axes, shaped, three_axes
from evofeed.kernels.swap.tokens import run_token_attention
from evofeed.kernels.swap.transitions import add_transition, run_swiglu, run_transition
from evofeed.kernels.swap.triangles import fused_attention


def run_evoformer_block(
    block: Any, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor,
    extra_args: tuple[Any, ...] = (), inplace_safe: bool = False, **options: Any,
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """An Evoformer or extra-MSA block."""
    row, flat = block.msa_att_row, four_axes(m)
    weights, heads = attention_weights(row.layer_norm_m, row.mha), row.mha.no_heads
    fits = (
        not inplace_safe
        and not extra_args
        and covers(msa_mask, m)
        and gated_attention_fits(flat, weights, heads)
        and pair_bias_fits(four_axes(z), row.linear_z.weight)
        and outer_product_mean_fits(flat, outer_product_weights(block.outer_product_mean))
        and m.dtype == z.dtype
    )
    if not fits:
        return None
    msa_mask = msa_mask.expand(m.shape[:-1])
    if block.opm_first:
        z, m = add_outer_product(block.outer_product_mean, m, z, msa_mask)
        flat = four_axes(m)
    result = row_attention(
        row, flat, z, three_axes(msa_mask), residual=True,
        drop_mask=drop_mask(block.msa_dropout_layer, flat, flat.shape[2]),
    )  # fmt: skip
    assert result is not None and result[1] is not None
    z, m = result[1], shaped(result[0], m)
    m = _column_attention(getattr(block, "msa_att_col", None), m, msa_mask)
    masked = options.get("_mask_trans", True)
    if hasattr(block, "_masks_msa"):
        masked = block._masks_msa(masked)
    m = add_transition(block.msa_transition, m, msa_mask if masked else None)
    if not block.opm_first:
        z, m = add_outer_product(block.outer_product_mean, m, z, msa_mask)
    return m, block.pair_stack(z, pair_mask, **options)


def _column_attention(module: Any, m: Tensor, mask: Tensor) -> Tensor:
    if module is None:
        return m
    inner = getattr(module, "_msa_att", None)
    if inner is None:  # global attention
        fused = run_global_attention(module, m, mask, residual=True)
        return m + module(m, mask) if fused is None else fused
    norm, mha = inner.layer_norm_m, inner.mha
    update = fused_attention(
        m, attention_weights(norm, mha), mha.no_heads, mask, columns=True, residual=True,
        eps=norm.eps,
    )  # fmt: skip
    return m + module(m, mask) if update is None else update


_EVOFORMER: dict[str, Part] = {
    "msa_att_row": run_row_attention, "msa_transition": run_transition,
    "outer_product_mean": run_outer_product_mean, "pair_stack": run_pair_stack,
    "msa_dropout_layer": Dropout(-3),
}  # fmt: skip
_GLOBAL, _COLUMNS = (
    {"msa_att_col": run_global_attention},
    {"msa_att_col._msa_att": run_row_attention},
)
for _column in ({}, _GLOBAL, _COLUMNS):
    Form(
        run_evoformer_block, {**_EVOFORMER, **_column}, ("m", "z", "msa_mask", "pair_mask"),
        ("SNm", "NNz", "SN", "NN"),
        flags={"opm_first": bool, "ckpt": None},  # OpenFold's extra-MSA block recomputes its parts
    )  # fmt: skip

# Between the fused parts of these are sums of the single track and of the MSA, small compared with
# the pairs: they keep the project's forward, dropout included.
_MSA: dict[str, Part] = {"outer_product_mean": run_outer_product_mean, "pair_stack": run_pair_stack}
Form(  # OpenFold3's `PairFormerBlock`
    None,
    {"pair_stack": run_pair_stack, "attn_pair_bias": run_token_attention,
     "single_transition": run_swiglu},
    ("s", "z", "single_mask", "pair_mask"),
)  # fmt: skip
Form(  # its `MSAModuleBlock`
    None,
    {**_MSA, "msa_att_row": run_weighted_average, "msa_transition": run_swiglu,
     "msa_dropout_layer": Dropout(-3)},
    ("m", "z", "msa_mask", "pair_mask"),
)  # fmt: skip
Form(None, _MSA, ("m", "z", "msa_mask", "pair_mask"))  # its last
_BOLTZ: dict[str, Part] = {
    "pair_weighted_averaging": run_weighted_average, "msa_transition": run_swiglu,
    "outer_product_mean": run_outer_product_mean,
}  # fmt: skip
for _pairs in (  # `MSALayer` of Boltz-2, and of Boltz-1
    {"pairformer_layer": run_boltz_pairs}, {**TRIANGLES, "z_transition": run_swiglu}
):  # fmt: skip
    Form(None, {**_BOLTZ, **_pairs}, ("z", "m", "token_mask", "msa_mask"))

# Denoising steps: the modules of a diffusion model that predict denoised atoms from noised ones.
_STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (  # OpenFold3
        "diffusion_conditioning atom_attn_enc layer_norm_s linear_s diffusion_transformer "
        "layer_norm_a atom_attn_dec",
        ("batch", "xl_noisy", "token_mask", "atom_mask", "t", "si_input", "si_trunk", "zij_trunk"),
    ),
    (  # Protenix
        "diffusion_conditioning atom_attention_encoder layernorm_s linear_no_bias_s "
        "diffusion_transformer layernorm_a atom_attention_decoder normalize",
        ("x_noisy", "t_hat_noise_level", "input_feature_dict", "s_inputs", "s_trunk", "z_trunk",
         "pair_z", "p_lm", "c_l", "inplace_safe", "chunk_size", "use_conditioning",
         "enable_efficient_fusion"),
    ),
    (  # Boltz-1
        "single_conditioner pairwise_conditioner atom_attention_encoder s_to_a_linear "
        "token_transformer a_norm atom_attention_decoder",
        ("s_inputs", "s_trunk", "z_trunk", "r_noisy", "times", "relative_position_encoding",
         "feats", "multiplicity", "model_cache"),
    ),
    (  # Boltz-2
        "single_conditioner atom_attention_encoder s_to_a_linear token_transformer a_norm "
        "atom_attention_decoder",
        ("s_inputs", "s_trunk", "r_noisy", "times", "feats", "diffusion_conditioning",
         "multiplicity"),
    ),
)  # fmt: skip
for _children, _arguments in _STEPS:
    Form(None, dict.fromkeys(_children.split(), nn.Module), _arguments, denoises=True)
