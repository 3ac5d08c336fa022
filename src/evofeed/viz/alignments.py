"""Alignments on HTML pages: letters, colours, zoom and coverage, drawn by `alignment.js`."""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import GAP, MSA_LETTERS
from evofeed.viz.document import Panel, panel_html

MOST_CELLS: Final = 4 << 20
"""Of an alignment that a page holds itself, 1 byte each; of a larger one it has the first rows."""


def alignment_html(record: ChainRecord, title: str = "alignment", url: str = "") -> Panel:
    """A panel with the rows of an alignment, the query on top, residues counted from 1.

    Args:
        record: the chain.
        title: of the panel.
        url: address of the rows, a letter a cell and `-` in gaps, which is read in ranges as they
            come into view; without it the page holds the rows.
    """
    covered = (record.msa != GAP).sum(0)
    rows = record.num_alignments
    data = {"columns": record.num_res, "covered": covered}
    if url:
        return panel_html("alignment", data | {"rows": rows, "url": url}, title, f"{rows:,} rows")
    held = max(1, min(rows, MOST_CELLS // record.num_res))
    note = f"{rows:,} rows" if held == rows else f"the first {held:,} of {rows:,} rows"
    letters = b64encode(MSA_LETTERS[record.msa[:held]].tobytes()).decode()
    return panel_html("alignment", data | {"rows": held, "letters": letters}, title, note)
