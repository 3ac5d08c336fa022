"""The weighted sum of all losses. Source: AF2 SI 1.9, equation 7."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from evofeed.trainer.losses.center_of_mass import chain_center_of_mass_loss
from evofeed.trainer.losses.chain_labels import with_assigned_truth
from evofeed.trainer.losses.chi import supervised_chi
from evofeed.trainer.losses.cross_entropy import (
    aligned_error_loss,
    distogram_loss,
    experimentally_resolved_loss,
    masked_msa_loss,
)
from evofeed.trainer.losses.fape import backbone_fape, chain_fape, sidechain_fape
from evofeed.trainer.losses.lddt import lddt_loss
from evofeed.trainer.losses.renaming import rename_ground_truth
from evofeed.trainer.losses.violation import find_structural_violations, violation_loss
from evofeed.trainer.model.alphafold import last_recycle
from evofeed.trainer.model.config import LossConfig
from evofeed.trainer.model.primitives import at_least_float32, full_precision


class AlphaFoldLoss(nn.Module):
    """Loss of a batch: the mean over its samples, each scaled by the root of its length.

    Everything is computed outside autocast, at least in float32. A term of weight
    0 is still computed, so that it is logged and every parameter gets a gradient. A
    term that is not finite makes the loss not finite: the training loop skips
    that step and names the sample.
    """

    no_chains: int | None
    """Chains of the largest complex; None: counted in the batch, which waits for the device."""

    def __init__(self, config: LossConfig) -> None:
        super().__init__()
        self.config, self.no_chains = config, None

    def forward(
        self, outputs: Mapping[str, Any], batch: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Scalar loss, and every term's mean over the batch (detached).

        Args:
            outputs: those of `AlphaFold`.
            batch: the batch that the model got. For a complex with `gt_features.*` the labels are
                those of the chains that fit best (see `permutation.py`).

        Returns:
            The breakdown holds each term unweighted under its name in
            `LossConfig`, their weighted sum as `unscaled_loss`, and `loss`.
        """
        with full_precision(batch["seq_mask"]):
            out = {k: at_least_float32(v) for k, v in outputs.items() if isinstance(v, Tensor)}
            batch = with_assigned_truth(outputs, batch, self.no_chains)
            terms = self.terms(out, outputs["sm"], last_recycle(batch))
            weighted = sum(getattr(self.config, name) * term for name, term in terms.items())
            assert isinstance(weighted, Tensor)
            length = batch["seq_length"].clamp(max=batch["aatype"].shape[-1])
            loss = torch.mean(weighted * torch.sqrt(length.float()))
        breakdown = {name: term.detach().mean() for name, term in terms.items()}
        return loss, breakdown | {
            "unscaled_loss": weighted.detach().mean(),
            "loss": loss.detach(),
        }

    def terms(
        self, out: Mapping[str, Tensor], sm: Mapping[str, Tensor], feats: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Each term per sample `[*]`, unweighted, from features without a recycling axis."""
        config = self.config
        terms = {
            "distogram": distogram_loss(
                out["distogram_logits"], feats["pseudo_beta"], feats["pseudo_beta_mask"], config
            ),
            "experimentally_resolved": experimentally_resolved_loss(
                out["experimentally_resolved_logits"], feats["atom37_atom_exists"],
                feats["all_atom_mask"], feats["resolution"], config,
            ),
            "fape": self._fape(sm, feats),
            "plddt_loss": lddt_loss(
                out["lddt_logits"], out["final_atom_positions"], feats["all_atom_positions"],
                feats["all_atom_mask"], feats["resolution"], config,
            ),
            "masked_msa": masked_msa_loss(
                out["masked_msa_logits"], feats["true_msa"], feats["bert_mask"], config
            ),
            "supervised_chi": supervised_chi(
                sm["angles"], sm["unnormalized_angles"], feats["aatype"], feats["seq_mask"],
                feats["chi_mask"], feats["chi_angles_sin_cos"], config,
            ),
            "violation": self._violation(sm, feats),
        }  # fmt: skip
        if "tm_logits" in out:
            terms["tm"] = aligned_error_loss(
                out["tm_logits"], out["final_affine_tensor"], feats["backbone_rigid_tensor"],
                feats["backbone_rigid_mask"], feats["resolution"], config,
            )  # fmt: skip
        if "asym_id" in feats:
            terms["chain_center_of_mass"] = chain_center_of_mass_loss(
                out["final_atom_positions"], feats["all_atom_positions"], feats["all_atom_mask"],
                feats["asym_id"], config,
            )  # fmt: skip
        return terms

    def _fape(self, sm: Mapping[str, Tensor], feats: Mapping[str, Tensor]) -> Tensor:
        config = self.config
        renamed = rename_ground_truth(feats, sm["positions"][-1])
        backbone = self._backbone(sm["frames"], feats)
        sidechain = sidechain_fape(
            sm["sidechain_frames"], sm["positions"], feats["rigidgroups_gt_frames"],
            feats["rigidgroups_alt_gt_frames"], feats["rigidgroups_gt_exists"],
            renamed["renamed_atom14_gt_positions"], renamed["renamed_atom14_gt_exists"],
            renamed["alt_naming_is_better"], config,
        )  # fmt: skip
        return backbone + config.fape_sidechain * sidechain

    def _backbone(self, frames: Tensor, feats: Mapping[str, Tensor]) -> Tensor:
        config = self.config
        truth = (feats["backbone_rigid_tensor"], feats["backbone_rigid_mask"])
        clamped = feats.get("use_clamped_fape")
        if "asym_id" not in feats:
            return config.fape_backbone * backbone_fape(frames, *truth, clamped, config)
        within, between = chain_fape(frames, *truth, feats["asym_id"], clamped, config)
        return config.fape_backbone * within + config.fape_interface * between

    def _violation(self, sm: Mapping[str, Tensor], feats: Mapping[str, Tensor]) -> Tensor:
        # All pairs of atoms take much memory: at weight 0 nothing is saved for backward.
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.violation > 0):
            violations = find_structural_violations(feats, sm["positions"][-1], self.config)
            return violation_loss(violations, feats["atom14_atom_exists"], self.config)
