"""Prediction with only this rank's rows of the pair representation, from embedders to heads.

The passes are those of `AlphaFold.forward`. The stacks and the next pass overwrite the pairs in
place, so that apart from them there is only what one operator needs. Letters: N residues, n of them
on this rank, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from evofeed.trainer.model.alphafold import AlphaFold, Recycled, features_of_cycle
from evofeed.trainer.model.heads import AuxiliaryHeads, compute_predicted_aligned_error, expected_tm
from evofeed.trainer.model.primitives import at_least_float32
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import exchanged, gathered
from evofeed.trainer.parallel.rows import chunks, embedded_rows, rows_per_chunk
from evofeed.trainer.parallel.stacks import add_templates, msa_rows


def predict_by_rows(
    model: AlphaFold, axis: Axis, batch: Mapping[str, Tensor], previous: Recycled | None = None
) -> dict[str, Any]:
    """`AlphaFold.forward`; evaluated without a gradient, by rows: `pair` is `[*, n, N, C]`, or
    full if the chain has fewer residues than there are ranks.

    The outputs have neither the logits nor the probabilities of aligned errors.
    """
    # With fewer residues than ranks, one row may be the full pairs: ranks would take other paths.
    short = not axis.all_nonempty(batch["aatype"].shape[-1])
    if torch.is_grad_enabled() or model.training or previous is not None or short:
        return AlphaFold.forward(model, batch, previous)
    axis = replace(axis, in_place=True)
    cycles = batch["msa_feat"].shape[0]
    for cycle in range(cycles):
        feats = features_of_cycle(batch, cycle)
        m, z, single = _trunk(model, axis, feats, previous)
        sm = model.structure_module(single, z, feats["aatype"], feats["seq_mask"])
        outputs = model.outputs(feats, m, z, single, sm)
        previous = m[..., 0, :, :].clone(), z, outputs["final_atom_positions"]
        if cycle < cycles - 1:
            del outputs, m, z, single, sm
    asym_id = None if model.config.multimer is None else batch["asym_id"]
    return outputs | _heads(model.aux_heads, axis, outputs, asym_id)


def _trunk(
    model: AlphaFold, axis: Axis, feats: dict[str, Tensor], previous: Recycled | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The MSA, this rank's rows of the pairs, and the single representation after the Evoformer."""
    seq_mask, msa_mask = feats["seq_mask"], feats["msa_mask"]
    pair_mask = seq_mask[..., :, None] * seq_mask[..., None, :]
    N, mask_trans = seq_mask.shape[-1], model.config.mask_trans
    m, z = embedded_rows(model, feats, previous, *axis.span(N))
    if model.config.template is not None:
        embedder = model.template_embedder
        rows, row_mask = add_templates(embedder, axis, feats, z, pair_mask, mask_trans)
        m, msa_mask = torch.cat([m, rows], dim=-3), torch.cat([msa_mask, row_mask], dim=-2)
    _, z = msa_rows(
        model.extra_msa_stack, axis, model.extra_msa(feats), z, feats["extra_msa_mask"],
        pair_mask, mask_trans,
    )  # fmt: skip
    S = m.shape[-3]
    m, z = msa_rows(model.evoformer, axis, m, z, msa_mask, pair_mask, mask_trans)
    return model.evoformer._result(gathered(m, axis, -3, S), z)


def _distogram(heads: AuxiliaryHeads, axis: Axis, z: Tensor) -> Tensor:
    """Logits of the distogram, of all pairs, on every rank."""
    logits = heads.distogram.linear(z)
    transposed = exchanged(logits, axis, -2, -3, z.shape[-2]).transpose(-2, -3)
    return gathered(logits + transposed, axis, -3, z.shape[-2])


def _heads(
    heads: AuxiliaryHeads, axis: Axis, outputs: Mapping[str, Any], asym_id: Tensor | None
) -> dict[str, Tensor]:
    """Outputs of every head; those of pairs are computed in chunks of rows."""
    z = outputs["pair"]
    n, N = z.shape[-3:-1]
    predictions = heads.of_residues(outputs, outputs["sm"]["single"])
    predictions["distogram_logits"] = _distogram(heads, axis, z)
    if heads.tm is None:
        return predictions
    bins, count = heads.tm.linear.weight.shape[0], z.new_full((), N, dtype=torch.float32)
    chunk_size = rows_per_chunk(4 * 4 * bins * N, z.device) or max(1, n)
    errors = at_least_float32(z[..., :0]).new_empty(*z.shape[:-3], 2, n, N)
    for chunk in chunks(0, n, chunk_size):
        rows = heads.tm(z[..., chunk, :, :])
        errors[..., 0, chunk, :] = expected_tm(rows, count)
        errors[..., 1, chunk, :] = compute_predicted_aligned_error(rows)["predicted_aligned_error"]
    expected, error = gathered(errors, axis, -2, N).unbind(-3)
    return predictions | {"predicted_aligned_error": error, **heads.scores(expected, asym_id)}
