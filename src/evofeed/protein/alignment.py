"""One alignment for the all-atom views: letters, deletions, species and sources of all rows, and
templates of its query.

Views remove duplicates by different keys, so all rows of the files are here.
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
    """Residue aligned to each column, as `ChainRecord.template_aatype`: 21 where there is none."""
    position: Float[np.ndarray, "T L 4 3"]
    """N, CA, C and CB (CA of glycine); ångström, NaN for an atom that is not resolved."""

    def until(self, date: str, limit: int = 20) -> Templates:
        """The first `limit` templates released by a date, without those that have no residue."""
        rows = np.flatnonzero(np.array(self.date, np.str_) <= date)[:limit]
        rows = rows[(self.restype[rows] != NO_RESIDUE).any(1)]
        return Templates(
            name=tuple(self.name[row] for row in rows),
            date=tuple(self.date[row] for row in rows),
            restype=self.restype[rows],
            position=self.position[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateHits:
    """Hits on the L columns of a query, of which Protenix draws templates: T hits, best first."""

    name: tuple[str, ...]
    """`<pdb id>_<chain>`."""
    listed: tuple[str, ...]
    """Release date of the entry in Protenix's table of dates, ISO."""
    date: tuple[str, ...]
    """Release date in the entry's file."""
    sequence: Integer[np.ndarray, " T"]
    """Equal for hits of one sequence, of which the first counts; -1 for an excluded hit."""
    restype: UInt8[np.ndarray, "T L"]
    """Residue aligned to each column, as `Templates.restype`; a row of 21 is no template."""
    seen: Bool[np.ndarray, "T L 37"]
    """Mask of the 37 atoms that are resolved."""
    position: Float[np.ndarray, "A 3"]
    """The resolved atoms of all hits; ångström from the mean of the template's chain."""

    def until(self, date: str) -> TemplateHits:
        """Excludes hits listed after a date, and removes templates whose file is later."""
        listed_later, later = (np.array(d, np.str_) > date for d in (self.listed, self.date))
        return dataclasses.replace(
            self,
            sequence=np.where(listed_later, -1, self.sequence),
            restype=np.where(later[:, None], NO_RESIDUE, self.restype).astype(np.uint8),
        )

    def atoms(self, hit: int) -> Float[np.ndarray, "L 37 3"]:
        """Atoms of a hit on the query's columns; NaN where there is none."""
        start, stop = (int(self.seen[:row].sum()) for row in (hit, hit + 1))
        atoms = np.full((*self.seen.shape[1:], 3), np.nan, np.float32)
        atoms[self.seen[hit]] = self.position[start:stop]
        return atoms


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Alignments of one query, L columns. U distinct aligned rows, S rows in the files.

    Rows are equal if their aligned letters are equal; their deletions may differ, so each of the S
    rows has its own.
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
    """Column after the deleted letters."""
    deletion_count: Integer[np.ndarray, " D"]
    """Number of deleted letters, 1 or more."""
    templates: Templates | None = None
    """Templates of OpenFold3."""
    hits: TemplateHits | None = None
    """Template hits of Protenix."""

    def with_templates(
        self, templates: Templates | None, hits: TemplateHits | None = None
    ) -> Alignment:
        """The alignment with other templates."""
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
        """Rows of these sources, in the order of the arguments; absent sources are skipped."""
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
        """Number of each letter in these columns of these rows."""
        from evofeed.protein.letter_counts import count_letters  # not at the top: needs numba

        counts: np.ndarray = count_letters(
            self.letters, self.row_letters[rows].astype(np.int64), np.asarray(columns, np.int64)
        )
        return counts

    def deletion_sums(self, rows: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " L"]:
        """Deleted letters in every column over these rows, which must differ."""
        selected = np.zeros(len(self.row_letters), bool)
        selected[rows] = True
        mask = np.repeat(selected, np.diff(self.deletion_start))
        columns, counts = self.deletion_column[mask], self.deletion_count[mask]
        return np.bincount(columns, counts, minlength=self.num_columns).astype(np.int64)


def letter_codes(text: Shaped[np.ndarray, "*_"]) -> UInt8[np.ndarray, "*_"]:
    """Codes of upper-case ASCII letters and gaps, `u8`; a full stop is a gap."""
    codes = text.astype(np.uint8, copy=False)
    return np.where((codes >= ord("A")) & (codes <= ord("Z")), codes - ord("A"), GAP).astype(
        np.uint8
    )
