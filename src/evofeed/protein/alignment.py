"""One alignment as the all-atom views read it: letters, deletions, species, sources; no row lost;
and templates of its query.

Views remove duplicates by different keys, so rows stand here as their files had them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer, Shaped, UInt8
from evofeed.protein.residues import GAP as NO_RESIDUE

GAP: Final = 26
"""Code of the gap; A to Z are 0 to 25."""
NUM_LETTERS: Final = 27


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """Chains of other entries on the L columns of a query: T templates, the best first."""

    name: tuple[str, ...]
    """`<pdb id>_<chain>`."""
    date: tuple[str, ...]
    """When the entry was released, ISO."""
    restype: UInt8[np.ndarray, "T L"]
    """Residue that faces each column, as `ChainRecord.template_aatype`: 21 where there is none."""
    position: Float[np.ndarray, "T L 4 3"]
    """N, CA, C and CB, of glycine CA; ångström, NaN for an atom that nobody saw."""

    def until(self, date: str, most: int = 20) -> Templates:
        """Of the first so many released by then those that have a residue."""
        kept = np.flatnonzero(np.array(self.date, np.str_) <= date)[:most]
        kept = kept[(self.restype[kept] != NO_RESIDUE).any(1)]
        return Templates(
            name=tuple(self.name[row] for row in kept),
            date=tuple(self.date[row] for row in kept),
            restype=self.restype[kept],
            position=self.position[kept],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateHits:
    """Hits on the L columns of a query as Protenix draws templates of them: T hits, best first."""

    name: tuple[str, ...]
    """`<pdb id>_<chain>`."""
    listed: tuple[str, ...]
    """When the entry was released by Protenix's table of dates, ISO."""
    date: tuple[str, ...]
    """When it was by its own file."""
    sequence: Integer[np.ndarray, " T"]
    """Equal for hits of one sequence, of which the first counts; -1 for a hit that is out."""
    restype: UInt8[np.ndarray, "T L"]
    """Residue that faces each column, as `Templates.restype`; 21 all along: no template."""
    seen: Bool[np.ndarray, "T L 37"]
    """Which of the 37 atoms the template's residue has."""
    position: Float[np.ndarray, "A 3"]
    """Those atoms, one hit after the other; ångström from the mean of the template's chain."""

    def until(self, date: str) -> TemplateHits:
        """The same with later hits out, and no template where the file alone says later."""
        listed, late = (np.array(dates, np.str_) > date for dates in (self.listed, self.date))
        return dataclasses.replace(
            self,
            sequence=np.where(listed, -1, self.sequence),
            restype=np.where(late[:, None], NO_RESIDUE, self.restype).astype(np.uint8),
        )

    def atoms(self, hit: int) -> Float[np.ndarray, "L 37 3"]:
        """Atoms that face the query; NaN where there is none."""
        start, stop = (int(self.seen[:row].sum()) for row in (hit, hit + 1))
        atoms = np.full((*self.seen.shape[1:], 3), np.nan, np.float32)
        atoms[self.seen[hit]] = self.position[start:stop]
        return atoms


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Alignments of one query, L columns. U distinct aligned rows, S rows as the files had them.

    Two rows are equal if their aligned letters are; of equal rows the deletions may differ, so
    these belong to the S rows.
    """

    name: str
    """Name by which `EntryView.alignments` refers to it."""
    sources: tuple[str, ...]
    """Names of the files, in the order of their rows."""
    letters: UInt8[np.ndarray, "U L"]
    """Distinct rows: 0 to 25 for A to Z, 26 for a gap."""
    row_letters: Integer[np.ndarray, " S"]
    """Distinct row of every row."""
    row_source: Integer[np.ndarray, " S"]
    """Source of every row, ascending; the first row of a source is the query."""
    row_species: Integer[np.ndarray, " S"]
    """Number of the row's species in `species`; -1 without one."""
    row_gapless: Integer[np.ndarray, " S"]
    """Equal for rows whose letters are equal without gaps, deleted ones included."""
    species: tuple[str, ...]
    """Mnemonics or taxa of this alignment, sorted as text."""
    deletion_start: Integer[np.ndarray, " S+1"]
    """Offsets into the deletions of every row."""
    deletion_column: Integer[np.ndarray, " D"]
    """Column to whose left letters were deleted."""
    deletion_count: Integer[np.ndarray, " D"]
    """How many letters, 1 or more."""
    templates: Templates | None = None
    """OpenFold3's."""
    hits: TemplateHits | None = None
    """Protenix's."""

    def with_templates(
        self, templates: Templates | None, hits: TemplateHits | None = None
    ) -> Alignment:
        """The same rows with other templates."""
        return dataclasses.replace(self, templates=templates, hits=hits)

    @property
    def query(self) -> str:
        """Letters of the first row."""
        codes = self.letters[self.row_letters[0]].tolist()
        return "".join(chr(ord("A") + code) for code in codes)

    @property
    def num_columns(self) -> int:
        """Columns (L)."""
        return int(self.letters.shape[1])

    def rows_of(self, *sources: str) -> Integer[np.ndarray, " _"]:
        """Rows of these sources, in the order asked for; absent sources are passed over."""
        numbers = [self.sources.index(name) for name in sources if name in self.sources]
        runs = [np.flatnonzero(self.row_source == number) for number in numbers]
        return np.concatenate([np.zeros(0, np.int64), *runs])

    def first_of_equal(self, rows: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " u"]:
        """These rows without those equal to an earlier one, in order."""
        _, first = np.unique(self.row_letters[rows], return_index=True)
        return rows[np.sort(first)]

    def letter_counts(
        self, rows: Integer[np.ndarray, " n"], columns: Integer[np.ndarray, " m"]
    ) -> Integer[np.ndarray, "m 27"]:
        """How often each letter stands in these columns of these rows."""
        from evofeed.protein.letter_counts import count_letters  # numba: who serves needs none

        counts: np.ndarray = count_letters(
            self.letters, self.row_letters[rows].astype(np.int64), np.asarray(columns, np.int64)
        )
        return counts

    def deletion_sums(self, rows: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " L"]:
        """Deleted letters in every column over these rows, none of them twice."""
        taken = np.zeros(len(self.row_letters), bool)
        taken[rows] = True
        there = np.repeat(taken, np.diff(self.deletion_start))
        sums = np.bincount(
            self.deletion_column[there], self.deletion_count[there], minlength=self.num_columns
        )
        return sums.astype(np.int64)


def letter_codes(text: Shaped[np.ndarray, "*_"]) -> UInt8[np.ndarray, "*_"]:
    """Codes of upper-case ASCII letters and gaps, `u8`; a full stop is a gap."""
    codes = text.astype(np.uint8, copy=False)
    return np.where((codes >= ord("A")) & (codes <= ord("Z")), codes - ord("A"), GAP).astype(
        np.uint8
    )
