"""Template hits: hhsearch's `.hhr` and hmmsearch's Stockholm -> `TemplateHit`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from evofeed.base.errors import MsaError, TemplateError
from evofeed.featurize.config import InputCaps
from evofeed.featurize.formats.a3m import a3m_rows
from evofeed.featurize.formats.stockholm import stockholm_rows

_SUMMARY: Final = re.compile(r"(\w[\w-]*)=\s*([^\s%]+)%?")
_REQUIRED: Final = ("Aligned_cols", "Sum_probs")
"""Fields of a hit's summary line."""
_ROW: Final = re.compile(r"\s*(\d+) ([A-Za-z-]+)\s+(\d+) \(\d+\)")
_NAME_WIDTH: Final = 17
"""Columns before the residues of a hhr block: `Q `, a name of 14 and a space."""
_NOT_RESIDUES: Final = ("ss_dssp", "ss_pred", "ss_conf", "sa_dssp", "Consensus")
_NO_COLUMNS: Final = dict.fromkeys(map(ord, "-abcdefghijklmnopqrstuvwxyz"))
_SUBSEQUENCE: Final = re.compile(
    r">?([a-z0-9]+)_(\w+)/([0-9]+)-([0-9]+).*protein length:([0-9]+) *(.*)$"
)


@dataclass(frozen=True, slots=True)
class TemplateHit:
    """One alignment of the query to a chain of known structure.

    Attributes:
        index: rank in the file, from 1.
        name: `<pdb id>_<author's chain id>` and whatever follows.
        sum_probs: hhsearch's sum of posterior probabilities; None from hmmsearch.
        query: aligned query letters (hhr) or the whole query (hmmsearch).
        hit_sequence: aligned letters of the hit, '-' for gaps.
        query_pieces, hit_pieces: the aligned rows, each with the position of its
            first residue; a lower-case residue is an insertion, in no column.
    """

    index: int
    name: str
    aligned_cols: int
    sum_probs: float | None
    query: str
    hit_sequence: str
    query_pieces: tuple[tuple[str, int], ...]
    hit_pieces: tuple[tuple[str, int], ...]

    @property
    def indices_query(self) -> list[int]:
        """Position in the query of each column, -1 at gaps."""
        return [i for letters, start in self.query_pieces for i in _indices(letters, start)]

    @property
    def indices_hit(self) -> list[int]:
        """Position in the hit's sequence of each column, -1 at gaps."""
        return [i for letters, start in self.hit_pieces for i in _indices(letters, start)]


def parse_hhr(
    data: bytes, *, path: str = "", old_hhr: bool = True, caps: InputCaps | None = None
) -> list[TemplateHit]:
    """The hits of an hhr file, in its order; a file may have none. `old_hhr` accepts files
    without `Template_Neff` (hh-suite before 3) too.

    Raises:
        TemplateError: a hit without summary, or a block whose columns do not add up.
    """
    caps = caps or InputCaps()
    lines = data.decode("utf-8", "replace").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("No ")]
    if message := caps.excess("max_hits", len(starts), f"{len(starts)} hits"):
        raise TemplateError(message, path=path)
    ends = [*starts, len(lines)][1:]
    hits = []
    for start, end in zip(starts, ends, strict=True):
        try:
            hits.append(_hhr_hit(lines[start:end], old_hhr))
        except TemplateError as error:
            error.path, error.line = path or None, start + (error.line or 0) + 1
            raise
    return hits


def _hhr_hit(lines: list[str], old_hhr: bool) -> TemplateHit:
    index, name, summary = _hhr_head(lines, old_hhr)
    query: list[tuple[str, int]] = []
    hit: list[tuple[str, int]] = []
    length = -1
    for offset, line in enumerate(lines[3:], 3):
        kind = line[:2]
        if kind not in ("Q ", "T ") or line[2:].startswith(_NOT_RESIDUES):
            continue
        row = _ROW.match(line[_NAME_WIDTH:])
        if row is None:
            raise TemplateError(f"no aligned residues in {line[:60]!r}", line=offset)
        start, letters, end = int(row[1]) - 1, row[2], int(row[3])
        if kind == "Q ":
            length = len(letters)
            if end - start + letters.count("-") != length:
                raise TemplateError(f"{length} columns do not span {start + 1}-{end}", line=offset)
            query.append((letters, start))
        else:
            if length != len(letters):
                message = f"{len(letters)} columns of the hit, {length} of the query"
                raise TemplateError(message, line=offset)
            hit.append((letters, start))
    if len(query) != len(hit):
        raise TemplateError(f"{len(query)} blocks of the query, {len(hit)} of the hit", line=0)
    return TemplateHit(
        index=index,
        name=name,
        aligned_cols=int(summary["Aligned_cols"]),
        sum_probs=summary["Sum_probs"],
        query="".join(letters for letters, _ in query),
        hit_sequence="".join(letters for letters, _ in hit),
        query_pieces=tuple(query),
        hit_pieces=tuple(hit),
    )


def _hhr_head(lines: list[str], old_hhr: bool) -> tuple[int, str, dict[str, float]]:
    if len(lines) < 3 or not lines[1].startswith(">"):
        raise TemplateError("a hit needs its number, its name and a summary line", line=0)
    start = repr(lines[2][:80])
    fields = dict(_SUMMARY.findall(lines[2]))
    required = _REQUIRED if old_hhr else (*_REQUIRED, "Template_Neff")
    if missing := [name for name in required if name not in fields]:
        raise TemplateError(f"the summary line lacks {', '.join(missing)}: {start}", line=2)
    try:
        summary = {name: float(fields[name]) for name in required}
        index = int(lines[0].split()[-1])
    except ValueError as error:
        raise TemplateError(f"not a number in the summary: {error}", line=2) from None
    if not all(0 <= value < 1e9 for value in summary.values()):
        raise TemplateError(f"a negative or too large number in the summary: {start}", line=2)
    return index, lines[1][1:], summary


def _indices(letters: str, start: int) -> list[int]:
    """Position of each column, -1 at gaps; lower case is counted, but has no column."""
    indices = []
    position = start
    for letter in letters:
        if letter == "-":
            indices.append(-1)
            continue
        if not letter.islower():
            indices.append(position)
        position += 1
    return indices


def parse_hmmsearch(
    data: bytes, query_sequence: str, *, path: str = "", caps: InputCaps | None = None
) -> list[TemplateHit]:
    """The hits of hmmsearch's Stockholm output against PDB sequences, or of the a3m made of it.

    Sequences are named `<pdb id>_<chain>/<start>-<end>` and described in `#=GS … DE`
    lines with `mol:protein length:<n>`; those without `mol:protein` are skipped.

    Raises:
        TemplateError: a line that is not `name residues`, or a protein whose name
            does not say where its piece is.
    """
    caps = caps or InputCaps()
    is_a3m = data.lstrip()[:1] == b">"
    try:
        rows = (
            a3m_rows(data)
            if is_a3m
            else [(f"{name} {text}", letters) for name, text, letters in stockholm_rows(data)[0]]
        )
    except MsaError as error:
        raise TemplateError(error.message, path=path, line=error.line) from None
    if message := caps.excess("max_hits", len(rows), f"{len(rows)} hits"):
        raise TemplateError(message, path=path)
    hits = []
    for index, (description, row) in enumerate(rows, 1):
        if "mol:protein" not in description:
            continue
        match = _SUBSEQUENCE.match(description.strip())
        if match is None:
            message = f"not '<pdb id>_<chain>/<start>-<end>': {description[:80]!r}"
            raise TemplateError(message, path=path)
        letters = row.replace(".", "")
        hits.append(
            TemplateHit(
                index=index,
                name=f"{match[1]}_{match[2]}",
                aligned_cols=len(letters.translate(_NO_COLUMNS)),
                sum_probs=None,
                query=query_sequence,
                hit_sequence=letters.upper(),
                query_pieces=((query_sequence, 0),),
                hit_pieces=((letters, int(match[3]) - 1),),
            )
        )
    return hits
