"""A sample's bytes into its slot: of a chain, of a complex, or of a whole entry."""

from __future__ import annotations

from typing import Any

from evofeed.loader.config import LoaderConfig
from evofeed.loader.read_chain import ReadRequest, read_chain, slot_nbytes
from evofeed.store.inner import Storage

# What complexes and entries need is imported with the first of them.


def sample_nbytes(place: Any, config: LoaderConfig) -> int:
    """Bytes a slot for the sample at a place must have."""
    if config.entries is not None:
        return config.entries.slot_nbytes
    templates = config.max_templates > 0
    if config.assemblies is None:
        return slot_nbytes(place, templates)
    from evofeed.loader.assembly.reading import assembly_nbytes

    return assembly_nbytes(place, templates, config.assemblies)


def task_of(config: LoaderConfig, key: int) -> Any:
    """What a reader of complexes or entries must know to decide about a sample; None for chains."""
    if config.entries is not None:
        from evofeed.loader.entries.reading import EntryTask

        return EntryTask(key, config.entries)
    if config.assemblies is None:
        return None
    from evofeed.loader.assembly.reading import AssemblyTask

    return AssemblyTask(key, config.crop_size, config.assemblies)


def read_sample(storage: Storage, request: ReadRequest, slot: memoryview) -> Any:
    """Fill a slot and say where things are.

    Raises:
        StoreError: as `read_chain`.
    """
    read = read_chain if request.task is None else request.task.read
    return read(storage, request, slot)
