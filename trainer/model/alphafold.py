"""AlphaFold2, of single chains and of complexes: features in, structure and confidences out.

Parameter names are OpenFold's, so its checkpoints load. Source: AF2 SI algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from evofeed.protein.features import ASSEMBLY_BATCH, BATCH
from evofeed.protein.pseudo_beta import pseudo_beta
from evofeed.trainer.model.config import ModelConfig
from evofeed.trainer.model.embedders import (
    InputEmbedder,
    InputEmbedderMultimer,
    RecyclingEmbedder,
    build_extra_msa_feat,
    deletion_features,
)
from evofeed.trainer.model.evoformer import EvoformerStack, ExtraMSAStack, MSAStack
from evofeed.trainer.model.heads import AuxiliaryHeads
from evofeed.trainer.model.primitives import OneLinear
from evofeed.trainer.model.structure_module import StructureModule, StructureModuleMultimer
from evofeed.trainer.model.template import (
    TemplateEmbedder,
    TemplateEmbedderMultimer,
    TemplatePairStack,
)
from evofeed.trainer.model.torsion import atom14_to_atom37

RECYCLE_FEATURES: Final = frozenset(
    f.name for f in (*BATCH, *ASSEMBLY_BATCH) if f.stage == "recycle"
)
TEMPLATE_FEATURES: Final = tuple(f for f in BATCH if f.name.startswith("template_"))
Recycled = tuple[Tensor, Tensor, Tensor]
"""Recycled representations: first MSA row `[*, L, c_m]`, pairs `[*, L, L, c_z]`, and
atoms `[*, L, 37, 3]` in ångström."""


class AlphaFold(nn.Module):
    """The AlphaFold2 model. Its sizes are in `ModelConfig`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        c_m, c_z, c_s = config.c_m, config.c_z, config.c_s
        sizes = config.tf_dim, config.msa_dim, c_z, c_m, config.relpos_k
        multimer = config.multimer
        if multimer is None:
            self.input_embedder = InputEmbedder(*sizes)
        else:
            relative = multimer.use_chain_relative, multimer.max_relative_chain
            self.input_embedder = InputEmbedderMultimer(*sizes, *relative)
        self.recycling_embedder = RecyclingEmbedder(config.recycling, c_m, c_z)
        if config.template is not None:
            templates = TemplateEmbedder if multimer is None else TemplateEmbedderMultimer
            self.template_embedder = templates(config.template, c_m, c_z)
        self.extra_msa_embedder = OneLinear(25, config.extra_msa.c_e)
        self.extra_msa_stack = ExtraMSAStack(config.extra_msa, config.extra_msa.c_e, c_z)
        self.evoformer = EvoformerStack(config.evoformer, c_m, c_z, c_s)
        structure_module = StructureModule if multimer is None else StructureModuleMultimer
        self.structure_module = structure_module(config.structure_module, c_s, c_z)
        self.aux_heads = AuxiliaryHeads(config)
        self.set_activation_checkpointing(config.activation_checkpointing)

    def set_activation_checkpointing(self, enabled: bool) -> None:
        """Enables or disables recomputation of each block's activations in the backward pass."""
        for module in self.modules():
            if isinstance(module, MSAStack | TemplatePairStack):
                module.checkpointing = enabled

    per_recycle: Final = RECYCLE_FEATURES
    """Features with a leading axis of recycles."""

    def forward(
        self, batch: Mapping[str, Tensor], previous: Recycled | None = None
    ) -> dict[str, Any]:
        """Runs all recycles; only the last one has a gradient.

        Args:
            batch: the loader's: features of stage `recycle` are `[R, *, ...]`, all
                others `[*, ...]` (see `evofeed.protein.features.BATCH`). Without
                `template_*` features it runs without templates.
            previous: output of earlier passes (see `recycle`); None or zeros for the first pass.

        Returns:
            `msa`, `pair`, `single`, `sm` (the structure module's dict),
            `final_atom_positions [*, L, 37, 3]` in ångström, `final_atom_mask`,
            `final_affine_tensor [*, L, 7]` (for complexes `[*, L, 4, 4]`), and the
            outputs of `AuxiliaryHeads`.
        """
        no_cycles = batch["msa_feat"].shape[0]
        for cycle in range(no_cycles - 1):
            previous = self.recycle(batch, previous, cycle)
        if torch.is_autocast_enabled(batch["aatype"].device.type):
            # Half-precision copies of the weights cached without grad would cut the gradient.
            torch.clear_autocast_cache()
        outputs, _ = self._iteration(features_of_cycle(batch, no_cycles - 1), previous)
        asym_id = None if self.config.multimer is None else batch["asym_id"]
        heads: dict[str, Tensor] = self.aux_heads(outputs, outputs["sm"]["single"], asym_id)
        return outputs | heads

    @torch.no_grad()
    def recycle(
        self, batch: Mapping[str, Tensor], previous: Recycled | None, cycle: int = 0
    ) -> Recycled:
        """One pass over the features of recycle `cycle`, without a gradient."""
        outputs, m_first = self._iteration(features_of_cycle(batch, cycle), previous)
        return m_first, outputs["pair"], outputs["final_atom_positions"]

    def _iteration(
        self, feats: dict[str, Tensor], previous: Recycled | None
    ) -> tuple[dict[str, Any], Tensor]:
        """Outputs of one pass through trunk and structure module, and the first MSA row."""
        seq_mask = feats["seq_mask"]
        pair_mask = seq_mask[..., :, None] * seq_mask[..., None, :]
        m, z = self._embed(feats, previous)
        msa_mask = feats["msa_mask"]
        if self.config.template is not None:
            update, rows, row_mask = self.template_embedder(
                feats, z, pair_mask, _mask_trans=self.config.mask_trans
            )
            z = z + update
            m = torch.cat([m, rows], dim=-3)
            msa_mask = torch.cat([msa_mask, row_mask], dim=-2)
        extra, mask = self.extra_msa(feats), feats["extra_msa_mask"]
        z = self.extra_msa_stack(extra, z, mask, pair_mask, _mask_trans=self.config.mask_trans)
        m, z, single = self.evoformer(m, z, msa_mask, pair_mask, _mask_trans=self.config.mask_trans)
        sm = self.structure_module(single, z, feats["aatype"], seq_mask)
        return self.outputs(feats, m, z, single, sm), m[..., 0, :, :]

    def outputs(
        self, feats: Mapping[str, Tensor], m: Tensor, z: Tensor, single: Tensor,
        sm: dict[str, Tensor],
    ) -> dict[str, Any]:  # fmt: skip
        """The outputs of `forward` except those of the heads, from trunk and structure module."""
        positions = atom14_to_atom37(
            sm["positions"][-1], feats["residx_atom37_to_atom14"], feats["atom37_atom_exists"]
        )
        return {
            "msa": m[..., : feats["msa_feat"].shape[-3], :, :],
            "pair": z,
            "single": single,
            "sm": sm,
            "final_atom_positions": positions,
            "final_atom_mask": feats["atom37_atom_exists"],
            "final_affine_tensor": sm["frames"][-1],
        }

    def _embed(self, feats: dict[str, Tensor], previous: Recycled | None) -> tuple[Tensor, Tensor]:
        m, z = self.input_embedder(feats)
        if previous is None:
            m_prev, z_prev = torch.zeros_like(m[..., 0, :, :]), torch.zeros_like(z)
            x_prev = torch.zeros_like(feats["target_feat"][..., :3])
        else:
            m_prev, z_prev, atoms = previous
            x_prev = pseudo_beta(feats["aatype"], atoms)
        m_update, z_update = self.recycling_embedder(m_prev, z_prev, x_prev)
        first_row = m[..., :1, :, :] + m_update[..., None, :, :]
        return torch.cat([first_row, m[..., 1:, :, :]], dim=-3), z + z_update

    def extra_msa(self, feats: Mapping[str, Tensor]) -> Tensor:
        """The embedded extra MSA `[*, E, L, c_e]`."""
        if "extra_deletion_matrix" in feats:
            deletions = deletion_features(feats["extra_deletion_matrix"])
        else:
            deletions = feats["extra_has_deletion"], feats["extra_deletion_value"]
        feat = build_extra_msa_feat(feats["extra_msa"], *deletions)
        return self.extra_msa_embedder(feat)  # type: ignore[no-any-return]


def features_of_cycle(batch: Mapping[str, Tensor], cycle: int) -> dict[str, Tensor]:
    """The features of one recycle; without templates, zero slots of them (a complex: one, empty).

    AF2-multimer's model takes the mean over the slots, so it needs one; the loader pads the same.
    """
    feats = {k: v[cycle] if k in RECYCLE_FEATURES else v for k, v in batch.items()}
    slots = int("asym_id" in feats)
    if "template_aatype" not in feats or feats["template_aatype"].shape[-2] < slots:
        *lead, num_res = feats["aatype"].shape
        for feature in TEMPLATE_FEATURES:
            shape = feature.shape({"Tm": slots, "L": num_res})
            integer = feature.dtype.startswith("int")
            like = feats["aatype"] if integer else feats["target_feat"]
            feats[feature.name] = like.new_zeros([*lead, *shape])
    return feats


def last_recycle(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The features of the last recycle, without the recycling axis, as the losses take them."""
    return {k: v[-1] if k in RECYCLE_FEATURES else v for k, v in batch.items()}


def from_openfold_batch(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch in the loader's layout from OpenFold's, with a trailing axis of recycles."""
    return {
        k: v.movedim(-1, 0).contiguous() if k in RECYCLE_FEATURES else v[..., -1]
        for k, v in batch.items()
    }
