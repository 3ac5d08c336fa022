"""Runners of the golden cases of complexes; those of chains are in `golden_kinds`."""

from __future__ import annotations

import torch
from tests.trainer.model.golden_case import Case
from tests.trainer.model.golden_kinds import (
    RUNNERS,
    Inputs,
    Outputs,
    Runner,
    flatten,
    hparams,
    load,
    of_loss,
    one_linear,
    runs,
    structure,
    total_loss,
)
from tests.trainer.model.openfold_config import (
    loss_config_from_openfold,
    model_config_from_openfold,
    template_config_from_openfold,
)
from torch import Tensor, nn

from evofeed.trainer.losses import AlphaFoldLoss, cross_entropy, fape, violation
from evofeed.trainer.losses.center_of_mass import chain_center_of_mass_loss
from evofeed.trainer.model import embedders, heads, ipa, structure_module, template
from evofeed.trainer.model.alphafold import AlphaFold, from_openfold_batch
from evofeed.trainer.model.config import LossConfig
from evofeed.trainer.model.primitives import one_hot
from evofeed.trainer.model.rigid import apply, compose, from_4x4, to_4x4
from evofeed.trainer.model.structure_module import BackboneUpdate


def _single_embedder(case: Case, x: Inputs) -> tuple[nn.Module, Outputs]:
    module = load(case, template.TemplateSingleEmbedderMultimer(**hparams(case)))
    aatype, positions = x["template_aatype"], x["template_all_atom_positions"]
    angles, mask = template.chi_angles(positions, x["template_all_atom_mask"], aatype)
    rows = module(one_hot(aatype, 22, case.dtype), angles, mask)
    return module, {
        "template_single_embedding": rows,
        "template_mask": mask[..., 0],
        "chi_angles": angles * mask,  # the recording keeps those that count, as below
        "chi_mask": mask,
    }


def _template_embedder(case: Case, x: Inputs) -> tuple[nn.Module, Outputs]:
    h = hparams(case)
    config, c_m = template_config_from_openfold(h), h["template_single_embedder"]["c_out"]
    module = load(case, template.TemplateEmbedderMultimer(config, c_m, h["c_z"]))
    pair, rows, mask = module(x, x["z"], x["padding_mask_2d"], _mask_trans=False)
    return module, {
        "template_pair_embedding": pair,
        "template_single_embedding": rows,
        "template_mask": mask,
    }


def _backbone_affine(case: Case, x: Inputs) -> tuple[None, Outputs]:
    frames, mask = template.backbone_frames(
        x["template_all_atom_positions"], x["template_all_atom_mask"]
    )
    pairs = mask[..., :, None] * mask[..., None, :]
    return None, {
        "backbone_4x4": to_4x4(frames) * mask[..., None, None],
        "backbone_mask": mask,
        "unit_vector": template.unit_vectors(frames) * pairs[..., None],
    }


def _point_projection(case: Case, x: Inputs) -> tuple[nn.Module, Outputs]:
    h = case.meta["hparams"]
    module = load(case, ipa.PointProjection(h["c_hidden"], h["num_points"], h["no_heads"]))
    local = module.linear(x["s"]).unflatten(-1, (h["no_heads"], 3, -1)).transpose(-1, -2)
    frames = from_4x4(x["frames4x4"]).unsqueeze(-1).unsqueeze(-1)
    return module, {"points": apply(frames, local)}


def _quat_rigid(case: Case, x: Inputs) -> tuple[nn.Module, Outputs]:
    module = load(case, BackboneUpdate(case.meta["hparams"]["c_hidden"]))
    update = structure_module.update_to_rigid(module(x["s"]))
    composed = compose(from_4x4(x["frames4x4"]), update)
    return module, {"update": to_4x4(update), "composed": to_4x4(composed)}


def _tm(case: Case, x: Inputs) -> tuple[None, Outputs]:
    h = case.meta["hparams"]
    weights = x.get("residue_weights", torch.ones_like(x["logits"][..., 0, 0]))
    expected = heads.expected_tm(x["logits"], weights.sum(-1))
    # The recording has the best of the whole batch; ours is of each sample.
    ptm = heads.best_alignment(expected, weights).amax()
    iptm = heads.best_alignment(expected, weights, x["asym_id"]).amax()
    errors = heads.compute_predicted_aligned_error(x["logits"])
    score = h["ptm_weight"] * ptm + h["iptm_weight"] * iptm
    return None, errors | {"ptm": ptm, "iptm": iptm, "weighted_ptm_score": score}


def _fape(case: Case, x: Inputs) -> tuple[None, Outputs]:
    h = case.meta["hparams"]
    within, between = h["intra_chain_backbone"], h["interface_backbone"]
    config = LossConfig(
        fape_clamp_distance=within["clamp_distance"],
        fape_length_scale=within["loss_unit_distance"],
        fape_interface_clamp_distance=between["clamp_distance"],
        fape_interface_length_scale=between["loss_unit_distance"],
    )
    names = ("traj", "backbone_rigid_tensor", "backbone_rigid_mask", "asym_id")
    truth = (x[name] for name in names)
    intra, interface = fape.chain_fape(*truth, x.get("use_clamped_fape"), config)
    loss = within["weight"] * intra + between["weight"] * interface
    return None, {"intra": intra, "interface": interface, "loss": loss}


def _violation(case: Case, x: Inputs) -> tuple[None, Outputs]:
    h = case.meta["hparams"]
    config = LossConfig(
        violation_tolerance_factor=h["violation_tolerance_factor"],
        clash_overlap_tolerance=h["clash_overlap_tolerance"],
        bonds_across_chains=True,
        same_number_never_clashes=True,
        average_clashes=h["average_clashes"],
        eps=h["eps"],
    )
    # The recording lacks the table of atoms, which follows from the restypes.
    from evofeed.trainer.model.constants import table

    tables = table("ATOM14_TO_ATOM37", x["aatype"].device)
    x = x | {"residx_atom14_to_atom37": tables[x["aatype"]]}
    violations = violation.find_structural_violations(x, x["pred_atom14"], config)
    loss = violation.violation_loss(violations, x["atom14_atom_exists"], config)
    return None, flatten({"loss": loss, "violations": violations})


def whole_multimer(case: Case, x: Inputs) -> tuple[nn.Module, Outputs, Tensor, dict[str, Tensor]]:
    """Module in train mode, flat outputs, scaled loss and its terms."""
    module = load(case, AlphaFold(model_config_from_openfold(case.meta["hparams"]["model"])))
    batch = from_openfold_batch({k[6:]: v for k, v in x.items() if k.startswith("batch.")})
    outputs = module.train()(batch)
    labels = batch | {k[6:]: v for k, v in x.items() if k.startswith("label.")}
    loss_config = loss_config_from_openfold(case.meta["loss_config"])
    loss, breakdown = AlphaFoldLoss(loss_config)(outputs, labels)
    cycles = torch.tensor(batch["msa_feat"].shape[0])
    flat = flatten(outputs) | {"num_recycles": cycles, "asym_id": batch["asym_id"]}
    return module, flat, loss, breakdown


MULTIMER_RUNNERS: dict[str, Runner] = RUNNERS | {
    "InputEmbedderMultimer": runs(
        embedders.InputEmbedderMultimer, call=lambda module, x: module(x), out="m z"
    ),
    "TemplatePairEmbedderMultimer": runs(
        template.TemplatePairEmbedderMultimer,
        call=lambda module, x: module(
            **x | {"aatype_one_hot": x["aatype_one_hot"].to(x["query_embedding"].dtype)}
        ),
        out="act",
    ),
    "TemplateSingleEmbedderMultimer": _single_embedder,
    "TemplateEmbedderMultimer": _template_embedder,
    "make_backbone_affine + unit_vector": _backbone_affine,
    "InvariantPointAttentionMultimer": runs(
        ipa.InvariantPointAttentionMultimer,
        call=lambda module, x: module(x["s"], x["z"], from_4x4(x["frames4x4"]), x["mask"]),
    ),
    "PointProjection(is_multimer)": _point_projection,
    "QuatRigid(full_quat=False)": _quat_rigid,
    "StructureModule(is_multimer)": runs(
        structure_module.StructureModuleMultimer, call=structure, drop=("is_multimer",)
    ),
    "compute_tm(ptm, iptm)": _tm,
    "MaskedMSAHead": runs(one_linear, out="logits"),
    "loss.fape.backbone multimer (intra + interface)": _fape,
    "loss.chain_center_of_mass": of_loss(
        chain_center_of_mass_loss,
        "chain_center_of_mass_",
        out="loss",
        weight="chain_center_of_mass_scale",
    ),
    "loss.violation multimer": _violation,
    "loss.AlphaFoldLoss multimer": total_loss,
    "loss.masked_msa(22)": of_loss(cross_entropy.masked_msa_loss, out="loss"),
    "loss.tm (4x4 affine)": of_loss(cross_entropy.aligned_error_loss, "tm_", out="loss"),
}
