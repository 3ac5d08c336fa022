"""Tables of a dataset on its page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How a table is shown, from `listings.json`."""

    nouns: list[str]  # what one row is, and several
    columns: list[str]  # that are shown, the id first
    sorts: list[str]  # columns it may be in the order of
    fields: list[tuple[str, str, list[str]]]  # title, kind, parameters of an input
    charts: list[tuple[str, str, str, str, str]]  # column, title, unit, what a bar sets
    facets: list[tuple[str, str]]  # column, which is the parameter too, and title


LISTINGS: Final = {
    name: Listing(**listing)
    for name, listing in json.loads(Path(__file__).with_name("listings.json").read_bytes()).items()
}
