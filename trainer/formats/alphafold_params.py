"""DeepMind's AlphaFold2 parameter names (`params_model_1.npz`), to ours and back.

An `.npz` key is `alphafold/alphafold_iteration/<scope>//<name>`. Repeated blocks
are stacked on axis 0, weights are transposed, heads have an axis of their own.
The tables pair a scope with one of our modules and say what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from evofeed.errors import CheckpointError

__all__ = ["alphafold_params", "load_alphafold_params"]

_PREFIX: Final = "alphafold/alphafold_iteration/"

# What a module's parameters are called there: "<name> <our parameter> <layout>".
_KINDS: Final = {
    "linear": ("weights weight matrix", "bias bias same"),
    "norm": ("scale weight same", "offset bias same"),
    "matrix": ("feat_2d_weights weight matrix",),
    "attention": (
        "query_w linear_q.weight heads_in",
        "key_w linear_k.weight heads_in",
        "value_w linear_v.weight heads_in",
        "output_w linear_o.weight heads_out",
        "output_b linear_o.bias same",
    ),
    "gate": ("gating_w linear_g.weight heads_in", "gating_b linear_g.bias heads"),
    "global": (
        "query_w linear_q.weight heads_in",
        "key_w linear_k.weight matrix",
        "value_w linear_v.weight matrix",
        "output_w linear_o.weight heads_out",
        "output_b linear_o.bias same",
    ),
    "outer": ("output_w linear_out.weight outer", "output_b linear_out.bias same"),
    "points": ("trainable_point_weights head_weights same",),
}

_MULTIPLICATION: Final = """
{af}/layer_norm_input   {our}.layer_norm_in    norm
{af}/left_projection    {our}.linear_{a}_p     linear
{af}/right_projection   {our}.linear_{b}_p     linear
{af}/left_gate          {our}.linear_{a}_g     linear
{af}/right_gate         {our}.linear_{b}_g     linear
{af}/center_layer_norm  {our}.layer_norm_out   norm
{af}/output_projection  {our}.linear_z         linear
{af}/gating_linear      {our}.linear_g         linear
"""
_ATTENTION: Final = """
{af}/query_norm         {our}.layer_norm       norm
{af}                    {our}.linear           matrix
{af}/attention          {our}.mha              attention gate
"""
_TRANSITION: Final = """
{af}/input_layer_norm   {our}.layer_norm       norm
{af}/transition1        {our}.linear_1         linear
{af}/transition2        {our}.linear_2         linear
"""


def _pair_tables(prefix: str) -> str:
    """The pair half of a block; AF2 swaps a and b (left and right) of incoming edges."""
    af = "triangle_{}".format
    return "".join(
        [
            _MULTIPLICATION.format(
                af=af("multiplication_outgoing"), our=f"{prefix}tri_mul_out", a="a", b="b"
            ),
            _MULTIPLICATION.format(
                af=af("multiplication_incoming"), our=f"{prefix}tri_mul_in", a="b", b="a"
            ),
            _ATTENTION.format(af=af("attention_starting_node"), our=f"{prefix}tri_att_start"),
            _ATTENTION.format(af=af("attention_ending_node"), our=f"{prefix}tri_att_end"),
            _TRANSITION.format(af="pair_transition", our=f"{prefix}pair_transition"),
        ]
    )


_MSA_BLOCK: Final = (
    """
msa_row_attention_with_pair_bias/query_norm    msa_att_row.layer_norm_m       norm
msa_row_attention_with_pair_bias/feat_2d_norm  msa_att_row.layer_norm_z       norm
msa_row_attention_with_pair_bias               msa_att_row.linear_z           matrix
msa_row_attention_with_pair_bias/attention     msa_att_row.mha                attention gate
outer_product_mean/layer_norm_input            outer_product_mean.layer_norm  norm
outer_product_mean/left_projection             outer_product_mean.linear_1    linear
outer_product_mean/right_projection            outer_product_mean.linear_2    linear
outer_product_mean                             outer_product_mean             outer
"""
    + _TRANSITION.format(af="msa_transition", our="msa_transition")
    + _pair_tables("pair_stack.")
)
_EVOFORMER_BLOCK: Final = (
    """
msa_column_attention/query_norm                msa_att_col._msa_att.layer_norm_m  norm
msa_column_attention/attention                 msa_att_col._msa_att.mha           attention gate
"""
    + _MSA_BLOCK
)
_EXTRA_BLOCK: Final = (
    """
msa_column_global_attention/query_norm         msa_att_col.layer_norm_m           norm
msa_column_global_attention/attention          msa_att_col.global_attention       global gate
"""
    + _MSA_BLOCK
)

# "pair_activiations" is spelled so in the published files.
_MODEL: Final = """
evoformer/preprocess_1d            input_embedder.linear_tf_m        linear
evoformer/preprocess_msa           input_embedder.linear_msa_m       linear
evoformer/left_single              input_embedder.linear_tf_z_i      linear
evoformer/right_single             input_embedder.linear_tf_z_j      linear
evoformer/pair_activiations        input_embedder.linear_relpos      linear
evoformer/prev_pos_linear          recycling_embedder.linear         linear
evoformer/prev_msa_first_row_norm  recycling_embedder.layer_norm_m   norm
evoformer/prev_pair_norm           recycling_embedder.layer_norm_z   norm
evoformer/extra_msa_activations    extra_msa_embedder.linear         linear
evoformer/single_activations       evoformer.linear                  linear
structure_module/single_layer_norm    structure_module.layer_norm_s  norm
structure_module/pair_layer_norm      structure_module.layer_norm_z  norm
structure_module/initial_projection   structure_module.linear_in     linear
predicted_lddt_head/input_layer_norm  aux_heads.plddt.layer_norm     norm
predicted_lddt_head/act_0             aux_heads.plddt.linear_1       linear
predicted_lddt_head/act_1             aux_heads.plddt.linear_2       linear
predicted_lddt_head/logits            aux_heads.plddt.linear_3       linear
distogram_head/half_logits            aux_heads.distogram.linear     linear
masked_msa_head/logits                aux_heads.masked_msa.linear    linear
experimentally_resolved_head/logits   aux_heads.experimentally_resolved.linear  linear
"""
_FOLD: Final = """
invariant_point_attention                    ipa                         points
invariant_point_attention/q_scalar           ipa.linear_q                linear
invariant_point_attention/kv_scalar          ipa.linear_kv               linear
invariant_point_attention/q_point_local      ipa.linear_q_points.linear  linear
invariant_point_attention/kv_point_local     ipa.linear_kv_points.linear linear
invariant_point_attention/attention_2d       ipa.linear_b                linear
invariant_point_attention/output_projection  ipa.linear_out              linear
attention_layer_norm                         layer_norm_ipa              norm
transition                                   transition.layers.0.linear_1  linear
transition_1                                 transition.layers.0.linear_2  linear
transition_2                                 transition.layers.0.linear_3  linear
transition_layer_norm                        transition.layer_norm       norm
affine_update                                bb_update.linear            linear
rigid_sidechain/input_projection             angle_resnet.linear_in      linear
rigid_sidechain/input_projection_1           angle_resnet.linear_initial linear
rigid_sidechain/resblock1                    angle_resnet.layers.0.linear_1  linear
rigid_sidechain/resblock2                    angle_resnet.layers.0.linear_2  linear
rigid_sidechain/resblock1_1                  angle_resnet.layers.1.linear_1  linear
rigid_sidechain/resblock2_1                  angle_resnet.layers.1.linear_2  linear
rigid_sidechain/unnormalized_angles          angle_resnet.linear_out     linear
"""
_TEMPLATE: Final = """
evoformer/template_single_embedding  template_embedder.template_single_embedder.linear_1  linear
evoformer/template_projection        template_embedder.template_single_embedder.linear_2  linear
evoformer/template_embedding/attention  template_embedder.template_pointwise_att.mha  attention
evoformer/template_embedding/single_template_embedding/embedding2d        template_embedder.template_pair_embedder.linear    linear
evoformer/template_embedding/single_template_embedding/output_layer_norm  template_embedder.template_pair_stack.layer_norm   norm
"""  # noqa: E501 - a table reads by its columns
_TM: Final = "predicted_aligned_error_head/logits  aux_heads.tm.linear  linear"
_TEMPLATE_BLOCKS: Final = (
    "evoformer/template_embedding/single_template_embedding/template_pair_stack/"
    "__layer_stack_no_state/"
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One array of the `.npz`: its key, our parameters (one, or one per block), its layout."""

    key: str
    names: tuple[str, ...]
    stacked: bool
    layout: str


def alphafold_params(model: nn.Module) -> dict[str, np.ndarray]:
    """The model's weights under AF2's names and in AF2's shapes, float32."""
    state = model.state_dict()
    arrays = {}
    for entry in _entries(model):
        parts = [_to_alphafold(state[n], entry.layout, _heads(model, n)) for n in entry.names]
        arrays[entry.key] = np.stack(parts) if entry.stacked else parts[0]
    return arrays


@torch.no_grad()
def load_alphafold_params(model: nn.Module, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Copy AF2's weights into the model, in place.

    Returns:
        Keys that this model has no place for (a head it was built without).

    Raises:
        CheckpointError: an array is missing or has another size; names it.
    """
    parameters = dict(model.named_parameters())
    entries = list(_entries(model))
    for entry in entries:
        if entry.key not in arrays:
            raise CheckpointError(
                f"no {entry.key}: this is not a file for this model configuration"
            )
        array = np.asarray(arrays[entry.key])
        parts = list(array) if entry.stacked else [array]
        if len(parts) != len(entry.names):
            raise CheckpointError(f"{entry.key} has {len(parts)} blocks, not {len(entry.names)}")
        for name, part in zip(entry.names, parts, strict=True):
            target = parameters[name]
            if part.size != target.numel():
                raise CheckpointError(
                    f"{entry.key} has shape {part.shape}, but {name} is {tuple(target.shape)}"
                )
            target.copy_(_from_alphafold(part, entry.layout, target))
    known = {entry.key for entry in entries}
    return sorted(key for key in arrays if key not in known)


def _entries(model: nn.Module) -> Iterator[_Entry]:
    names = {name.split(".")[0] for name, _ in model.named_parameters()}
    yield from _expand(_MODEL)
    yield from _expand(_FOLD, "structure_module/fold_iteration/", ["structure_module."])
    yield from _blocks(model, _EXTRA_BLOCK, "evoformer/extra_msa_stack/", "extra_msa_stack")
    yield from _blocks(model, _EVOFORMER_BLOCK, "evoformer/evoformer_iteration/", "evoformer")
    if "template_embedder" in names:
        yield from _expand(_TEMPLATE)
        stack = "template_embedder.template_pair_stack"
        yield from _blocks(model, _pair_tables(""), _TEMPLATE_BLOCKS, stack)
    if any(name.startswith("aux_heads.tm.") for name, _ in model.named_parameters()):
        yield from _expand(_TM)


def _blocks(model: nn.Module, table: str, scope: str, stack: str) -> Iterator[_Entry]:
    count = len(model.get_submodule(f"{stack}.blocks"))  # type: ignore[arg-type]
    yield from _expand(table, scope, [f"{stack}.blocks.{i}." for i in range(count)], stacked=True)


def _expand(
    table: str, scope: str = "", prefixes: list[str] | None = None, *, stacked: bool = False
) -> Iterator[_Entry]:
    for line in table.strip().splitlines():
        if not line.strip():
            continue
        af, our, *kinds = line.split()
        for kind in kinds:
            for leaf in _KINDS[kind]:
                name, parameter, layout = leaf.split()
                names = tuple(f"{prefix}{our}.{parameter}" for prefix in prefixes or [""])
                yield _Entry(f"{_PREFIX}{scope}{af}//{name}", names, stacked, layout)


def _heads(model: nn.Module, name: str) -> int:
    """Heads of the attention a parameter belongs to, 1 if none."""
    module = model.get_submodule(name.rsplit(".", 2)[0])
    return int(getattr(module, "no_heads", 1))


def _to_alphafold(value: Tensor, layout: str, heads: int) -> np.ndarray:
    array = value.detach().cpu().float().numpy()
    if layout == "same":
        return array
    if layout == "heads":
        return array.reshape(heads, -1)
    array = array.T  # [in, out]
    if layout == "heads_in":
        return array.reshape(array.shape[0], heads, -1)
    if layout == "heads_out":
        return array.reshape(heads, -1, array.shape[1])
    if layout == "outer":
        width = round(array.shape[0] ** 0.5)
        return array.reshape(width, width, -1)
    return np.ascontiguousarray(array)


def _from_alphafold(array: np.ndarray, layout: str, target: Tensor) -> Tensor:
    value = torch.from_numpy(np.array(array, np.float32))
    if layout in ("same", "heads"):
        return value.reshape(target.shape)
    return value.reshape(target.shape[1], target.shape[0]).T  # heads and channels side by side
