"""How each kind of golden case runs on our code: `kind` -> function of the case.

A runner takes the case and its inputs and returns the module it used (or None)
and the outputs by the pack's names. Modules get the stored parameters by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, get_type_hints

import torch
from tests.trainer.model.golden_case import Case
from tests.trainer.model.openfold_config import (
    loss_config_from_openfold,
    model_config_from_openfold,
    template_config_from_openfold,
)
from torch import Tensor, nn

from evofeed.trainer.losses import AlphaFoldLoss, chi, cross_entropy, fape, renaming, violation
from evofeed.trainer.losses import lddt as lddt_losses
from evofeed.trainer.model import (
    embedders,
    evoformer,
    heads,
    ipa,
    msa_attention,
    outer_product_mean,
    primitives,
    structure_module,
    template,
    torsion,
    transition,
    triangle,
)
from evofeed.trainer.model.alphafold import AlphaFold, from_openfold_batch
from evofeed.trainer.model.config import LossConfig, TemplateConfig
from evofeed.trainer.model.primitives import SharedDropout
from evofeed.trainer.model.rigid import Rigid, from_tensor_7, quaternion_to_matrix, to_4x4

Inputs = dict[str, Tensor]
Outputs = dict[str, Any]
Runner = Callable[[Case, Inputs], tuple[nn.Module | None, Outputs]]

# Of an OpenFold constructor, what says nothing about the maths.
_NO_MATHS = {
    "ckpt", "blocks_per_ckpt", "use_unit_vector", "enabled", "embed_angles",
    "tune_chunk_size", "clear_cache_between_blocks",
}  # fmt: skip


def hparams(case: Case, *drop: str) -> dict[str, Any]:
    return _maths(case.meta["hparams"], _NO_MATHS | set(drop))


def _maths(hparams: dict[str, Any], drop: set[str]) -> dict[str, Any]:
    sizes = {k: v for k, v in hparams.items() if k not in drop}
    if "trans_scale_factor" in sizes:  # the one float that OpenFold writes as an integer
        sizes["trans_scale_factor"] = float(sizes["trans_scale_factor"])
    return {k: _maths(v, drop) if isinstance(v, dict) else v for k, v in sizes.items()}


def build(cls: Callable[..., nn.Module], arguments: dict[str, Any]) -> nn.Module:
    """A module from OpenFold's arguments, some of which may be fields of our configuration."""
    kind = get_type_hints(cls.__init__).get("config") if isinstance(cls, type) else None
    if kind is None:
        return cls(**arguments)
    names = {item.name for item in fields(kind)} & arguments.keys()
    config = kind(**{name: arguments[name] for name in names})
    return cls(config=config, **{k: v for k, v in arguments.items() if k not in names})


def load(case: Case, module: nn.Module) -> Any:
    """The module with the stored parameters, which must be exactly its own."""
    module = module.to(case.dtype)
    module.load_state_dict(case.tensors("param"))
    masks = list(case.tensors("dropmask").values())
    module.train(bool(masks))
    if masks:
        replay = iter(_together(case, masks))
        for part in module.modules():
            if isinstance(part, SharedDropout):
                part.sample_mask = lambda x: next(replay)  # type: ignore[method-assign]
    return module


def _together(case: Case, masks: list[Tensor]) -> list[Tensor]:
    """Dropout masks in our order: the pack has template after template, we take all at once."""
    templates = {"TemplatePairStack": "in.t", "TemplateEmbedderMultimer": "in.template_aatype"}
    if case.meta["kind"] not in templates:
        return masks
    num_templates, calls = case.arrays[templates[case.meta["kind"]]].shape[0], 4
    ours = []
    for block in range(0, len(masks), num_templates * calls):
        for call in range(calls):
            ours.append(torch.cat(masks[block + call : block + num_templates * calls : calls]))
    return ours


def runs(
    cls: Callable[..., nn.Module], *names: str, call: Callable[[Any, Inputs], Any] | None = None,
    drop: tuple[str, ...] = (), out: str = "out", **options: bool,
) -> Runner:  # fmt: skip
    """Runner of a module made without the hparams to drop.

    It is called with the inputs `names` (absent ones are omitted) and options, or by `call`. Its
    outputs are named by `out`, unless they are a dict.
    """
    outs = out.split()

    def run(case: Case, inputs: Inputs) -> tuple[nn.Module, Outputs]:
        module = load(case, build(cls, hparams(case, *drop)))
        arguments = {name: inputs[name] for name in names if name in inputs}
        if call is not None:
            result = call(module, inputs)
        else:
            result = module(**arguments, **options) if arguments else module(*inputs.values())
        if isinstance(result, dict):
            return module, result
        return module, dict(zip(outs, result if len(outs) > 1 else (result,), strict=True))

    return run


def of_loss(
    function: Callable[..., Any], prefix: str = "", out: str = "out", **names: str
) -> Runner:
    """Runner of a loss function: inputs by name, its constants from the hparams it knows.

    In a `LossConfig` they may have a prefix or another of the `names`; floats all of them, where
    OpenFold has 31.
    """
    constants = {item.name for item in fields(LossConfig)}
    inputs = inspect.signature(function).parameters

    def run(case: Case, x: Inputs) -> tuple[None, Outputs]:
        values = hparams(case).items()
        named = {names.get(k, k if k in constants else prefix + k): v for k, v in values}
        config = LossConfig(**{k: float(v) for k, v in named.items() if k in constants})
        return None, {out: function(**{name: x.get(name) for name in inputs} | {"config": config})}

    return run


def _plain(function: Callable[[Inputs], Tensor]) -> Runner:
    """Runner of a function of the inputs alone."""
    return lambda case, inputs: (None, {"out": function(inputs)})


def _stack(cls: Callable[..., nn.Module], out: str, *drop: str, mask_trans: bool = False) -> Runner:
    names = ("m", "z", "msa_mask", "pair_mask")
    return runs(cls, *names, drop=drop, out=out, _mask_trans=mask_trans)


def _template_embedder(case: Case, x: Inputs) -> tuple[nn.Module, Outputs]:
    h = hparams(case)
    config, c_m = template_config_from_openfold(h), h["template_single_embedder"]["c_out"]
    c_z = h["template_pointwise_attention"]["c_z"]
    module = load(case, template.TemplateEmbedder(config, c_m, c_z))
    pair, single, _ = module(x, x["z"], x["pair_mask"], _mask_trans=False)
    return module, {"template_pair_embedding": pair, "template_single_embedding": single}


def _backbone_update(case: Case, x: Inputs) -> tuple[nn.Module, Outputs]:
    module = load(case, structure_module.BackboneUpdate(**hparams(case)))
    update = module(x["s"])
    quaternion, trans = x["frames7"][..., :4], x["frames7"][..., 4:]
    frames = Rigid(quaternion_to_matrix(quaternion), trans)
    new, moved = structure_module.update_frames(quaternion, frames, update)
    return module, {"update": update, "new_frames7": torch.cat([new, moved.trans], dim=-1)}


def _torsion(case: Case, x: Inputs) -> tuple[None, Outputs]:
    backbone = from_tensor_7(x["frames7"])
    frames = torsion.torsion_angles_to_frames(backbone, x["alpha"], x["aatype"])
    atom14 = torsion.frames_to_atom14(frames, x["aatype"])
    return None, {"frames4x4": to_4x4(frames), "atom14": atom14}


def _tm_pae(case: Case, x: Inputs) -> tuple[None, Outputs]:
    errors = heads.compute_predicted_aligned_error(x["logits"])
    count = torch.tensor(x["logits"].shape[-2])
    ptm = heads.best_alignment(heads.expected_tm(x["logits"], count))
    return None, errors | {"ptm": ptm}


def _inverted_as_quaternion(frames7: Tensor) -> Rigid:
    """Frames whose transpose is the inverse OpenFold takes of a quaternion, conj(q)/|q|^2.

    The training loss never does that; only this case keeps quaternions there.
    """
    quaternion = frames7[..., :4] / frames7[..., :4].square().sum(dim=-1, keepdim=True)
    return Rigid(quaternion_to_matrix(quaternion), frames7[..., 4:])


def _compute_fape(case: Case, x: Inputs) -> tuple[None, Outputs]:
    h = case.meta["hparams"]
    loss = fape.compute_fape(
        *(_inverted_as_quaternion(x[name]) for name in ("pred_frames7", "target_frames7")),
        x["frames_mask"],
        x["pred_positions"],
        x["target_positions"],
        x["positions_mask"],
        length_scale=h["length_scale"],
        clamp_distance=h["l1_clamp_distance"],
        eps=h["eps"],
    )
    return None, {"out": loss}


def _renaming(case: Case, x: Inputs) -> tuple[None, Outputs]:
    return None, renaming.rename_ground_truth(x, x.pop("pred_atom14"))


def _violation(case: Case, x: Inputs) -> tuple[None, Outputs]:
    h = case.meta["hparams"]
    config = LossConfig(
        violation_tolerance_factor=h["violation_tolerance_factor"],
        clash_overlap_tolerance=h["clash_overlap_tolerance"],
        eps=h["eps"],
    )
    violations = violation.find_structural_violations(x, x["pred_atom14"], config)
    loss = violation.violation_loss(violations, x["atom14_atom_exists"], config)
    metrics = violation.violation_metrics(x, x["pred_atom14"], violations)
    return None, flatten({"loss": loss, "violations": violations, "metrics": metrics})


def _lddt_ca(case: Case, x: Inputs) -> tuple[None, Outputs]:
    ca = [x[f"all_atom_{name}"][..., 1, :] for name in ("pred_pos", "positions")]
    ca.append(x["all_atom_mask"][..., 1])
    return None, {
        "per_residue": lddt_losses.lddt(*ca),
        "global": lddt_losses.lddt(*ca, per_residue=False),
    }


def total_loss(case: Case, x: Inputs) -> tuple[None, Outputs]:
    config = loss_config_from_openfold(case.meta["hparams"])
    outputs = nest({k[5:]: v for k, v in x.items() if k.startswith("pred.")})
    batch = {k[6:]: v for k, v in x.items() if k.startswith("batch.")}
    batch |= {k: batch[k][None] for k in ("true_msa", "bert_mask")}
    batch |= {k: v.to(case.dtype) for k, v in batch.items() if v.dtype == torch.int8}
    loss, breakdown = AlphaFoldLoss(config)(outputs, batch)
    return None, flatten({"loss": loss, "breakdown": breakdown})


def whole_model(case: Case, x: Inputs) -> tuple[nn.Module, Outputs, Tensor, dict[str, Tensor]]:
    """Module in train mode, flat outputs, scaled loss and its terms."""
    h = case.meta["hparams"]
    config = model_config_from_openfold(h["model"])
    module = load(case, AlphaFold(config)).train()
    batch = from_openfold_batch(x)
    outputs = module(batch)
    loss, breakdown = AlphaFoldLoss(loss_config_from_openfold(h["loss"]))(outputs, batch)
    no_cycles = torch.tensor(batch["msa_feat"].shape[0])
    return module, flatten(outputs) | {"num_recycles": no_cycles}, loss, breakdown


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def nest(flat: dict[str, Tensor]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
        level[last] = value
    return nested


def in_order(cls: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """For modules whose sizes OpenFold names otherwise, one by one, in evofeed's order."""
    return lambda **sizes: cls(*sizes.values())


def structure(module: nn.Module, x: Inputs) -> Outputs:
    outputs: Outputs = module(x["single"], x["pair"], x["aatype"], x["mask"])
    return outputs


one_linear = in_order(primitives.OneLinear)
_tri_mul = ("z", "mask")
RUNNERS: dict[str, Runner] = {
    "LayerNorm": runs(primitives.LayerNorm, "x"),
    "Attention": runs(
        primitives.Attention,
        call=lambda module, x: module(
            x["q_x"], x["kv_x"], [x[name] for name in ("bias1", "bias2") if name in x]
        ),
    ),
    "MSARowAttentionWithPairBias": runs(
        msa_attention.MSARowAttentionWithPairBias, "m", "z", "mask"
    ),
    "MSAColumnAttention": runs(msa_attention.MSAColumnAttention, "m", "mask"),
    "MSAColumnGlobalAttention": runs(msa_attention.MSAColumnGlobalAttention, "m", "mask"),
    "MSATransition": runs(
        in_order(transition.MSATransition), call=lambda module, x: module(x["m"], x.get("mask"))
    ),
    "PairTransition": runs(
        in_order(transition.PairTransition), call=lambda module, x: module(x["z"], x.get("mask"))
    ),
    "OuterProductMean": runs(outer_product_mean.OuterProductMean, "m", "mask"),
    **{
        f"{kind}TriangleMultiplication{way}": runs(
            partial(getattr(triangle, f"TriangleMultiplication{way}"), fused=bool(kind)), *_tri_mul
        )
        for kind in ("", "Fused")
        for way in ("Outgoing", "Incoming")
    },
    "TriangleAttentionStartingNode": runs(triangle.TriangleAttentionStartingNode, "x", "mask"),
    "TriangleAttentionEndingNode": runs(triangle.TriangleAttentionEndingNode, "x", "mask"),
    "EvoformerBlock": _stack(evoformer.EvoformerBlock, "m z", "eps"),
    "EvoformerBlock.mask_trans": _stack(evoformer.EvoformerBlock, "m z", "eps", mask_trans=True),
    "ExtraMSABlock": _stack(evoformer.ExtraMSABlock, "m z"),
    "EvoformerStack": _stack(evoformer.EvoformerStack, "m z s", "eps"),
    "ExtraMSAStack": _stack(evoformer.ExtraMSAStack, "z"),
    "InputEmbedder": runs(embedders.InputEmbedder, call=lambda module, x: module(x), out="m z"),
    "RecyclingEmbedder": runs(embedders.RecyclingEmbedder, "m", "z", "x", out="m z"),
    "TemplateSingleEmbedder": runs(template.TemplateSingleEmbedder, "x"),
    "TemplatePairEmbedder": runs(one_linear),
    "ExtraMSAEmbedder": runs(one_linear),
    "TemplatePairStack": runs(template.TemplatePairStack, "t", "mask", _mask_trans=False),
    "TemplatePointwiseAttention": runs(
        template.TemplatePointwiseAttention, "t", "z", "template_mask"
    ),
    "build_template_pair_feat": _plain(
        lambda x: template.build_template_pair_feat(x, TemplateConfig())
    ),
    "build_template_angle_feat": _plain(template.build_template_angle_feat),
    "build_extra_msa_feat": _plain(lambda x: embedders.build_extra_msa_feat(**x)),
    "TemplateEmbedder": _template_embedder,
    "InvariantPointAttention": runs(
        ipa.InvariantPointAttention,
        call=lambda module, x: module(x["s"], x["z"], from_tensor_7(x["frames7"]), x["mask"]),
    ),
    "BackboneUpdate": _backbone_update,
    "AngleResnet": runs(torsion.AngleResnet, "s", "s_initial", out="unnormalized angles"),
    "StructureModuleTransition": runs(structure_module.StructureModuleTransition, "s"),
    "torsion_angles_to_frames_and_atom14": _torsion,
    "StructureModule": runs(structure_module.StructureModule, call=structure),
    "DistogramHead": runs(heads.DistogramHead, "z"),
    "TMScoreHead": runs(one_linear),
    "MaskedMSAHead": runs(one_linear),
    "ExperimentallyResolvedHead": runs(one_linear),
    "PerResidueLDDTCaPredictor": runs(
        heads.PerResidueLDDTCaPredictor,
        call=lambda module, x: (logits := module(x["s"]), heads.compute_plddt(logits)),
        out="logits plddt",
    ),
    "compute_tm_pae": _tm_pae,
    "loss.fape.backbone": of_loss(
        fape.backbone_fape, "fape_", loss_unit_distance="fape_length_scale"
    ),
    "loss.fape.sidechain": of_loss(fape.sidechain_fape, "fape_"),
    "loss.compute_fape": _compute_fape,
    "loss.renamed_ground_truth": _renaming,
    "loss.supervised_chi": of_loss(chi.supervised_chi),
    "loss.distogram": of_loss(cross_entropy.distogram_loss, "distogram_"),
    "loss.masked_msa": of_loss(cross_entropy.masked_msa_loss),
    "loss.lddt": of_loss(lddt_losses.lddt_loss, "plddt_"),
    "loss.experimentally_resolved": of_loss(cross_entropy.experimentally_resolved_loss),
    "loss.tm": of_loss(cross_entropy.aligned_error_loss, "tm_"),
    "loss.lddt_ca_score": _lddt_ca,
    "loss.violation": _violation,
    "loss.AlphaFoldLoss": total_loss,
}
