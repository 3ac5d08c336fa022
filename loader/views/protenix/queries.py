"""Alignments of polymers that have none: Protenix shows their own sequence, DNA's always."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from evofeed.loader.views.protenix.tables import canonical_sequences
from evofeed.protein.alignment import Alignment, letter_codes
from evofeed.protein.components import ComponentTable
from evofeed.protein.entry_record import EntryRecord
from evofeed.protein.ruleset_section import RulesetSection


def query_alignments(
    record: EntryRecord,
    section: RulesetSection,
    components: ComponentTable,
    aligned: Collection[int],
) -> dict[int, Alignment]:
    """The sequence alone of every polymer that is not among the aligned ones, by entity.

    Args:
        record: the entry.
        section: what Protenix makes of it.
        components: the definitions, for the letters.
        aligned: entities that have an alignment, by the section's number.
    """
    sequences = canonical_sequences(record, section, components)
    return {
        entity: _alone(f"sequence of entity {entity}", sequence)
        for entity, sequence in sequences.items()
        if entity not in aligned
    }


def _alone(name: str, sequence: str) -> Alignment:
    one = np.zeros(1, np.int32)
    none = np.zeros(0, np.int32)
    return Alignment(
        name=name,
        sources=("query",),
        letters=letter_codes(np.frombuffer(sequence.encode(), np.uint8))[None],
        row_letters=one,
        row_source=one,
        row_species=one - 1,
        row_gapless=one.astype(np.int64),
        species=(),
        deletion_start=np.zeros(2, np.int64),
        deletion_column=none,
        deletion_count=none,
    )
