"""AF2's two training stages, its model of complexes and small ones, each whole: model, losses,
batches and run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from evofeed.loader import AssemblyConfig, LoaderConfig
from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.model.config import (
    EvoformerConfig,
    ExtraMSAConfig,
    LossConfig,
    ModelConfig,
    MultimerConfig,
    StructureModuleConfig,
    TemplateConfig,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Everything that a name such as `finetuning` means."""

    model: ModelConfig
    loss: LossConfig
    loader: LoaderConfig
    train: TrainConfig


def initial_training(*, ptm: bool = False) -> Preset:
    """AF2's initial training: 93,229,082 parameters, crop 256 (AF2 SI table 4)."""
    return Preset(
        model=ModelConfig(tm_bins=64 if ptm else None),
        loss=LossConfig(tm=0.1 if ptm else 0.0),
        loader=LoaderConfig.initial_training(),
        train=TrainConfig(preset="initial_training"),
    )


def finetuning(*, ptm: bool = False) -> Preset:
    """AF2's fine-tuning: the same parameters, crop 384; violations and resolved atoms count.

    Half the learning rate, no warm-up and no decay (AF2 SI table 4).
    """
    first = initial_training(ptm=ptm)
    return Preset(
        model=first.model,
        loss=replace(first.loss, violation=1.0, experimentally_resolved=0.01),
        loader=LoaderConfig.finetuning(),
        train=TrainConfig(
            preset="finetuning", optim=OptimConfig(learning_rate=5e-4, warmup_steps=0)
        ),
    )


def multimer() -> Preset:
    """AF2-multimer v3: 93,223,705 parameters, crop 640, 508 + 2,048 rows, 4 templates.

    Source: AlphaFold-Multimer, Evans et al. 2021, and OpenFold's `model_1_multimer_v3`.
    """
    first = initial_training(ptm=True)
    return Preset(
        # Kept, the activations are more than 139 GiB.
        model=replace(_of_complexes(first.model), activation_checkpointing=True),
        loss=replace(first.loss, violation=0.03, average_clashes=True),
        loader=LoaderConfig.multimer(),
        train=TrainConfig(preset="multimer"),
    )


def tiny_multimer() -> Preset:
    """The model of complexes as small as `tiny`."""
    small = tiny()
    rows = AssemblyConfig(msa_rows=64, paired_rows=32, min_rows=24)
    return Preset(
        model=_of_complexes(small.model),
        loss=multimer().loss,
        loader=small.loader.replace(assemblies=rows),
        train=replace(small.train, preset="tiny_multimer"),
    )


def _of_complexes(model: ModelConfig) -> ModelConfig:
    """AF2-multimer's model in the sizes of one of chains."""
    fused = {"opm_first": True, "fuse_projection_weights": True}
    assert model.template is not None
    return replace(
        model,
        tf_dim=21,
        tm_bins=64,
        multimer=MultimerConfig(),
        template=replace(model.template, tri_mul_first=True, fuse_projection_weights=True),
        extra_msa=replace(model.extra_msa, **fused),
        evoformer=replace(model.evoformer, **fused),
        structure_module=replace(model.structure_module, trans_scale_factor=20.0),
    )


def overfit() -> Preset:
    """Initial training's model, set to learn one batch by heart in a few hundred steps.

    Nothing is dropped out. Masked MSA counts a twentieth and FAPE four times: at their usual
    weights masked MSA is most of the gradient until it is learnt, and the structure waits.
    Clamped FAPE has no gradient while everything is more than 10 angstrom off. A few rows are
    enough to distinguish residues, and a step takes half the time.
    """
    first = initial_training()
    model = first.model
    assert model.template is not None
    return Preset(
        model=replace(
            model,
            template=replace(model.template, dropout_rate=0.0),
            extra_msa=replace(model.extra_msa, msa_dropout=0.0, pair_dropout=0.0),
            evoformer=replace(model.evoformer, msa_dropout=0.0, pair_dropout=0.0),
            structure_module=replace(model.structure_module, dropout_rate=0.0),
        ),
        loss=replace(first.loss, masked_msa=0.1, fape=4.0),
        loader=LoaderConfig(
            max_msa_clusters=32, max_extra_msa=128, max_recycling_iters=0, clamp_prob=0.0
        ),
        train=TrainConfig(
            preset="overfit",
            steps=440,
            fixed_batches=1,
            checkpoint_every=0,
            validate_every=25,
            optim=OptimConfig(
                learning_rate=5e-4,
                warmup_steps=50,
                beta2=0.98,
                eps=1e-8,
                ema_decay=0.0,
                decay_after=260,
                decay_every=20,
                decay_factor=0.8,
            ),
        ),
    )


def tiny() -> Preset:
    """Fits a laptop: every block once or twice, a few channels wide, float32, 50 steps."""
    narrow = {
        "c_hidden_msa_att": 8,
        "no_heads_msa": 2,
        "c_hidden_opm": 8,
        "c_hidden_mul": 16,
        "c_hidden_pair_att": 8,
        "no_heads_pair": 2,
        "transition_n": 2,
    }
    template = TemplateConfig(
        c_t=16, c_hidden_tri_att=8, c_hidden_tri_mul=16, no_blocks=1, no_heads=2,
        c_hidden_pointwise=8, no_heads_pointwise=2,
    )  # fmt: skip
    model = ModelConfig(
        c_m=32,
        c_z=32,
        c_s=64,
        template=template,
        extra_msa=ExtraMSAConfig(c_e=16, no_blocks=1, **narrow),  # type: ignore[arg-type]
        evoformer=EvoformerConfig(no_blocks=2, **narrow),  # type: ignore[arg-type]
        structure_module=StructureModuleConfig(c_ipa=8, c_resnet=32, no_heads_ipa=4, no_blocks=4),
        c_hidden_plddt=32,
    )
    return Preset(
        model=model,
        loss=LossConfig(),
        loader=LoaderConfig(
            crop_size=48,
            max_msa_clusters=16,
            max_extra_msa=32,
            max_templates=2,
            max_recycling_iters=1,
        ),
        train=TrainConfig(
            preset="tiny",
            steps=50,
            precision="fp32",
            kernels="torch",
            checkpoint_every=25,
            validate_every=25,
            optim=OptimConfig(warmup_steps=10, ema_decay=0.9),
        ),
    )


PRESETS: Final[dict[str, Callable[[], Preset]]] = {
    "initial_training": initial_training,
    "finetuning": finetuning,
    "tiny": tiny,
    "overfit": overfit,
    "multimer": multimer,
    "tiny_multimer": tiny_multimer,
}
