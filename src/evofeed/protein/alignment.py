"""One alignment as the all-atom views read it: letters, deletions, species, sources; no row lost;
and templates of its query.

Views remove duplicates by different keys, so rows stand here as their files had them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.shapes import Float, Integer, Shaped, UInt8

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

    def until(self, date: str) -> Templates:
        """Those released by then."""
        kept = np.flatnonzero(np.array(self.date, np.str_) <= date)
        return Templates(
            name=tuple(self.name[row] for row in kept),
            date=tuple(self.date[row] for row in kept),
            restype=self.restype[kept],
            position=self.position[kept],
        )


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

    def with_templates(self, templates: Templates | None) -> Alignment:
        """The same rows with other templates."""
        return dataclasses.replace(self, templates=templates)

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

    def dense_deletions(self, rows: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, "n L"]:
        """Deletions of these rows, `i32`."""
        out = np.zeros((len(rows), self.num_columns), np.int32)
        starts, counts = self.deletion_start[rows], np.diff(self.deletion_start)[rows]
        where = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        which = np.repeat(np.arange(len(rows)), counts)
        out[which, self.deletion_column[where]] = self.deletion_count[where]
        return out

    def letter_counts(
        self, rows: Integer[np.ndarray, " n"], columns: Integer[np.ndarray, " m"]
    ) -> Integer[np.ndarray, "m 27"]:
        """How often each letter stands in these columns of these rows."""
        from evofeed.protein.letter_counts import count_letters  # numba: who serves needs none

        counts: np.ndarray = count_letters(
            self.letters,
            self.row_letters[rows].astype(np.int64),
            np.asarray(columns, np.int64),
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
