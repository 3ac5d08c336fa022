"""Chain records of one assembly as OpenFold's multimer features, for identical chains.

The trainer here is the monomer model; this exists so that records can be
handed to OpenFold's multimer model and be checked against it. Assemblies of
different sequences need rows paired by species, which is not done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.features import ChainRecord

_MAX_ROWS: Final = 2048
_MAX_TEMPLATES: Final = 4
_MIN_ROWS: Final = 512
"""Rows the MSA is padded to, so that there is always an extra MSA (AF2-Multimer)."""


def to_openfold_multimer(
    chains: Sequence[ChainRecord], *, shared_coordinates: bool = False
) -> dict[str, np.ndarray]:
    """OpenFold's merged features of an assembly of identical chains.

    Args:
        chains: their records, in the order of the entry.
        shared_coordinates: give every chain the coordinates of the first, as
            OpenFold does (its issue 525); by default each has its own.

    Raises:
        ValueError: no chain, or chains of different sequences.
    """
    if not chains or len({chain.sequence for chain in chains}) != 1:
        raise ValueError("an assembly of one or more chains with the same sequence is needed")
    copies = len(chains)
    length = chains[0].num_res
    return {
        **_sequence_features(chains[0], copies),
        **_structure_features([chains[0]] * copies if shared_coordinates else chains),
        **_msa_features(chains[0], copies),
        **_template_features(chains[0], copies),
        "asym_id": np.repeat(np.arange(1, copies + 1), length),
        "sym_id": np.repeat(np.arange(1, copies + 1), length),
        "assembly_num_chains": np.asarray(copies),
    }


def _sequence_features(chain: ChainRecord, copies: int) -> dict[str, np.ndarray]:
    total = chain.num_res * copies
    return {
        "aatype": np.tile(chain.aatype.astype(np.int32), copies),
        "residue_index": np.tile(chain.residue_index, copies),
        "seq_length": np.asarray(total, np.int32),
        "entity_id": np.ones(total, np.int64),
        "entity_mask": np.ones(total, np.int32),
        "seq_mask": np.ones(total, np.float32),
    }


def _structure_features(chains: Sequence[ChainRecord]) -> dict[str, np.ndarray]:
    pairs = [(c.all_atom_positions, c.all_atom_mask) for c in chains]
    known = [(xyz, mask) for xyz, mask in pairs if xyz is not None and mask is not None]
    if len(known) != len(chains):
        return {}
    return {
        "all_atom_positions": np.concatenate([positions for positions, _ in known]),
        "all_atom_mask": np.concatenate([mask for _, mask in known]).astype(np.float32),
        "resolution": np.asarray(chains[0].resolution, np.float32),
    }


def _msa_features(chain: ChainRecord, copies: int) -> dict[str, np.ndarray]:
    """Rows repeated side by side: identical chains share their alignment."""
    deletions = chain.deletion_matrix().astype(np.float32)
    msa = np.tile(chain.msa[:_MAX_ROWS].astype(np.int32), copies)
    rows = len(msa)
    padding = ((0, max(0, _MIN_ROWS - rows)), (0, 0))
    ones = np.pad(np.ones(msa.shape, np.float32), padding)
    bias = np.zeros(len(ones))
    bias[0] = 1
    return {
        "msa": np.pad(msa, padding),
        "deletion_matrix": np.pad(np.tile(deletions[:_MAX_ROWS], copies), padding),
        "deletion_mean": np.tile(deletions.mean(axis=0), copies),
        "num_alignments": np.asarray(rows, np.int32),
        "cluster_bias_mask": bias,
        "bert_mask": ones,
        "msa_mask": ones.copy(),
    }


def _template_features(chain: ChainRecord, copies: int) -> dict[str, np.ndarray]:
    kept = min(chain.num_templates, _MAX_TEMPLATES)
    fields: dict[str, np.ndarray] = {
        "template_aatype": chain.template_aatype.astype(np.int64),
        "template_all_atom_mask": chain.template_all_atom_mask.astype(np.float32),
        "template_all_atom_positions": chain.template_all_atom_positions,
    }
    merged = {"num_templates": np.asarray(kept, np.int32)}
    for name, value in fields.items():
        padding = [(0, _MAX_TEMPLATES - kept)] + [(0, 0)] * (value.ndim - 1)
        merged[name] = np.concatenate([np.pad(value[:kept], padding)] * copies, axis=1)
    return merged
