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
            slab = Slab(parts, slab.start + at, slab.stop + at)
            read.append((Member(slab, member.sizes), decoder))
            at += nbytes + -nbytes % _ALIGN
        return _decided(place, self, read)


class Member(NamedTuple):
    """One chain record of a complex in a slot."""

    slab: Slab
    sizes: tuple[int, int, int, int]


_Read = tuple[Member, ChainDecoder]


class AssemblySlab(NamedTuple):
    """What a slot holds of a complex, its records, and what was decided about it."""

    chains: tuple[Member, ...]
    pairing: tuple[Member | None, ...]
    copies: tuple[int, ...]
    whole: Member | None
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


def _decided(place: AssemblyPlace, task: AssemblyTask, read: list[_Read]) -> AssemblySlab:
    count = len(place.chains)
    chains, others = read[:count], read[count:]
    whole = others.pop() if place.whole else None
    pairing = [others.pop(0) if rows is not None else None for rows in place.pairing]
    if whole is not None and whole[0].sizes[0] != place.num_res:
        raise whole[1].place.corrupt(
            f"{whole[0].sizes[0]} residues, its chains have {place.num_res}"
        )
    for chain, rows in zip(chains, pairing, strict=True):
        if rows is not None and rows[0].sizes[0] != chain[0].sizes[0]:
            raise rows[1].place.corrupt("rows to pair of another length than their chain")
    lengths = np.repeat([chain.sizes[0] for chain in place.chains], place.copies).tolist()
    return AssemblySlab(
        chains=tuple(member for member, _ in chains),
        pairing=tuple(one[0] if one else None for one in pairing),
        copies=place.copies,
        whole=whole[0] if whole else None,
        plan=_plan(chains, pairing, place.copies, task.rules),
        kept=_crop(lengths, task, whole or chains[0]),
        stop=max(member.slab.stop for member, _ in read),
    )


def _plan(
    chains: list[_Read],
    pairing: list[_Read | None],
    copies: tuple[int, ...],
    rules: AssemblyConfig,
) -> RowPlan:
    entities = []
    for (member, chain), rows, number in zip(chains, pairing, copies, strict=True):
        # Rows of a single sequence are counted, not looked at.
        alone = np.empty([member.sizes[1], 0], np.uint8) if len(chains) == 1 else None
        msa = chain.array("msa") if alone is None else alone
        pairs = (rows[1].array("msa"), rows[1].species()) if rows else (None,)
        entities.append(EntityRows.of(msa, number, *pairs))
    return plan_rows(entities, rules)


def _crop(lengths: list[int], task: AssemblyTask, atoms: _Read) -> np.ndarray:
    positions = mask = None
    known = any(part.name == "all_atom_mask" for part in atoms[0].slab.parts)
    several = len(lengths) > 1 and task.crop_size is not None and sum(lengths) > task.crop_size
    if known and several:
        positions, mask = (atoms[1].array(f"all_atom_{name}") for name in ("positions", "mask"))
    return crop_residues(
        positions, mask, lengths, task.crop_size, SampleDraws(task.key), task.rules
    )
