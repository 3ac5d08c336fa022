"""What a loader draws from: chains of datasets, their complexes, or their entries."""

from __future__ import annotations

from collections.abc import Sequence

from evofeed.loader.catalog import ChainCatalog, open_catalogs
from evofeed.loader.config import LoaderConfig
from evofeed.store import Assemblies, Dataset, Entries

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
        return open_catalogs(chains, config)
    from evofeed.loader.assembly.catalog import AssemblyCatalog, LoneChains

    return [
        LoneChains(one.index, number, config, one.uri)
        if isinstance(one, Dataset)
        else AssemblyCatalog(one, number, config)
        for number, (one, _) in enumerate(sources)
        if not isinstance(one, Entries)
    ]
