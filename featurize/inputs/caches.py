"""The small files around a data set: chain data, release dates, duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evofeed.base.errors import InputError
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.inputs.clusters import NO_CLUSTER
from evofeed.featurize.structures.structure import Structure
from evofeed.featurize.structures.structure_files import parse_structure


def read_duplicates(path: str) -> list[list[str]]:
    """Groups of chains with one sequence: a line each, spaces between."""
    text = read_bytes(file_ref(path)).decode("utf-8", "replace")
    return [line.split() for line in text.splitlines() if line.strip()]


def chain_data_cache(
    structures: Iterable[str],
    clusters: Mapping[str, int] | None = None,
    config: FeaturizeConfig | None = None,
    failures: list[InputError] | None = None,
) -> dict[str, dict[str, Any]]:
    """OpenFold's `chain_data_cache.json`: date, sequence, resolution, cluster size by chain.

    Args:
        structures: mmCIF or PDB files.
        clusters: `read_cluster_sizes`; chains in none get -1.
        config: how structures are read.
        failures: where files that cannot be read are listed; else the first raises.
    """
    cache: dict[str, dict[str, Any]] = {}
    for structure in _parsed(structures, config, failures):
        for chain, sequence in structure.sequences.items():
            name = f"{structure.file_id}_{chain}"
            entry = {"seq": sequence, "resolution": structure.resolution}
            if structure.kind == "mmcif":
                entry = {"release_date": structure.release_date, **entry}
            if clusters is not None:
                entry["cluster_size"] = clusters.get(name.upper(), NO_CLUSTER)
            cache[name] = entry
    return cache


def mmcif_cache(
    structures: Iterable[str],
    clusters: Mapping[str, int] | None = None,
    config: FeaturizeConfig | None = None,
    failures: list[InputError] | None = None,
) -> dict[str, dict[str, Any]]:
    """OpenFold's `mmcif_cache.json`: date, chains and resolution by entry. As above."""
    cache: dict[str, dict[str, Any]] = {}
    for structure in _parsed(structures, config, failures):
        chains = list(structure.sequences)
        entry: dict[str, Any] = {"release_date": structure.release_date}
        if clusters is not None:
            names = [f"{structure.file_id}_{chain}".upper() for chain in chains]
            entry["cluster_sizes"] = [clusters.get(name, NO_CLUSTER) for name in names]
        cache[structure.file_id] = {
            **entry,
            "chain_ids": chains,
            "seqs": list(structure.sequences.values()),
            "no_chains": len(chains),
            "resolution": structure.resolution,
        }
    return cache


def _parsed(
    paths: Iterable[str], config: FeaturizeConfig | None, failures: list[InputError] | None
) -> Iterable[Structure]:
    for path in sorted(paths, key=lambda path: Path(path).name):
        ref = file_ref(path)
        try:
            yield parse_structure(read_bytes(ref), ref.plain_name, path=path, config=config)
        except InputError as error:
            if failures is None:
                raise
            failures.append(error)
