"""A sample's bytes into its slot: of a chain, or of a complex of several."""

from __future__ import annotations

from typing import Any

from evofeed.loader.config import LoaderConfig
from evofeed.loader.read_chain import ReadRequest, read_chain, slot_nbytes
from evofeed.store.inner import Storage

# What complexes need is imported with the first of them: a reader of chains does without.


def sample_nbytes(place: Any, config: LoaderConfig) -> int:
    """Bytes a slot for the sample at a place must have."""
    templates = config.max_templates > 0
    if config.assemblies is None:
        return slot_nbytes(place, templates)
    from evofeed.loader.assembly.reading import assembly_nbytes

    return assembly_nbytes(place, templates, config.assemblies)


def task_of(config: LoaderConfig, key: int) -> Any:
    """What a reader of complexes must know to decide about a sample; None for chains."""
    if config.assemblies is None:
        return None
    from evofeed.loader.assembly.reading import AssemblyTask

    return AssemblyTask(key, config.crop_size, config.assemblies)


def read_sample(storage: Storage, request: ReadRequest, slot: memoryview) -> Any:
    """Fill a slot and say where things are.

    Raises:
        StoreError: as `read_chain`.
    """
    if request.task is None:
        return read_chain(storage, request, slot)
    from evofeed.loader.assembly.reading import read_assembly

    return read_assembly(storage, request, slot)
