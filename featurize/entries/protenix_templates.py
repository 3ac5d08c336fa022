"""Template hits of a query for Protenix, which realigns each chain to the query.

`release_date_cache.json` and `obsolete_to_successor.json` are in the folder of mmCIF files, next
to it or in `common/` there. Source: Protenix 2.0, `data/template/template_utils.py`.
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
_SHUFFLED, _MAX_TEMPLATES = 20, 4
"""Up to 4 templates are drawn: the first 20 hits in random order, then the others in order."""


class _Hit(NamedTuple):
    listed: str
    sequence: str
    template: Template | None


def protenix_hits(
    hits: Sequence[TemplateHit], query: str, folder: str, use: FolderUse, run: str = ""
) -> tuple[TemplateHits, list[str]]:
    """The hits that entries of any date may draw, and notes on hits that were passed over.

    A hit that is never drawn is left out: it repeats the sequence of an earlier one, or 20 earlier
    hits listed by the same date have 4 different templates.

    Raises:
        InputError: a table of entries is damaged.
    """
    library, dates, tables = _library(folder, run)
    library.use = use
    use.files |= tables
    target, passed_over = TemplateQuery(query), Counter[str]()
    drawable: list[_Hit] = []

    for hit in sorted(hits, key=lambda hit: hit.sum_probs or 0.0, reverse=True):
        try:
            if reason := prefilter(hit, target, library, _ALWAYS, _RULES):
                raise TemplateError(reason)
            listed = _release_date(hit, library, dates)
        except TemplateError as error:
            passed_over[error.message] += 1
            continue
        sequence = hit.hit_sequence.replace("-", "")
        before = [earlier for earlier in drawable if earlier.listed <= listed]
        sequences = {earlier.sequence for earlier in before}
        templates = {earlier.template.sequence for earlier in before if earlier.template}
        is_unreachable = len(sequences) >= _SHUFFLED and len(templates) >= _MAX_TEMPLATES
        if sequence in sequences or is_unreachable:
            continue
        try:
            template = build_template(hit, target, library, _ALWAYS, _RULES)
        except TemplateError as error:  # it is drawn from all the same
            passed_over[error.message] += 1
            template = None
        drawable.append(_Hit(listed, sequence, template))
    note = "protenix: {} template hits passed over: {}"
    notes = [note.format(count, reason) for reason, count in sorted(passed_over.items())]
    return _hit_table(drawable, len(query)), notes


def _release_date(hit: TemplateHit, library: TemplateLibrary, dates: dict[str, str]) -> str:
    """Release date of a hit's entry, from the table of dates or, without one, from its file."""
    name = HIT_NAME.match(hit.name)
    assert name is not None
    entry = name[1].lower()
    if not dates:
        return library.structure(library.current_id(entry)).release_date or _ALWAYS
    date = dates.get(entry) or dates.get(library.current_id(entry))
    if date is None:
        raise TemplateError("its entry is not in release_date_cache.json")
    return date


def _hit_table(hits: Sequence[_Hit], length: int) -> TemplateHits:
    ids: dict[str, int] = {}
    shape = (len(hits), length)
    restype, mask = np.full(shape, GAP, np.uint8), np.zeros((*shape, ATOM37_NUM), bool)
    position = [np.zeros((0, 3), np.float32)]
    for row, hit in enumerate(hits):
        if hit.template:
            restype[row], mask[row] = hit.template.aatype, hit.template.mask > 0
            position.append(hit.template.positions[mask[row]])
    return TemplateHits(
        name=tuple(hit.template.name if hit.template else "" for hit in hits),
        listed=tuple(hit.listed for hit in hits),
        date=tuple(hit.template.release_date if hit.template else "" for hit in hits),
        sequence=np.array([ids.setdefault(hit.sequence, len(ids)) for hit in hits], np.int32),
        restype=restype,
        seen=mask,
        position=np.concatenate(position),
    )


@functools.lru_cache(maxsize=1)
def _library(folder: str, run: str) -> tuple[TemplateLibrary, dict[str, str], dict[str, str]]:
    tables: dict[str, str] = {}
    rows = _read_table(folder, "release_date_cache.json", tables).items()
    obsolete = _read_table(folder, "obsolete_to_successor.json", tables)
    by_entry = {name.lower(): row["release_date"] for name, row in rows if "release_date" in row}
    return TemplateLibrary(folder, _RULES, obsolete=obsolete), by_entry, tables


def _read_table(folder: str, name: str, tables: dict[str, str]) -> dict[str, Any]:
    folders = (Path(folder), Path(folder).parent, Path(folder).parent / "common")
    tables |= {str(parent / name): stamp_of(parent / name) for parent in folders}
    path = next((parent / name for parent in folders if (parent / name).is_file()), None)
    try:
        return dict(parse_json(read_bytes(file_ref(str(path))))) if path else {}
    except (ValueError, TypeError) as error:
        raise InputError(f"not a table of entries: {error!r}", path=str(path)) from None
