"""What a loader draws from: chains of datasets, their complexes, or their entries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from evofeed.loader.catalog import ChainCatalog
from evofeed.loader.config import LoaderConfig
from evofeed.store import Assemblies, Dataset, Entries

_LOG: Final = logging.getLogger(__name__)
Source = Dataset | Assemblies | Entries


def dataset_of(source: Source) -> Dataset:
    """The dataset that chains, complexes or entries are of."""
    return source if isinstance(source, Dataset) else source.dataset


def snapshot_of(source: Source) -> str:
    """What a saved state remembers of a source."""
    digest = dataset_of(source).digest
    part = {Assemblies: "/assemblies", Entries: "/entries"}.get(type(source), "")
    return f"{digest}{part}"


def open_mixture(
    sources: Sequence[tuple[Source, float]], config: LoaderConfig
) -> list[ChainCatalog]:
    """A catalog for each part of a mixture.

    Raises:
        LoaderError: nothing of a part passes the filters.
        ValueError: complexes, but `config` makes features of single chains.
    """
    entries = [one for one, _ in sources if isinstance(one, Entries)]
    if config.entries is not None:
        if len(entries) != len(sources):
            raise ValueError("LoaderConfig(entries=...) draws from entries: give dataset.entries")
        from evofeed.loader.entries.catalog import EntryCatalog

        return [EntryCatalog(one, number, config) for number, one in enumerate(entries)]
    if entries:
        raise ValueError("entries need LoaderConfig(entries=...), as `openfold3()` has it")
    chains = [(one, share) for one, share in sources if isinstance(one, Dataset)]
    if config.assemblies is None:
        if len(chains) != len(sources):
            raise ValueError("complexes need LoaderConfig(assemblies=...), as `multimer()` has it")
        return _chains(chains, config)
    from evofeed.loader.assembly.catalog import AssemblyCatalog, LoneChains

    return [
        LoneChains(one.index, number, config, one.uri)
        if isinstance(one, Dataset)
        else AssemblyCatalog(one, number, config)
        for number, (one, _) in enumerate(sources)
        if not isinstance(one, Entries)
    ]


def _chains(datasets: Sequence[tuple[Dataset, float]], config: LoaderConfig) -> list[ChainCatalog]:
    """A catalog for each dataset of a mixture; logs chosen chains that are in none of them."""
    catalogs = [
        ChainCatalog(dataset.index, number, config, dataset.uri)
        for number, (dataset, _) in enumerate(datasets)
    ]
    if config.chains is not None:
        there = {chain for catalog in catalogs for chain in catalog.chain_ids()}
        if missing := [chain for chain in config.chains if chain not in there]:
            _LOG.warning(
                "%d of %d chosen chains are left out, because they are not there or a filter takes "
                "them, such as %s", len(missing), len(config.chains), missing[0],
            )  # fmt: skip
    return catalogs
