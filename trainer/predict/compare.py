"""Comparison of a prediction with the known structure of the same chain or complex."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from evofeed.loader import assembly_batch
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import ATOM_ORDER
from evofeed.protein.structure_text import Structure
from evofeed.trainer.losses.chain_labels import flat_batch, with_assigned_truth
from evofeed.trainer.losses.metrics import dockq, structure_metrics
from evofeed.trainer.predict.prediction import Prediction, record_names, residues_of


def compare_to_known(
    prediction: Prediction, record: ChainRecord | AssemblyRecord
) -> dict[str, float]:
    """`lddt_ca`, `tm_score` (0 to 1) and `rmsd_ca` (ångström), and of a complex `dockq`.

    Identical chains of a complex are matched in the order that fits best. Empty if the record
    has no structure. Source: Mariani 2013; Zhang and Skolnick 2004; Basu and Wallner 2016.
    """
    if record.all_atom_positions is None or record.all_atom_mask is None:
        return {}
    pred = torch.from_numpy(prediction.structure.positions)[None].float()
    truth = labels_of(pred, record)
    true, mask = truth["all_atom_positions"].float(), truth["all_atom_mask"].float()
    if not mask.any():
        return {}
    metrics = structure_metrics(pred, true, mask)
    values = {name: metrics[name][0] for name in ("lddt_ca", "tm_score", "rmsd_ca")}
    if "asym_id" in truth:
        values["dockq"] = dockq(pred[0], true[0], mask[0], truth["asym_id"][0])
    return {name: round(float(value), 4) for name, value in values.items()}


def known_structure(ca: np.ndarray, record: ChainRecord | AssemblyRecord) -> Structure | None:
    """The record's structure, identical chains of a complex in the order that best fits the
    predicted CA atoms `[L, 3]` in ångström; None if fewer than three residues are resolved.
    """
    if record.all_atom_positions is None or record.all_atom_mask is None:
        return None
    pred = torch.zeros(1, *record.all_atom_positions.shape)
    pred[0, :, ATOM_ORDER["CA"]] = torch.from_numpy(ca).float()
    truth = labels_of(pred, record)
    mask = truth["all_atom_mask"][0].numpy()
    if (mask[:, ATOM_ORDER["CA"]] > 0).sum() < 3:
        return None
    name, chain_names = record_names(record)
    return Structure(
        name=name, positions=truth["all_atom_positions"][0].numpy(), mask=mask,
        confidence=np.zeros(len(mask)), **residues_of(truth), chain_names=chain_names,
    )  # fmt: skip


def labels_of(pred: Tensor, record: ChainRecord | AssemblyRecord) -> Mapping[str, Tensor]:
    """The known structure to compare atoms `[1, L, 37, 3]` with, as a batch of one.

    Identical chains of a complex are in the order that fits best.
    """
    if isinstance(record, AssemblyRecord):
        small = {"max_msa_clusters": 1, "max_extra_msa": 1, "max_templates": 0}
        batch = assembly_batch(record, no_recycling_iters=0, supervised=True, **small)
        return with_assigned_truth({"final_atom_positions": pred}, flat_batch(batch))
    assert record.all_atom_positions is not None and record.all_atom_mask is not None
    return {
        "aatype": torch.from_numpy(record.aatype)[None],
        "residue_index": torch.arange(len(record.aatype))[None],
        "all_atom_positions": torch.from_numpy(record.all_atom_positions)[None],
        "all_atom_mask": torch.from_numpy(record.all_atom_mask)[None],
    }
