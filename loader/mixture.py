"""Sources of a loader: chains of datasets, their complexes, or their entries."""

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
    """A catalog for each part of a mixture; logs what was chosen and is in none of them.

    Raises:
        LoaderError: nothing of a part passes the filters.
        ValueError: complexes, but `config` makes features of single chains.
    """
    are_entries = [isinstance(one, Entries) for one, _ in sources]
    if config.entries is not None and not all(are_entries):
        raise ValueError("LoaderConfig(entries=...) draws from entries: give dataset.entries")
    if config.entries is None and any(are_entries):
        raise ValueError("entries need LoaderConfig(entries=...), as `openfold3()` has it")
    if config.assemblies is None and any(isinstance(one, Assemblies) for one, _ in sources):
        raise ValueError("complexes need LoaderConfig(assemblies=...), as `multimer()` has it")
    catalogs = [_opened(one, number, config) for number, (one, _) in enumerate(sources)]
    if config.chains is not None:
        there = {chain for catalog in catalogs for chain in catalog.chain_ids()}
        if missing := [chain for chain in config.chains if chain not in there]:
            _LOG.warning(
                "%d of %d chosen chains are left out, because they are not there or a filter takes "
                "them, such as %s", len(missing), len(config.chains), missing[0],
            )  # fmt: skip
    return catalogs


def _opened(source: Source, number: int, config: LoaderConfig) -> ChainCatalog:
    if isinstance(source, Entries):
        from evofeed.loader.entries.catalog import EntryCatalog

        return EntryCatalog(source, number, config)
    if config.assemblies is None and isinstance(source, Dataset):
        return ChainCatalog(source.index, number, config, source.uri)
    from evofeed.loader.assembly.catalog import AssemblyCatalog, LoneChains

    if isinstance(source, Assemblies):
        return AssemblyCatalog(source, number, config)
    return LoneChains(source.index, number, config, source.uri)
