"""A complex's bytes from its shards into one slot, and what is decided about it on the host.

Its chains, rows to pair and coordinates are read as chains are, one behind the other. Which rows
and residues a sample keeps is decided here, in whole numbers. Runs in reader threads and processes
and imports no torch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from evofeed.loader.assembly.catalog import AssemblyPlace
from evofeed.loader.assembly.crop import crop_residues
from evofeed.loader.assembly.pairing import EntityRows, RowPlan, plan_rows
from evofeed.loader.catalog import ChainPlace
from evofeed.loader.config import AssemblyConfig
from evofeed.loader.read_chain import ReadRequest, Slab, read_columns, slot_nbytes
from evofeed.loader.sample_draws import SampleDraws
from evofeed.store.inner import ChainDecoder, Storage

_ALIGN: Final = 64


class AssemblyTask(NamedTuple):
    """What a reader must know to decide which rows and residues a sample keeps."""

    key: int
    crop_size: int | None
    rules: AssemblyConfig

    def read(self, storage: Storage, request: ReadRequest, slot: memoryview) -> AssemblySlab:
        """Fill a slot with what a sample needs of a complex and say where things are.

        Raises:
            StoreError: as `read_chain`; names the chain at fault.
            ShardCorrupt: the parts do not fit each other.
        """
        place: AssemblyPlace = request.place
        at, read = 0, []
        for member, templates, species in _members(place, request.templates):
            structure = request.structure and member is (place.whole or place.chains[0])
            one = request._replace(
                place=member, templates=templates, structure=structure, species=species, task=None
            )
            nbytes = slot_nbytes(member, templates, species)
            slab, decoder = read_columns(storage, one, slot[at : at + nbytes])
            parts = tuple(part._replace(offset=part.offset + at) for part in slab.parts)
            read.append((Slab(parts, slab.start + at, slab.stop + at), decoder))
            at += nbytes + -nbytes % _ALIGN
        return _decided(place, self, read)


class AssemblySlab(NamedTuple):
    """What a slot holds of a complex, and what was decided about it."""

    slabs: tuple[Slab, ...]
    """Of its records: its chains, their rows to pair where there are some, and the whole."""
    plan: RowPlan
    kept: np.ndarray
    """Residues of the sample, i64."""
    stop: int
    start: int = 0
    seconds: float = 0.0


def assembly_nbytes(place: AssemblyPlace, templates: bool) -> int:
    """Bytes a slot for the complex must have."""
    members = _members(place, templates)
    return sum(slot_nbytes(*member) + _ALIGN for member in members)


def _members(place: AssemblyPlace, templates: bool) -> list[tuple[ChainPlace, bool, bool]]:
    """The records to read, whether with templates, and whether with species."""
    found = [(chain, templates, False) for chain in place.chains]
    found += [(rows, False, True) for rows in place.pairing if rows is not None]
    return found + ([(place.whole, False, False)] if place.whole else [])


def _decided(
    place: AssemblyPlace, task: AssemblyTask, read: list[tuple[Slab, ChainDecoder]]
) -> AssemblySlab:
    decoders = [decoder for _, decoder in read]
    chains, others = decoders[: len(place.chains)], decoders[len(place.chains) :]
    whole = others.pop() if place.whole else None
    pairing = [others.pop(0) if rows is not None else None for rows in place.pairing]
    if whole is not None and whole.dims["L"] != place.num_res:
        raise whole.place.corrupt(f"{whole.dims['L']} residues, its chains have {place.num_res}")
    entities = []
    for chain, rows, number in zip(chains, pairing, place.copies, strict=True):
        if rows is not None and rows.dims["L"] != chain.dims["L"]:
            raise rows.place.corrupt("rows to pair of another length than their chain")
        # Rows of a single sequence are counted, not looked at.
        alone = np.empty([chain.dims["N"], 0], np.uint8) if len(chains) == 1 else None
        msa = chain.array("msa") if alone is None else alone
        pairs = (rows.array("msa"), rows.species()) if rows else (None,)
        entities.append(EntityRows.of(msa, number, *pairs))
    positions = mask = None
    lengths = np.repeat([chain.sizes[0] for chain in place.chains], place.copies).tolist()
    slab, atoms = read[-1] if place.whole else read[0]
    is_cut = len(lengths) > 1 and task.crop_size is not None and sum(lengths) > task.crop_size
    if is_cut and any(part.name == "all_atom_mask" for part in slab.parts):
        positions, mask = (atoms.array(f"all_atom_{name}") for name in ("positions", "mask"))
    draws = SampleDraws(task.key)
    return AssemblySlab(
        slabs=tuple(slab for slab, _ in read),
        plan=plan_rows(entities, task.rules),
        kept=crop_residues(positions, mask, lengths, task.crop_size, draws, task.rules),
        stop=max(slab.stop for slab, _ in read),
    )
