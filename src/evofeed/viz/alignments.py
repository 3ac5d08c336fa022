"""Alignments on HTML pages: letters, colours, zoom and coverage, drawn by `alignment.js`."""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from evofeed.protein.chain_numbers import msa_coverage
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import MSA_LETTERS
from evofeed.viz.document import Panel, panel_html

MOST_CELLS: Final = 4 << 20
"""Of an alignment that a page holds itself, 1 byte each; of a larger one it has the first rows."""


def alignment_bytes(record: ChainRecord) -> bytes:
    """A letter a cell, row after row, `-` where a row has a gap; insertions are not shown."""
    letters: bytes = MSA_LETTERS[record.msa].tobytes()
    return letters


def alignment_html(record: ChainRecord, title: str = "alignment", url: str = "") -> Panel:
    """A panel with the rows of an alignment, the query on top, residues counted from 1.

    Args:
        record: the chain.
        title: of the panel.
        url: address of `alignment_bytes`, read in ranges as they come into view; without it the
            page holds the rows.
    """
    covered, _ = msa_coverage(record)
    rows = record.num_alignments
    data = {"columns": record.num_res, "covered": covered}
    if url:
        return panel_html("alignment", data | {"rows": rows, "url": url}, title, f"{rows:,} rows")
    held = max(1, min(rows, MOST_CELLS // record.num_res))
    note = f"{rows:,} rows" if held == rows else f"the first {held:,} of {rows:,} rows"
    letters = b64encode(MSA_LETTERS[record.msa[:held]].tobytes()).decode()
    return panel_html("alignment", data | {"rows": held, "letters": letters}, title, note)
