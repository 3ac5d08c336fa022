"""Hits of a query as Protenix draws templates of them, each chain aligned to the query anew.

Beside the folder of mmCIF files, or in `common/` there, are its `release_date_cache.json` and
`obsolete_to_successor.json`. Source: Protenix 2.0, `data/template/template_utils.py`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.base.errors import InputError, TemplateError
from evofeed.base.files import parse_json
from evofeed.featurize.config import FeaturizeConfig
from evofeed.featurize.formats.hits import TemplateHit
from evofeed.featurize.formats.reading import file_ref, read_bytes
from evofeed.featurize.job.units import stamp_of
from evofeed.featurize.records.template_library import FolderUse, TemplateLibrary
from evofeed.featurize.records.templates import (
    HIT_NAME,
    Template,
    TemplateQuery,
    build_template,
    prefilter,
)
from evofeed.protein.alignment import TemplateHits
from evofeed.protein.residues import ATOM37_NUM, GAP

_ALWAYS: Final = "9999-12-31"
_RULES: Final = FeaturizeConfig(
    max_template_date=_ALWAYS,
    released_before_days=None,
    exclude_same_pdb=False,
    whole_chain=True,
    lone_chain=False,
    collapse_heterogeneity=False,
)
_DRAWN: Final = (20, 4)
"""Up to 4 templates are drawn, of the first 20 hits in any order, then of the others in theirs."""


class _Hit(NamedTuple):
    listed: str
    sequence: str
    template: Template | None


def protenix_hits(
    hits: Sequence[TemplateHit], query: str, folder: str, use: FolderUse, run: str = ""
) -> tuple[TemplateHits, list[str]]:
    """The hits that an entry of some date draws of, and what was passed over, in words.

    A hit that nobody draws is left out: its sequence is an earlier hit's, or of those before it
    that are listed no later there are 20, 4 different templates among them.

    Raises:
        InputError: a table of entries is none.
    """
    library, dates, tables = _library(folder, run)
    library.use = use
    use.files |= tables
    about, over = TemplateQuery(query), Counter[str]()
    kept: list[_Hit] = []
    first, most = _DRAWN
    for hit in sorted(hits, key=lambda hit: hit.sum_probs or 0.0, reverse=True):
        try:
            if reason := prefilter(hit, about, library, _ALWAYS, _RULES):
                raise TemplateError(reason)
            listed = _listed(hit, library, dates)
        except TemplateError as error:
            over[error.message] += 1
            continue
        sequence = hit.hit_sequence.replace("-", "")
        before = [one for one in kept if one.listed <= listed]
        sequences = {one.sequence for one in before}
        different = {one.template.sequence for one in before if one.template}
        if sequence in sequences or (len(sequences) >= first and len(different) >= most):
            continue
        try:
            template = build_template(hit, about, library, _ALWAYS, _RULES)
        except TemplateError as error:  # it is drawn of all the same
            over[error.message] += 1
            template = None
        kept.append(_Hit(listed, sequence, template))
    words = "protenix: {} template hits passed over: {}"
    return _table_of(kept, len(query)), [words.format(n, why) for why, n in sorted(over.items())]


def _listed(hit: TemplateHit, library: TemplateLibrary, dates: dict[str, str]) -> str:
    """When a hit's entry was released, by the table of dates; without one by its own file."""
    name = HIT_NAME.match(hit.name)
    assert name is not None
    entry = name[1].lower()
    if not dates:
        return library.structure(library.current_id(entry)).release_date or _ALWAYS
    known = dates.get(entry) or dates.get(library.current_id(entry))
    if known is None:
        raise TemplateError("its entry is not in release_date_cache.json")
    return known


def _table_of(kept: Sequence[_Hit], length: int) -> TemplateHits:
    numbers: dict[str, int] = {}
    shape = (len(kept), length)
    restype, seen = np.full(shape, GAP, np.uint8), np.zeros((*shape, ATOM37_NUM), bool)
    position = [np.zeros((0, 3), np.float32)]
    for row, one in enumerate(kept):
        if one.template:
            restype[row], seen[row] = one.template.aatype, one.template.mask > 0
            position.append(one.template.positions[seen[row]])
    return TemplateHits(
        name=tuple(one.template.name if one.template else "" for one in kept),
        listed=tuple(one.listed for one in kept),
        date=tuple(one.template.release_date if one.template else "" for one in kept),
        sequence=np.array([numbers.setdefault(o.sequence, len(numbers)) for o in kept], np.int32),
        restype=restype,
        seen=seen,
        position=np.concatenate(position),
    )


@functools.lru_cache(maxsize=1)
def _library(folder: str, run: str) -> tuple[TemplateLibrary, dict[str, str], dict[str, str]]:
    tables: dict[str, str] = {}
    dates = _json(folder, "release_date_cache.json", tables).items()
    obsolete = _json(folder, "obsolete_to_successor.json", tables)
    known = {name.lower(): one["release_date"] for name, one in dates if "release_date" in one}
    return TemplateLibrary(folder, _RULES, obsolete=obsolete), known, tables


def _json(folder: str, name: str, tables: dict[str, str]) -> dict[str, Any]:
    homes = (Path(folder), Path(folder).parent, Path(folder).parent / "common")
    tables |= {str(home / name): stamp_of(home / name) for home in homes}
    path = next((home / name for home in homes if (home / name).is_file()), None)
    try:
        return dict(parse_json(read_bytes(file_ref(str(path))))) if path else {}
    except (ValueError, TypeError) as error:
        raise InputError(f"no table of entries: {error!r}", path=str(path)) from None
