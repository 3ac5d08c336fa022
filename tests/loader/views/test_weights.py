"""Weights of datapoints compared with those of the three projects, and the weighted draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.loader.views.packs import openfold3_cache, packs, read

from evofeed.loader.views.entry_view import ChainType
from evofeed.loader.views.weights import DatapointDraw, cluster_sizes, cluster_weights, pair_weights

OPENFOLD3_KINDS = {
    "PROTEIN": ChainType.PROTEIN,
    "DNA": ChainType.DNA,
    "RNA": ChainType.RNA,
    "LIGAND": ChainType.LIGAND,
}
KINDS_OF = {"prot": ChainType.PROTEIN, "nuc": ChainType.DNA, "ligand": ChainType.LIGAND, "": -1}


def numbers(values: list[object]) -> np.ndarray:
    return np.unique(np.array([str(value) for value in values]), return_inverse=True)[1]


@pytest.mark.parametrize("pack", packs(), ids=lambda path: path.name)
def test_openfold3_weights_follow_from_clusters_and_kinds(pack: Path) -> None:
    _, recorded = read(pack / "openfold3" / "weights.npz", "weights.")
    entries = openfold3_cache(pack)["training_cache"]["structure_data"]
    kinds, clusters = [], []
    for entry, point in zip(recorded["entry"], recorded["datapoint"], strict=True):
        chains = str(point).split("_")
        meta = entries[str(entry)]
        types = [OPENFOLD3_KINDS[meta["chains"][chain]["molecule_type"]] for chain in chains]
        kinds.append(([*types, -1])[:2])
        part = meta["interfaces"][str(point)] if len(chains) > 1 else meta["chains"][chains[0]]
        clusters.append((len(chains), part["cluster_id"]))
    sizes = cluster_sizes(numbers(clusters))
    np.testing.assert_array_equal(sizes, recorded["n_clust"])
    weights = cluster_weights(np.array(kinds), sizes)
    np.testing.assert_allclose(weights, recorded["weight"], rtol=1e-12)


@pytest.mark.parametrize("pack", packs(), ids=lambda path: path.name)
def test_boltz_weights_follow_from_clusters_and_kinds(pack: Path) -> None:
    _, recorded = read(pack / "boltz" / "weights.npz", "weights.")
    chains = {
        path.stem: read(path).meta["record"]["chains"]
        for path in (pack / "boltz" / "structure").glob("*.npz")
    }
    kinds, clusters = [], []
    columns = (recorded[name] for name in ("entry", "chain_1", "chain_2"))
    for entry, *pair in zip(*columns, strict=True):
        rows = [chains[str(entry)][chain] for chain in pair if chain >= 0]
        kinds.append(([row["mol_type"] for row in rows] + [-1])[:2])
        clusters.append((len(rows), sorted(str(row["cluster_id"]) for row in rows)))
    weights = cluster_weights(np.array(kinds), cluster_sizes(numbers(clusters)))
    np.testing.assert_allclose(weights / weights.sum(), recorded["probability"], rtol=1e-12)


@pytest.mark.parametrize("pack", packs(), ids=lambda path: path.name)
def test_protenix_weights_follow_from_clusters_and_pairs_of_entities(pack: Path) -> None:
    _, recorded = read(pack / "protenix" / "weights.npz", "weights.")
    columns = [recorded[name].tolist() for name in ("type", "cluster_id")]
    entities = [recorded[f"entity_{side}_id"].tolist() for side in (1, 2)]
    pairs = [
        (entry, *sorted(pair))
        for entry, *pair in zip(recorded["pdb_id"].tolist(), *entities, strict=True)
    ]
    kinds = [
        [KINDS_OF[str(recorded[name][row])] for name in ("mol_1_type", "mol_2_type")]
        for row in range(len(recorded["type"]))
    ]
    weights = pair_weights(
        np.array(kinds), numbers(list(zip(*columns, strict=True))), numbers(pairs)
    )
    np.testing.assert_array_equal(weights.astype(np.float32), recorded["weight_float32"])
    # Its sampler divides by a sum in single precision, one weight after the other.
    single = weights.astype(np.float32)
    merged = read(pack / "protenix" / "sampler.npz").arrays["sampler.merged_weight"]
    np.testing.assert_allclose(single / np.cumsum(single)[-1], merged, rtol=1e-12)


def test_datapoints_are_drawn_in_proportion_and_each_position_alone() -> None:
    weights = np.array([1.0, 0.0, 3.0, 4.0])
    draw = DatapointDraw(weights)
    rows = draw.rows(7, 2, 0, 200_000)
    counts = np.bincount(rows, minlength=4)
    expected = weights / weights.sum() * len(rows)
    assert counts[1] == 0
    assert (np.abs(counts - expected) <= 4 * np.sqrt(expected + 1)).all()
    np.testing.assert_array_equal(draw.rows(7, 2, 150, 9), rows[150:159])
    assert (draw.rows(7, 3, 0, 100) != rows[:100]).any()


def test_weights_that_say_nothing_are_refused() -> None:
    for weights in ([], [0.0], [1.0, -1.0], [np.nan]):
        with pytest.raises(ValueError, match="weights"):
            DatapointDraw(np.array(weights, np.float64))
