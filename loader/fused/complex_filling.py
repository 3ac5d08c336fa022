"""A complex's words: what is known about it on the host, and its random decisions as keys."""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evofeed.loader.assembly.catalog import AssemblyPlace
from evofeed.loader.assembly.reading import AssemblySlab
from evofeed.loader.assembly.reading import Member as Record
from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import Purpose, stream_key
from evofeed.loader.fused.complex_words import Complex, EntityWords, MemberWords
from evofeed.loader.fused.filling import sample_words
from evofeed.loader.fused.sample_words import INT32, Recycle, Sample
from evofeed.loader.transforms.crop import Crop

_WORD = (1 << 64) - 1
SHUFFLED, UNPACKED, PLACED = 32, 16, 64
"""Rows and residues of one program of `unpack_members`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a sample besides its bytes."""

    key: int
    number: int
    """Of the sample in its batch."""
    batch: int
    recycles: int
    templates: tuple[int, ...]
    resolution: float
    is_distillation: bool


@dataclass(frozen=True, slots=True)
class ComplexPlan:
    """A complex's words, and the sizes that its launches and scratch memory follow from."""

    words: np.ndarray
    sample_at: int
    """Word of the whole's `Sample`; the members' come before it, `stride` each."""
    whole_at: int
    stride: int
    members: int
    whole: Complex
    sample: Sample
    recycle: Recycle
    blocks: int
    """Most programs that a member needs."""
    stored: int
    deletion_rows: int
    atoms: int
    most_deletions: int
    exceptions: int
    structures: int


@dataclass(slots=True)
class _Members:
    """The members' words, and how much scratch memory they take together."""

    config: LoaderConfig
    facts: Facts
    start: int
    words: list[tuple[MemberWords, Sample, tuple[int, ...]]]
    stored: int = 0
    deletion_rows: int = 0
    atoms: int = 0

    def add(
        self, record: Record, *, own_first: int = 0, templates: tuple[int, ...] = ()
    ) -> tuple[MemberWords, Sample]:
        length, rows, deletions, _ = record.sizes
        facts = self.facts
        sample = sample_words(
            record.slab._replace(start=self.start),
            record.sizes,
            Crop(0, length, templates),
            self.config,
            key=facts.key,
            number=0,
            batch=1,
            recycles=1,
            max_rows=0,
            resolution=facts.resolution,
            is_distillation=facts.is_distillation,
        )._replace(out_residues=length)
        structures = _structures(sample)
        blocks = -(-rows // PLACED) + structures * -(-(length + 1) // UNPACKED)
        member = MemberWords(blocks, self.stored, self.deletion_rows, self.atoms, own_first)
        self.stored += rows
        self.deletion_rows += deletions
        self.atoms += structures * (length + 1) * 37
        self.words.append((member, sample, templates))
        return member, sample


def _structures(sample: Sample) -> int:
    """Structures of a member that are unpacked: its own and templates, or none."""
    return 1 + sample.chosen if sample.truth_residues or sample.chosen else 0


def plan_complex(slab: AssemblySlab, config: LoaderConfig, facts: Facts) -> ComplexPlan:
    """What to launch for a complex in a slot, and the words to put behind its bytes."""
    rules = config.assemblies
    assert rules is not None
    members = _Members(config, facts, slab.start, [])
    entities = _entities(slab, members, rules.max_templates)
    if slab.whole is not None:
        members.add(slab.whole)
    else:  # the only chain's record has the structure
        assert len(slab.chains) == 1
    truth, sample, _ = members.words[-1 if slab.whole is not None else 0]
    atoms = members.atoms
    if config.supervised and not _structures(sample):  # none is known: all zeros
        members.words[-1] = _with_structure(members.words[-1])
        truth = members.words[-1][0]
        atoms += (sample.residues + 1) * 37
    rows = slab.paired + sum(slab.unpaired)
    recycles = [_recycle(config, facts.key, r, rows, rules.min_rows) for r in range(facts.recycles)]
    whole = _complex(slab, config, facts, members, rows)._replace(truth_at=truth.xyz_at)
    kept = recycles[0].rows
    sample = sample._replace(
        out_residues=slab.num_res, window=slab.num_res, pitch=whole.pitch, max_rows=kept,
        recycles=facts.recycles, profile_at=0, profile_kind=INT32,
        recycle_words=len(Recycle._fields),
    )  # fmt: skip
    return _packed(members, sample, whole, recycles, entities, atoms)


def _with_structure(
    words: tuple[MemberWords, Sample, tuple[int, ...]],
) -> tuple[MemberWords, Sample, tuple[int, ...]]:
    member, sample, templates = words
    blocks = member.blocks + -(-(sample.residues + 1) // UNPACKED)
    return member._replace(blocks=blocks), sample, templates


def _entities(
    slab: AssemblySlab, members: _Members, slots: int
) -> list[tuple[EntityWords, tuple[int, ...]]]:
    """Words of each entity and its structures of the sample's templates, 0 where it has none."""
    found = []
    own, first_row = 0, slab.paired
    unpaired_at = 4 * slab.num_res + slab.kept + slab.paired * len(slab.chains)
    for chain, pairing, count in zip(slab.chains, slab.pairing, slab.unpaired, strict=True):
        there = [n for n in members.facts.templates if n < min(chain.sizes[3], slots)]
        member, words = members.add(chain, own_first=own, templates=tuple(there))
        pair, pair_words = members.add(pairing, own_first=own) if pairing else (member, words)
        entity = EntityWords(
            length=chain.sizes[0],
            own_first=own,
            first_row=first_row,
            unpaired=count,
            unpaired_at=unpaired_at,
            chain_stored=member.stored_at,
            chain_msa_at=words.msa_at,
            chain_pitch=words.msa_pitch,
            pair_stored=pair.stored_at,
            pair_msa_at=pair_words.msa_at,
            pair_pitch=pair_words.msa_pitch,
            template_aatype_at=words.template_aatype_at,
            template_aatype_pitch=words.template_aatype_pitch,
            xyz_at=member.xyz_at,
        )
        numbers = {number: 1 + at for at, number in enumerate(there)}
        found.append((entity, tuple(numbers.get(n, 0) for n in members.facts.templates)))
        own, first_row, unpaired_at = own + chain.sizes[0], first_row + count, unpaired_at + count
    return found


def _recycle(config: LoaderConfig, key: int, recycle: int, rows: int, min_rows: int) -> Recycle:
    centres = min(rows, config.max_msa_clusters)
    room = min(config.max_extra_msa, max(rows, min_rows) - config.max_msa_clusters)
    extra = max(min(rows - config.max_msa_clusters, room), 0)

    def of(purpose: Purpose) -> int:
        return stream_key(key, recycle, purpose)

    return Recycle(
        distillation_key=0,
        distillation_count=0,
        row_key=of(Purpose.ROW_ORDER),
        row_count=rows - 1,
        extra_key=0,
        extra_count=extra,
        mask_key=of(Purpose.MASK),
        replacement_key=of(Purpose.REPLACEMENT),
        rows=centres + extra,
        centres=centres,
        kept_extra=extra,
    )


def _complex(
    slab: AssemblySlab, config: LoaderConfig, facts: Facts, members: _Members, rows: int
) -> Complex:
    rules, num_res = config.assemblies, slab.num_res
    assert rules is not None
    return Complex(
        num_res=num_res,
        kept=slab.kept,
        kept_at=4 * num_res,
        paired=slab.paired,
        paired_at=4 * num_res + slab.kept,
        entities=len(slab.chains),
        entity_words=len(EntityWords._fields) + config.max_templates,
        rows=rows,
        own_width=sum(chain.sizes[0] for chain in slab.chains),
        pitch=num_res + -num_res % 16,
        count_pitch=max(rows, 1),
        out_residues=config.crop_size or num_res,
        out_centres=config.max_msa_clusters,
        out_extra=config.max_extra_msa,
        out_templates=config.max_templates,
        sample=facts.number,
        batch=facts.batch,
        padded_centres=min(config.max_msa_clusters, max(rows, rules.min_rows)),
        asks_gaps=int(rules.mask_block_gaps),
        truth_at=0,
        num_chains=sum(slab.copies),
        chosen=len(facts.templates),
    )


def _packed(
    members: _Members,
    sample: Sample,
    whole: Complex,
    recycles: Sequence[Recycle],
    entities: Sequence[tuple[EntityWords, tuple[int, ...]]],
    atoms: int,
) -> ComplexPlan:
    slots = members.config.max_templates
    stride = _even(len(MemberWords._fields) + len(Sample._fields) + slots)
    count = len(members.words) + 1
    sample_at = count * stride
    head = _even(len(Sample._fields) + slots)
    shuffling = 3 * len(recycles) * -(-whole.count_pitch // SHUFFLED)
    last = sample._replace(
        rows=0,
        deletions=0,
        max_rows=whole.count_pitch,
        recycles_at=sample_at + head - (count - 1) * stride - len(MemberWords._fields),
        template_exceptions=0,
        truth_exceptions=0,
    )
    records = [*members.words, (MemberWords(shuffling, 0, 0, 0, 0), last, ())]
    words: list[int] = []
    for member, own, templates in records:
        words += _filled([*member, *own, *templates], stride)
    words += _filled([*sample._replace(recycles_at=head), *members.facts.templates], head)
    for recycle in recycles:
        words += recycle
    words += [0] * (len(words) % 2)
    whole_at = len(words)
    words += whole
    for entity, numbers in entities:
        words += _filled([*entity, *numbers], whole.entity_words)
    samples = [own for _, own, _ in members.words]
    return ComplexPlan(
        words=np.frombuffer(array.array("Q", words), np.int64),
        sample_at=sample_at,
        whole_at=whole_at,
        stride=stride,
        members=count,
        whole=whole,
        sample=sample,
        recycle=recycles[0],
        blocks=max(member.blocks for member, _, _ in records),
        stored=members.stored,
        deletion_rows=members.deletion_rows,
        atoms=atoms,
        most_deletions=max(own.deletions for own in samples),
        exceptions=max(max(s.truth_exceptions, s.template_exceptions) for s in samples),
        structures=max(_structures(own) for own in samples),
    )


def _even(count: int) -> int:
    """Blocks begin at 16 bytes, which Triton compiles for."""
    return count + count % 2


def _filled(words: list[int], length: int) -> list[int]:
    return words + [0] * (length - len(words))


def complex_words_nbytes(place: AssemblyPlace, config: LoaderConfig) -> int:
    """Bytes that a complex's words need at most, in whole cache lines."""
    slots, count = config.max_templates, len(place.chains)
    stride = _even(len(MemberWords._fields) + len(Sample._fields) + slots)
    words = (2 * count + 3) * stride + (config.max_recycling_iters + 1) * len(Recycle._fields)
    words += len(Complex._fields) + count * (len(EntityWords._fields) + slots) + 2
    return 8 * words + -8 * words % 64 + 64
