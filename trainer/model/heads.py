"""The auxiliary heads: distogram, masked MSA, pLDDT, experimentally resolved, aligned error.

Source: AF2 SI 1.9.6, 1.9.7, 1.9.8, 1.9.9, 1.9.10. Letters: S sequences, R residues.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from evofeed.base.shapes import Float, Int
from evofeed.trainer.model.config import ModelConfig
from evofeed.trainer.model.primitives import LayerNorm, Linear, OneLinear, at_least_float32


class PerResidueLDDTCaPredictor(nn.Module):
    """Logits of the lDDT-Ca of each residue. Source: algorithm 29."""

    def __init__(self, no_bins: int, c_in: int, c_hidden: int) -> None:
        super().__init__()
        self.layer_norm = LayerNorm(c_in)
        self.linear_1 = Linear(c_in, c_hidden, init="relu")
        self.linear_2 = Linear(c_hidden, c_hidden, init="relu")
        self.linear_3 = Linear(c_hidden, no_bins, init="final")

    def forward(self, s: Float[Tensor, "*B R c_s"]) -> Float[Tensor, "*B R n"]:
        """Logits over bins of lDDT from 0 to 1."""
        s = torch.relu(self.linear_1(self.layer_norm(s)))
        return self.linear_3(torch.relu(self.linear_2(s)))  # type: ignore[no-any-return]


class DistogramHead(nn.Module):
    """Logits of pseudo-beta distances, symmetric (so the bias counts twice)."""

    def __init__(self, c_z: int, no_bins: int) -> None:
        super().__init__()
        self.linear = Linear(c_z, no_bins, init="final")

    def forward(self, z: Float[Tensor, "*B R R c_z"]) -> Float[Tensor, "*B R R n"]:
        """Logits over distance bins."""
        logits: Tensor = self.linear(z)
        return logits + logits.transpose(-2, -3)


class AuxiliaryHeads(nn.Module):
    """All heads, on the outputs of the trunk and the structure module."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.multimer = config.multimer
        self.plddt = PerResidueLDDTCaPredictor(config.plddt_bins, config.c_s, config.c_hidden_plddt)
        self.distogram = DistogramHead(config.c_z, config.distogram_bins)
        # Restypes, in complexes without the mask token; atoms resolved in the experiment; bins of
        # the aligned error of residue j in the frame of residue i.
        self.masked_msa = OneLinear(config.c_m, 23 if config.multimer is None else 22, "final")
        self.experimentally_resolved = OneLinear(config.c_s, 37, "final")
        bins = config.tm_bins
        self.tm = None if bins is None else OneLinear(config.c_z, bins, "final")

    def forward(
        self,
        outputs: Mapping[str, Tensor],
        sm_single: Tensor,
        asym_id: Int[Tensor, "*B R"] | None = None,
    ) -> dict[str, Tensor]:
        """Logits of every head, pLDDT, and with the TM head pTM and aligned errors.

        From the trunk's `msa`, `pair` and `single` and the structure module's last state; `asym_id`
        of a complex adds `iptm_score` and `weighted_ptm_score`.
        """
        heads = self.of_residues(outputs, sm_single)
        heads["distogram_logits"] = self.distogram(outputs["pair"])
        if self.tm is not None:
            logits = self.tm(outputs["pair"])
            count = logits.new_full((), logits.shape[-2], dtype=torch.float32)
            expected = expected_tm(logits, count)
            heads |= {"tm_logits": logits, **self.scores(expected, asym_id)}
            heads |= compute_predicted_aligned_error(logits)
        return heads

    def of_residues(self, outputs: Mapping[str, Tensor], sm_single: Tensor) -> dict[str, Tensor]:
        """The outputs of `forward` that do not depend on pairs."""
        lddt_logits = self.plddt(sm_single)
        return {
            "lddt_logits": lddt_logits,
            "plddt": compute_plddt(lddt_logits),
            "masked_msa_logits": self.masked_msa(outputs["msa"]),
            "experimentally_resolved_logits": self.experimentally_resolved(outputs["single"]),
        }

    def scores(
        self, expected: Float[Tensor, "*B R R"], asym_id: Int[Tensor, "*B R"] | None
    ) -> dict[str, Tensor]:
        """The TM-scores of a chain or a complex, from the output of `expected_tm`."""
        ptm = best_alignment(expected)
        if asym_id is None or self.multimer is None:
            return {"ptm_score": ptm}
        iptm = best_alignment(expected, asym_id=asym_id)
        score = self.multimer.ptm_weight * ptm + self.multimer.iptm_weight * iptm
        return {"ptm_score": ptm, "iptm_score": iptm, "weighted_ptm_score": score}


def compute_plddt(logits: Float[Tensor, "*B R n"]) -> Float[Tensor, "*B R"]:
    """Expected lDDT-Ca of each residue, 0 to 100."""
    logits = at_least_float32(logits)
    n = logits.shape[-1]
    centres = (torch.arange(n, device=logits.device, dtype=logits.dtype) + 0.5) / n
    return torch.sum(torch.softmax(logits, dim=-1) * centres, dim=-1) * 100


def _aligned_error_bin_centres(logits: Tensor) -> Float[Tensor, " n"]:
    """Centres of the aligned-error bins, ångström; the last bin begins at 31 and is open above."""
    bins = logits.shape[-1] - 1
    edges = torch.linspace(0, 31.0, bins, device=logits.device, dtype=logits.dtype)
    step = edges[1] - edges[0]
    centres = edges + step / 2
    return torch.cat([centres, centres[-1:] + step])


def compute_predicted_aligned_error(logits: Float[Tensor, "*B I R n"]) -> dict[str, Tensor]:
    """Probabilities of error bins, the expected error of each pair, the maximum error."""
    logits = at_least_float32(logits)
    probs = torch.softmax(logits, dim=-1)
    centres = _aligned_error_bin_centres(logits)
    return {
        "aligned_confidence_probs": probs,
        "predicted_aligned_error": torch.sum(probs * centres, dim=-1),
        "max_predicted_aligned_error": centres[-1],
    }


def expected_tm(logits: Float[Tensor, "*B I R n"], count: Tensor) -> Float[Tensor, "*B I R"]:
    """Expected TM-score terms of residues j in the frames of residues i, of any rows i.

    `count` is the total number of residues, by sample `[*]` or the same for all `[]`.
    """
    logits = at_least_float32(logits)
    count = count.to(logits.dtype).clamp(min=19)[..., None, None, None]
    d0 = 1.24 * (count - 15) ** (1.0 / 3) - 1.8
    centres = _aligned_error_bin_centres(logits)
    tm_per_bin = 1.0 / (1 + centres**2 / d0**2)
    return torch.sum(torch.softmax(logits, dim=-1) * tm_per_bin, dim=-1)


def best_alignment(
    expected: Float[Tensor, "*B R R"],
    residue_weights: Float[Tensor, "*B R"] | None = None,
    asym_id: Int[Tensor, "*B R"] | None = None,
    eps: float = 1e-8,
) -> Float[Tensor, "*B"]:
    """Predicted TM-score, from the output of `expected_tm`; with `asym_id` over pairs of different
    chains only, which is ipTM.

    Without `residue_weights` all residues have the same weight (padding too, as in OpenFold).
    Source: AF2 SI 1.9.7, equations 38 to 40; AlphaFold-Multimer, section 2.6.
    """
    if residue_weights is None:
        residue_weights = torch.ones_like(expected[..., 0])
    weights = residue_weights[..., :, None] * residue_weights[..., None, :]
    if asym_id is not None:
        weights = weights * (asym_id[..., :, None] != asym_id[..., None, :])
    share = weights / (eps + torch.sum(weights, dim=-1, keepdim=True))
    per_alignment = torch.sum(expected * share, dim=-1)
    best = torch.argmax(per_alignment * residue_weights, dim=-1, keepdim=True)
    return torch.gather(per_alignment, -1, best)[..., 0]
