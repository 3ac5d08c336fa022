"""A complex's bytes from its shards into one slot, and what is decided about it on the host.

Its chains, rows to pair and coordinates are read as chains are, one behind the other. Which rows
and residues a sample keeps is decided here, in whole numbers, and put behind them: the device
gets everything in one copy. Runs in reader threads and processes and imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from evofeed.loader.assembly.catalog import AssemblyPlace
from evofeed.loader.assembly.crop import crop_residues
from evofeed.loader.assembly.pairing import EntityRows, RowPlan, plan_rows, species_keys
from evofeed.loader.assembly_config import AssemblyConfig
from evofeed.loader.catalog import ChainPlace
from evofeed.loader.counter_rng import Purpose, below, few_in_order, stream_key
from evofeed.loader.read_chain import ReadRequest, Slab, read_chain, slot_nbytes
from evofeed.store.inner import (
    COLUMN_NUMBER,
    ChainDecoder,
    Codec,
    PackedColumn,
    Place,
    Storage,
    unpack_column,
)

_ALIGN: Final = 64


class AssemblyTask(NamedTuple):
    """What a reader must know to decide which rows and residues a sample keeps."""

    key: int
    crop_size: int | None
    rules: AssemblyConfig


class Member(NamedTuple):
    """One chain record of a complex in a slot."""

    slab: Slab
    sizes: tuple[int, int, int, int]


class AssemblySlab(NamedTuple):
    """What a slot holds of a complex: its records, then the decisions at byte `at`, all i32.

    `ids` of every residue (chain, entity, copy, column among distinct sequences), the residues
    kept, the paired rows of each entity and its unpaired ones.
    """

    chains: tuple[Member, ...]
    pairing: tuple[Member | None, ...]
    copies: tuple[int, ...]
    whole: Member | None
    at: int
    num_res: int
    kept: int
    paired: int
    unpaired: tuple[int, ...]
    stop: int
    start: int = 0
    seconds: float = 0.0


class CounterCrop:
    """`CropDraws` by position: a pure function of the sample's key."""

    def __init__(self, key: int) -> None:
        self._key, self._drawn = key, 0

    def spatial(self, probability: float) -> bool:
        """Whether to crop around an interface residue."""
        draw = below(stream_key(self._key, Purpose.SPATIAL_CROP), 1 << 31)
        return draw < probability * 2**31

    def interface(self, count: int) -> int:
        """Which of the interface residues."""
        return below(stream_key(self._key, Purpose.INTERFACE), count)

    def chain_order(self, count: int) -> Sequence[int]:
        """A permutation of the chains."""
        return few_in_order(stream_key(self._key, Purpose.CHAIN_ORDER), count)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        self._drawn += 1
        key = stream_key(self._key, Purpose.CHAIN_CROP)
        return low + below(key, high - low + 1, self._drawn)


def assembly_nbytes(place: AssemblyPlace, templates: bool, rules: AssemblyConfig) -> int:
    """Bytes a slot for the complex must have."""
    total = 0
    for member, with_templates, species in _members(place, templates):
        total += slot_nbytes(member, with_templates, species) + _ALIGN
    rows = rules.paired_rows * len(place.chains) + rules.msa_rows * len(place.chains)
    return total + 4 * (5 * place.num_res + rows) + _ALIGN


def _members(place: AssemblyPlace, templates: bool) -> list[tuple[ChainPlace, bool, bool]]:
    """The records to read, whether with templates, and whether with species."""
    found = [(chain, templates, False) for chain in place.chains]
    found += [(rows, False, True) for rows in place.pairing if rows is not None]
    return found + ([(place.whole, False, False)] if place.whole else [])


def read_assembly(storage: Storage, request: ReadRequest, slot: memoryview) -> AssemblySlab:
    """Fill a slot with what a sample needs of a complex and say where things are.

    Raises:
        StoreError: as `read_chain`; names the chain at fault.
        ShardCorrupt: the parts do not fit each other.
    """
    place, task = request.place, request.task
    assert isinstance(place, AssemblyPlace)
    assert isinstance(task, AssemblyTask)
    at, read = 0, []
    for member, templates, species in _members(place, request.templates):
        structure = request.structure and member is (place.whole or place.chains[0])
        one = request._replace(
            place=member, templates=templates, structure=structure, species=species, task=None
        )
        nbytes = slot_nbytes(member, templates, species)
        part = slot[at : at + nbytes]
        slab = read_chain(storage, one, part)
        decoder = _decoder(slab, part, one, f"{storage.uri}/{member.key}")
        read.append((Member(_shifted(slab, at), member.sizes), decoder))
        at += nbytes + -nbytes % _ALIGN
    return _decided(place, task, read, at, slot)


def _shifted(slab: Slab, by: int) -> Slab:
    parts = tuple(part._replace(offset=part.offset + by) for part in slab.parts)
    return Slab(parts, slab.start + by, slab.stop + by)


def _decoder(slab: Slab, part: memoryview, request: ReadRequest, path: str) -> ChainDecoder:
    """Of a record that was read and checked."""
    place = request.place
    columns = {
        one.name: PackedColumn(
            Codec(one.codec), part[one.offset : one.offset + one.nbytes], raw_nbytes=one.nbytes
        )
        for one in slab.parts
    }
    if request.species:
        number = COLUMN_NUMBER["msa_species"]
        start, stop = (place.starts[n] - place.starts[0] for n in (number, number + 1))
        columns["msa_species"] = unpack_column(
            part[start:stop], place.chain_id, "msa_species", path
        )
    dims = dict(zip("LNKT", place.sizes, strict=True))
    dims["has_structure"] = int("all_atom_mask" in columns)
    return ChainDecoder(columns, Place(place.chain_id, path), dims)


def _decided(
    place: AssemblyPlace,
    task: AssemblyTask,
    read: list[tuple[Member, ChainDecoder]],
    at: int,
    slot: memoryview,
) -> AssemblySlab:
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
    plan = _plan(place, chains, pairing, task.rules)
    atoms = (whole or chains[0])[1]
    kept = _crop(place, task, atoms)
    ids = _ids(place)
    decisions = np.concatenate(
        [ids.ravel(), kept, plan.paired.ravel(), *plan.unpaired], dtype=np.int32, casting="unsafe"
    )
    slot[at : at + decisions.nbytes] = decisions.view(np.uint8).data
    return AssemblySlab(
        chains=tuple(member for member, _ in chains),
        pairing=tuple(one[0] if one else None for one in pairing),
        copies=place.copies,
        whole=whole[0] if whole else None,
        at=at,
        num_res=place.num_res,
        kept=len(kept),
        paired=len(plan.paired),
        unpaired=tuple(len(rows) for rows in plan.unpaired),
        stop=at + decisions.nbytes,
    )


def _plan(
    place: AssemblyPlace,
    chains: list[tuple[Member, ChainDecoder]],
    pairing: list[tuple[Member, ChainDecoder] | None],
    rules: AssemblyConfig,
) -> RowPlan:
    if len(chains) == 1:
        first = np.arange(min(place.chains[0].sizes[1], rules.msa_rows))
        return RowPlan(np.zeros([0, 1], np.int64), (first,))
    entities = []
    for (_, chain), rows, copies in zip(chains, pairing, place.copies, strict=True):
        msa = chain.array("msa")
        if rows is None:
            entities.append(EntityRows(msa, msa[:1], np.zeros(1, np.int64), copies))
            continue
        keys = species_keys(rows[1].species())
        entities.append(EntityRows(msa, rows[1].array("msa"), keys, copies))
    return plan_rows(entities, rules)


def _crop(place: AssemblyPlace, task: AssemblyTask, atoms: ChainDecoder) -> np.ndarray:
    lengths = [
        chain.sizes[0]
        for chain, number in zip(place.chains, place.copies, strict=True)
        for _ in range(number)
    ]
    positions = mask = None
    known = atoms.dims["has_structure"] and len(lengths) > 1
    if task.crop_size is not None and sum(lengths) > task.crop_size and known:
        positions, mask = atoms.array("all_atom_positions"), atoms.array("all_atom_mask")
    return crop_residues(
        positions, mask, lengths, task.crop_size, CounterCrop(task.key), task.rules
    )


def _ids(place: AssemblyPlace) -> np.ndarray:
    """Chain, entity and copy of every residue from 1, and its column among those of distinct
    sequences, `i64[4, L]`."""
    rows: list[tuple[int, int, int]] = []
    lengths: list[int] = []
    own: list[np.ndarray] = []
    first = 0
    for entity, (chain, number) in enumerate(zip(place.chains, place.copies, strict=True), 1):
        for copy in range(1, number + 1):
            rows.append((len(rows) + 1, entity, copy))
            lengths.append(chain.sizes[0])
            own.append(np.arange(first, first + chain.sizes[0]))
        first += chain.sizes[0]
    ids = np.repeat(np.array(rows, np.int64), lengths, axis=0).T
    return np.concatenate([ids, np.concatenate(own)[None]])
