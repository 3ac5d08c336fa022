"""Sources of a loader: chains of datasets, their complexes, or their entries; mixtures of them."""

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
    """The dataset of a source."""
    return source if isinstance(source, Dataset) else source.dataset


def snapshot_of(source: Source) -> str:
    """The snapshot of a source in a saved state."""
    digest = dataset_of(source).digest
    part = {Assemblies: "/assemblies", Entries: "/entries"}.get(type(source), "")
    return f"{digest}{part}"


def open_mixture(
    sources: Sequence[tuple[Source, float]], config: LoaderConfig
) -> list[ChainCatalog]:
    """A catalog for each source of a mixture; logs chains of the config that are in none of them.

    Raises:
        LoaderError: nothing of a source passes the filters.
        ValueError: a source does not fit the config, such as complexes for single chains.
    """
    are_entries = [isinstance(source, Entries) for source, _ in sources]
    if config.entries is not None and not all(are_entries):
        raise ValueError("LoaderConfig(entries=...) draws from entries: give dataset.entries")
    if config.entries is None and any(are_entries):
        raise ValueError("entries need LoaderConfig(entries=...), such as `openfold3()`")
    if config.assemblies is None and any(isinstance(source, Assemblies) for source, _ in sources):
        raise ValueError("complexes need LoaderConfig(assemblies=...), such as `multimer()`")
    catalogs = [_open_catalog(source, i, config) for i, (source, _) in enumerate(sources)]
    if config.chains is not None:
        eligible = {chain for catalog in catalogs for chain in catalog.chain_ids()}
        if missing := [chain for chain in config.chains if chain not in eligible]:
            _LOG.warning(
                "%d of %d chosen chains are left out: they are missing or do not pass the filters, "
                "such as %s", len(missing), len(config.chains), missing[0],
            )  # fmt: skip
    return catalogs


def _open_catalog(source: Source, number: int, config: LoaderConfig) -> ChainCatalog:
    if isinstance(source, Entries):
        from evofeed.loader.entries.catalog import EntryCatalog

        return EntryCatalog(source, number, config)
    if config.assemblies is None and isinstance(source, Dataset):
        return ChainCatalog(source.index, number, config, source.uri)
    from evofeed.loader.assembly.catalog import AssemblyCatalog, LoneChains

    if isinstance(source, Assemblies):
        return AssemblyCatalog(source, number, config)
    return LoneChains(source.index, number, config, source.uri)
