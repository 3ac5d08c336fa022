"""Our configurations from OpenFold's, as recordings have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from evofeed.trainer.model.config import (
    EvoformerConfig,
    ExtraMSAConfig,
    LossConfig,
    ModelConfig,
    MultimerConfig,
    RecyclingConfig,
    StructureModuleConfig,
    TemplateConfig,
)


def _only(cls: type, section: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a section that `cls` has; OpenFold writes some of its floats as integers."""
    types = {item.name: item.type for item in fields(cls)}
    return {
        name: float(value) if types[name] in (float, "float") else value
        for name, value in section.items()
        if name in types
    }


def model_config_from_openfold(config: Mapping[str, Any]) -> ModelConfig:
    """Our configuration from the `model` section of an OpenFold configuration."""
    embedder, heads, template = config["input_embedder"], config["heads"], config["template"]
    tm = heads.get("tm", {})
    return ModelConfig(
        **_only(ModelConfig, embedder),
        c_s=config["evoformer_stack"]["c_s"],
        recycling=RecyclingConfig(**_only(RecyclingConfig, config["recycling_embedder"])),
        template=template_config_from_openfold(template) if template["enabled"] else None,
        extra_msa=ExtraMSAConfig(
            c_e=config["extra_msa"]["extra_msa_embedder"]["c_out"],
            **_only(ExtraMSAConfig, config["extra_msa"]["extra_msa_stack"]),
        ),
        evoformer=EvoformerConfig(**_only(EvoformerConfig, config["evoformer_stack"])),
        structure_module=StructureModuleConfig(
            **_only(StructureModuleConfig, config["structure_module"])
        ),
        c_hidden_plddt=heads["lddt"]["c_hidden"],
        plddt_bins=heads["lddt"]["no_bins"],
        distogram_bins=heads["distogram"]["no_bins"],
        tm_bins=tm["no_bins"] if tm.get("enabled") else None,
        multimer=_multimer_from_openfold(embedder, tm),
        mask_trans=config.get("_mask_trans", False),
    )


def _multimer_from_openfold(
    embedder: Mapping[str, Any], tm: Mapping[str, Any]
) -> MultimerConfig | None:
    if "max_relative_chain" not in embedder:
        return None
    assert embedder["relpos_k"] == embedder["max_relative_idx"]  # one number is used for both
    return MultimerConfig(**_only(MultimerConfig, {**embedder, **tm}))


def template_config_from_openfold(template: Mapping[str, Any]) -> TemplateConfig:
    """Our configuration from the `template` section of an OpenFold model's."""
    pointwise = template.get("template_pointwise_attention", {})
    names = {"c_hidden": "c_hidden_pointwise", "no_heads": "no_heads_pointwise"}
    return TemplateConfig(
        **{
            **_only(TemplateConfig, template["template_pair_stack"]),
            **_only(TemplateConfig, template["distogram"]),
            **{names[name]: pointwise[name] for name in names if name in pointwise},
            "inf": template["inf"],
        }
    )


def loss_config_from_openfold(config: Mapping[str, Any]) -> LossConfig:
    """Our configuration from the `loss` section of an OpenFold configuration.

    Of complexes it takes OpenFold's own faults too: the weight of the centre of mass counts
    twice, bonds are expected across chains, equal residue numbers never clash.
    """
    fape, chi, violation = config["fape"], config["supervised_chi"], config["violation"]
    backbone = "intra_chain_backbone" if "intra_chain_backbone" in fape else "backbone"
    weights = ("distogram", "masked_msa", "plddt_loss", "experimentally_resolved", "tm")
    tm = ("tm",) if config["tm"].get("enabled") else ()
    confident = ("plddt_loss", "experimentally_resolved", *tm)
    return LossConfig(
        fape=fape["weight"],
        fape_backbone=fape[backbone]["weight"],
        fape_sidechain=fape["sidechain"]["weight"],
        fape_clamp_distance=_common_value(
            config, f"fape.{backbone}.clamp_distance", "fape.sidechain.clamp_distance"
        ),
        fape_length_scale=_common_value(
            config, f"fape.{backbone}.loss_unit_distance", "fape.sidechain.length_scale"
        ),
        supervised_chi=chi["weight"],
        chi_weight=chi["chi_weight"],
        angle_norm_weight=chi["angle_norm_weight"],
        violation=violation["weight"],
        average_clashes=violation.get("average_clashes", False),
        violation_tolerance_factor=violation["violation_tolerance_factor"],
        clash_overlap_tolerance=violation["clash_overlap_tolerance"],
        distogram_min_bin=config["distogram"]["min_bin"],
        distogram_max_bin=config["distogram"]["max_bin"],
        plddt_cutoff=config["plddt_loss"]["cutoff"],
        tm_max_bin=float(config["tm"]["max_bin"]),
        min_resolution=_common_value(config, *(f"{name}.min_resolution" for name in confident)),
        max_resolution=_common_value(config, *(f"{name}.max_resolution" for name in confident)),
        eps=_common_value(
            config,
            *("distogram.eps", "masked_msa.eps", "supervised_chi.eps", "violation.eps"),
            *(f"{name}.eps" for name in confident),
        ),
        **{name: config[name]["weight"] for name in weights},
        **_multimer_losses(config),
    )


def _multimer_losses(config: Mapping[str, Any]) -> dict[str, Any]:
    """Constants of the losses of complexes only."""
    centre = config.get("chain_center_of_mass", {})
    interface = config["fape"].get("interface_backbone")
    if interface is None:
        return {}
    return {
        "fape_interface": interface["weight"],
        "fape_interface_clamp_distance": float(interface["clamp_distance"]),
        "fape_interface_length_scale": float(interface["loss_unit_distance"]),
        "chain_center_of_mass": centre["weight"],
        "chain_center_of_mass_scale": centre["weight"],
        "chain_center_of_mass_clamp_distance": centre["clamp_distance"],
        "bonds_across_chains": True,
        "same_number_never_clashes": True,
    }


def _common_value(config: Mapping[str, Any], *paths: str) -> float:
    """The number that all of the paths (parts joined by dots) have."""
    values = set()
    for path in paths:
        value: Any = config
        for part in path.split("."):
            value = value[part]
        values.add(float(value))
    (number,) = values
    return number
