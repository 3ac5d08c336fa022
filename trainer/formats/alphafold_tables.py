"""AlphaFold2's parameter names and ours, as tables: one line pairs a scope with a module.

The published files of complexes call some things otherwise than those of single chains, and from
version 3 on hold both projections of a triangle multiplication in one matrix.
"""

from __future__ import annotations

from typing import Final

from torch import nn

# What a module's parameters are called there: "<name> <our parameter> <layout>". All are
# transposed; a layout says what else: an axis of heads, swapped halves, one column as a vector.
KINDS: Final = {
    "linear": ("weights weight same", "bias bias same"),
    "norm": ("scale weight same", "offset bias same"),
    "matrix": ("feat_2d_weights weight same",),
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
        "key_w linear_k.weight same",
        "value_w linear_v.weight same",
        "output_w linear_o.weight heads_out",
        "output_b linear_o.bias same",
    ),
    "outer": ("output_w linear_out.weight outer", "output_b linear_out.bias same"),
    "points": ("trainable_point_weights head_weights same",),
    "heads": ("weights weight heads_in",),
    "local": ("weights weight heads_in", "bias bias heads"),
    "scalar": ("weights weight vector", "bias bias same"),
    "swapped": ("weights weight swapped", "bias bias swapped"),
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
_FUSED_MULTIPLICATION: Final = """
{af}/left_norm_input    {our}.layer_norm_in    norm
{af}/projection         {our}.linear_ab_p      {kind}
{af}/gate               {our}.linear_ab_g      {kind}
{af}/center_norm        {our}.layer_norm_out   norm
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


def _pair_tables(prefix: str, fused: bool) -> str:
    """The pair half of a block; AF2 swaps a and b (left and right) of incoming edges."""
    af = "triangle_{}".format
    out, incoming = af("multiplication_outgoing"), af("multiplication_incoming")
    if fused:
        multiplications = [
            _FUSED_MULTIPLICATION.format(af=out, our=f"{prefix}tri_mul_out", kind="linear"),
            _FUSED_MULTIPLICATION.format(af=incoming, our=f"{prefix}tri_mul_in", kind="swapped"),
        ]
    else:
        multiplications = [
            _MULTIPLICATION.format(af=out, our=f"{prefix}tri_mul_out", a="a", b="b"),
            _MULTIPLICATION.format(af=incoming, our=f"{prefix}tri_mul_in", a="b", b="a"),
        ]
    return "".join(
        [
            *multiplications,
            _ATTENTION.format(af=af("attention_starting_node"), our=f"{prefix}tri_att_start"),
            _ATTENTION.format(af=af("attention_ending_node"), our=f"{prefix}tri_att_end"),
            _TRANSITION.format(af="pair_transition", our=f"{prefix}pair_transition"),
        ]
    )


_MSA_BLOCK: Final = """
msa_row_attention_with_pair_bias/query_norm    msa_att_row.layer_norm_m       norm
msa_row_attention_with_pair_bias/feat_2d_norm  msa_att_row.layer_norm_z       norm
msa_row_attention_with_pair_bias               msa_att_row.linear_z           matrix
msa_row_attention_with_pair_bias/attention     msa_att_row.mha                attention gate
outer_product_mean/layer_norm_input            outer_product_mean.layer_norm  norm
outer_product_mean/left_projection             outer_product_mean.linear_1    linear
outer_product_mean/right_projection            outer_product_mean.linear_2    linear
outer_product_mean                             outer_product_mean             outer
""" + _TRANSITION.format(af="msa_transition", our="msa_transition")
_EVOFORMER_COLUMN: Final = """
msa_column_attention/query_norm                msa_att_col._msa_att.layer_norm_m  norm
msa_column_attention/attention                 msa_att_col._msa_att.mha           attention gate
"""
_EXTRA_COLUMN: Final = """
msa_column_global_attention/query_norm         msa_att_col.layer_norm_m           norm
msa_column_global_attention/attention          msa_att_col.global_attention       global gate
"""

# "pair_activiations" is spelled so in the published files.
_RELPOS: Final = "evoformer/pair_activiations  input_embedder.linear_relpos  linear"
_RELPOS_MULTIMER: Final = (
    "evoformer/~_relative_encoding/position_activations  input_embedder.linear_relpos  linear"
)
_MODEL: Final = """
evoformer/preprocess_1d            input_embedder.linear_tf_m        linear
evoformer/preprocess_msa           input_embedder.linear_msa_m       linear
evoformer/left_single              input_embedder.linear_tf_z_i      linear
evoformer/right_single             input_embedder.linear_tf_z_j      linear
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
invariant_point_attention/attention_2d       ipa.linear_b                linear
invariant_point_attention/output_projection  ipa.linear_out              linear
attention_layer_norm                         layer_norm_ipa              norm
transition                                   transition.layers.0.linear_1  linear
transition_1                                 transition.layers.0.linear_2  linear
transition_2                                 transition.layers.0.linear_3  linear
transition_layer_norm                        transition.layer_norm       norm
rigid_sidechain/input_projection             angle_resnet.linear_in      linear
rigid_sidechain/input_projection_1           angle_resnet.linear_initial linear
rigid_sidechain/resblock1                    angle_resnet.layers.0.linear_1  linear
rigid_sidechain/resblock2                    angle_resnet.layers.0.linear_2  linear
rigid_sidechain/resblock1_1                  angle_resnet.layers.1.linear_1  linear
rigid_sidechain/resblock2_1                  angle_resnet.layers.1.linear_2  linear
rigid_sidechain/unnormalized_angles          angle_resnet.linear_out     linear
"""
_FOLD_MONOMER: Final = """
invariant_point_attention/q_scalar           ipa.linear_q                linear
invariant_point_attention/kv_scalar          ipa.linear_kv               linear
invariant_point_attention/q_point_local      ipa.linear_q_points.linear  linear
invariant_point_attention/kv_point_local     ipa.linear_kv_points.linear linear
affine_update                                bb_update.linear            linear
"""
_FOLD_MULTIMER: Final = """
invariant_point_attention/q_scalar_projection                  ipa.linear_q                heads
invariant_point_attention/k_scalar_projection                  ipa.linear_k                heads
invariant_point_attention/v_scalar_projection                  ipa.linear_v                heads
invariant_point_attention/q_point_projection/point_projection  ipa.linear_q_points.linear  local
invariant_point_attention/k_point_projection/point_projection  ipa.linear_k_points.linear  local
invariant_point_attention/v_point_projection/point_projection  ipa.linear_v_points.linear  local
quat_rigid/rigid                                               bb_update.linear            linear
"""
_TEMPLATE: Final = """
evoformer/template_single_embedding  template_embedder.template_single_embedder.linear_1  linear
evoformer/template_projection        template_embedder.template_single_embedder.linear_2  linear
evoformer/template_embedding/attention  template_embedder.template_pointwise_att.mha  attention
evoformer/template_embedding/single_template_embedding/embedding2d        template_embedder.template_pair_embedder.linear    linear
evoformer/template_embedding/single_template_embedding/output_layer_norm  template_embedder.template_pair_stack.layer_norm   norm
"""  # noqa: E501 - a table reads by its columns
_SINGLE_TEMPLATE: Final = "evoformer/template_embedding/single_template_embedding"
_TEMPLATE_MULTIMER: Final = f"""
evoformer/template_single_embedding   template_embedder.template_single_embedder.template_single_embedder  linear
evoformer/template_projection         template_embedder.template_single_embedder.template_projector        linear
evoformer/template_embedding/output_linear            template_embedder.linear_t                           linear
{_SINGLE_TEMPLATE}/query_embedding_norm       template_embedder.template_pair_embedder.query_embedding_layer_norm  norm
{_SINGLE_TEMPLATE}/template_pair_embedding_0  template_embedder.template_pair_embedder.dgram_linear            linear
{_SINGLE_TEMPLATE}/template_pair_embedding_1  template_embedder.template_pair_embedder.pseudo_beta_mask_linear scalar
{_SINGLE_TEMPLATE}/template_pair_embedding_2  template_embedder.template_pair_embedder.aatype_linear_1         linear
{_SINGLE_TEMPLATE}/template_pair_embedding_3  template_embedder.template_pair_embedder.aatype_linear_2         linear
{_SINGLE_TEMPLATE}/template_pair_embedding_4  template_embedder.template_pair_embedder.x_linear                scalar
{_SINGLE_TEMPLATE}/template_pair_embedding_5  template_embedder.template_pair_embedder.y_linear                scalar
{_SINGLE_TEMPLATE}/template_pair_embedding_6  template_embedder.template_pair_embedder.z_linear                scalar
{_SINGLE_TEMPLATE}/template_pair_embedding_7  template_embedder.template_pair_embedder.backbone_mask_linear    scalar
{_SINGLE_TEMPLATE}/template_pair_embedding_8  template_embedder.template_pair_embedder.query_embedding_linear  linear
{_SINGLE_TEMPLATE}/output_layer_norm          template_embedder.template_pair_stack.layer_norm                 norm
"""  # noqa: E501
_TEMPLATE_BLOCKS: Final = f"{_SINGLE_TEMPLATE}/template_pair_stack/__layer_stack_no_state/"
_TEMPLATE_BLOCKS_MULTIMER: Final = f"{_SINGLE_TEMPLATE}/template_embedding_iteration/"
_TM: Final = "predicted_aligned_error_head/logits  aux_heads.tm.linear  linear"


def tables_of(model: nn.Module) -> list[tuple[str, str, str]]:
    """What pairs a model's parameters with AF2's: table, AF2's scope, our prefix.

    A prefix that ends in `.blocks` is of a stack: AF2 stores its blocks in one array.
    """
    names = {name for name, _ in model.named_parameters()}
    multimer = any(name.startswith("structure_module.ipa.linear_k.") for name in names)
    fused = any(name.endswith("linear_ab_p.weight") for name in names)
    pairs = _pair_tables("pair_stack.", fused)
    fold = "structure_module/fold_iteration/"
    found = [
        (_MODEL, "", ""),
        (_RELPOS_MULTIMER if multimer else _RELPOS, "", ""),
        (_FOLD + (_FOLD_MULTIMER if multimer else _FOLD_MONOMER), fold, "structure_module."),
        (
            _EXTRA_COLUMN + _MSA_BLOCK + pairs,
            "evoformer/extra_msa_stack/",
            "extra_msa_stack.blocks",
        ),
        (
            _EVOFORMER_COLUMN + _MSA_BLOCK + pairs,
            "evoformer/evoformer_iteration/",
            "evoformer.blocks",
        ),
    ]
    if any(name.startswith("template_embedder.") for name in names):
        scope = _TEMPLATE_BLOCKS_MULTIMER if multimer else _TEMPLATE_BLOCKS
        stack = "template_embedder.template_pair_stack.blocks"
        found += [
            (_TEMPLATE_MULTIMER if multimer else _TEMPLATE, "", ""),
            (_pair_tables("", fused), scope, stack),
        ]
    if any(name.startswith("aux_heads.tm.") for name in names):
        found.append((_TM, "", ""))
    return found
