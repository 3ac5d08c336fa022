"""How sure a predicted mmCIF file is of each of its atoms."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from evofeed.featurize.atom_sites import AtomSites
from evofeed.featurize.polymers import values_of


def with_confidence(block: Any, sites: AtomSites) -> AtomSites:
    """The atoms with pLDDT in place of B factors, where `_ma_qa_metric_local` has it.

    Residues it does not list keep their B factors, or have 0.
    """
    local = _local_plddt(block)
    if not local:
        return sites
    values = np.zeros(len(sites.number)) if sites.b_factor is None else sites.b_factor.copy()
    for code, internal in enumerate(sites.internals):
        rows = np.flatnonzero(sites.internal == code)
        numbers, residue = np.unique(sites.number[rows], return_inverse=True)
        known = [local.get((internal, number), np.nan) for number in numbers.tolist()]
        found = np.array(known, np.float64)[residue]
        values[rows] = np.where(np.isnan(found), values[rows], found)
    return dataclasses.replace(sites, b_factor=values)


def _local_plddt(block: Any) -> dict[tuple[str, int], float]:
    """pLDDT by internal chain and residue number; empty if the file has none."""
    category = "_ma_qa_metric"
    ids = values_of(block, f"{category}.id")
    plddt: set[str] = set()
    for item in ("name", "type"):
        texts = values_of(block, f"{category}.{item}")
        plddt |= {key for key, text in zip(ids, texts, strict=False) if "plddt" in text.lower()}
    modes = dict(zip(ids, values_of(block, f"{category}.mode"), strict=False))
    plddt = {key for key in plddt if modes.get(key, "local") == "local"}
    if not plddt:
        return {}
    items = ("metric_id", "label_asym_id", "label_seq_id", "metric_value")
    columns = [values_of(block, f"{category}_local.{item}") for item in items]
    return {
        (chain, int(number)): float(value)
        for metric, chain, number, value in zip(*columns, strict=False)
        if metric in plddt and number.isdecimal()
    }
