"""One sample of an entry: its records read and everything about it decided on the host.

Runs in reader threads and processes and imports no torch.
"""

from __future__ import annotations

import datetime
import importlib
import re
import threading
from typing import Any, Final

from evofeed.base.errors import LoaderError
from evofeed.loader.config import EntryConfig
from evofeed.loader.entries.catalog import EntryPlace
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.config import BoltzConfig, OpenFold3Config, ProtenixConfig
from evofeed.loader.views.laid import Laid
from evofeed.loader.views.protenix.tables import query_alignments
from evofeed.protein.alignment import Alignment
from evofeed.protein.datapoints import alignment_names
from evofeed.protein.entry_record import EntryRecord
from evofeed.store.inner import RecordSpan, Storage, read_entry, read_value

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_LOCK: Final = threading.Lock()
_SHARED: Final[dict[tuple[str, RecordSpan], Any]] = {}
_MOST_SHARED: Final = 8


def project_module(project: str, name: str) -> Any:
    """A module of a project's view, imported with the project's first sample."""
    return importlib.import_module(f"evofeed.loader.views.{project}.{name}")


def plan_entry(
    storage: Storage, place: EntryPlace, key: int, rules: EntryConfig
) -> tuple[Laid, tuple[str, tuple[str, ...]]]:
    """The decisions about a sample; the names of the entry and of the chains it was drawn for.

    Raises:
        StoreError: a record cannot be read.
        LoaderError: the project has no sample of that chain, or molecules are missing.
    """
    record, section = read_entry(storage, place.span, rules.project)
    alignments = {span.record_id: span for span in place.alignments}
    names = {
        entity: name
        for entity, name in alignment_names(record, section).items()
        if name in alignments
    }
    tables = [shared_at(storage, place.molecules)]
    alone: dict[str, Alignment] = {}
    if rules.project == "protenix":  # whose rules ask for a component's type
        tables.append(shared_at(storage, place.components))
        queries = query_alignments(record, section, tables[1], names)
        alone = {one.name: one for one in queries.values()}
        names |= {entity: one.name for entity, one in queries.items()}
    make = getattr(project_module(rules.project, "tables"), f"{rules.project}_view")
    view = make(record, section, tables[0], names, *tables[1:])
    found = [
        alone[name] if name in alone else read_value(storage, alignments[name])
        for name in view.alignments
    ]
    if not isinstance(rules.view, BoltzConfig):
        found = [_with_earlier_templates(one, record, rules.view) for one in found]
    try:
        plan = project_module(rules.project, "plan").plan_sample
        laid = plan(view, found, place.datapoint, SampleDraws(key), rules.view)
    except ValueError as error:
        raise LoaderError(
            f"{rules.project} has no sample of chains {place.datapoint}: {error}",
            item=place.chain_id,
        ) from error
    names_of_chains = tuple(str(view.chain_name[row]) for row in place.datapoint)
    return laid, (place.chain_id, names_of_chains)


def _with_earlier_templates(
    alignment: Alignment, record: EntryRecord, config: OpenFold3Config | ProtenixConfig
) -> Alignment:
    """Without the templates that are not older than the entry: than the first of its dates, for
    Protenix the one that stands first. Where it has no date OpenFold3 has none, Protenix all."""
    last, hits, templates = "", alignment.hits, alignment.templates
    if dates := [date for date in record.release_dates if _DATE.fullmatch(date)]:
        days = datetime.timedelta(config.templates_before_days)
        date = dates[0] if isinstance(config, ProtenixConfig) else min(dates)
        last = (datetime.date.fromisoformat(date) - days).isoformat()
    return alignment.with_templates(
        templates and templates.until(last), hits and hits.until(last or "9999")
    )


def shared_at(storage: Storage, span: RecordSpan) -> Any:
    """Reference molecules or components of a snapshot, read once a process."""
    key = storage.uri, span
    with _LOCK:
        if key not in _SHARED:
            if len(_SHARED) == _MOST_SHARED:
                del _SHARED[next(iter(_SHARED))]
            _SHARED[key] = read_value(storage, span)
        return _SHARED[key]
