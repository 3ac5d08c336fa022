"""Reads the records of an entry and plans one sample of it on the host.

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
from evofeed.loader.entries.catalog import EntryLocation
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
_MAX_SHARED: Final = 8


def project_module(project: str, name: str) -> Any:
    """A module of a project's view, imported at the project's first sample."""
    return importlib.import_module(f"evofeed.loader.views.{project}.{name}")


def plan_entry(
    storage: Storage, location: EntryLocation, key: int, rules: EntryConfig
) -> tuple[Laid, tuple[str, tuple[str, ...]]]:
    """The plan of a sample, with its entry id and the names of the chains it was drawn for.

    Raises:
        StoreError: a record cannot be read.
        LoaderError: the project has no sample of these chains, or molecules are missing.
    """
    record, section = read_entry(storage, location.span, rules.project)
    spans = {span.record_id: span for span in location.alignments}
    names = {
        entity: name for entity, name in alignment_names(record, section).items() if name in spans
    }
    tables = [shared_value(storage, location.molecules)]
    single: dict[str, Alignment] = {}
    if rules.project == "protenix":  # its rules depend on the types of components
        tables.append(shared_value(storage, location.components))
        queries = query_alignments(record, section, tables[1], names)
        single = {query.name: query for query in queries.values()}
        names |= {entity: query.name for entity, query in queries.items()}
    make_view = getattr(project_module(rules.project, "tables"), f"{rules.project}_view")
    view = make_view(record, section, tables[0], names, *tables[1:])
    alignments = [
        single[name] if name in single else read_value(storage, spans[name])
        for name in view.alignments
    ]
    if not isinstance(rules.view, BoltzConfig):
        alignments = [_with_earlier_templates(rows, record, rules.view) for rows in alignments]
    try:
        plan = project_module(rules.project, "plan").plan_sample
        laid = plan(view, alignments, location.datapoint, SampleDraws(key), rules.view)
    except ValueError as error:
        raise LoaderError(
            f"{rules.project} has no sample of chains {location.datapoint}: {error}",
            item=location.chain_id,
        ) from error
    names_of_chains = tuple(str(view.chain_name[row]) for row in location.datapoint)
    return laid, (location.chain_id, names_of_chains)


def _with_earlier_templates(
    alignment: Alignment, record: EntryRecord, config: OpenFold3Config | ProtenixConfig
) -> Alignment:
    """The alignment with only the templates released `templates_before_days` before the entry.

    The entry's date is its earliest; for Protenix the first in its list. Of an entry without a
    date OpenFold3 uses no templates, Protenix all.
    """
    last, hits, templates = "", alignment.hits, alignment.templates
    if dates := [date for date in record.release_dates if _DATE.fullmatch(date)]:
        days = datetime.timedelta(config.templates_before_days)
        date = dates[0] if isinstance(config, ProtenixConfig) else min(dates)
        last = (datetime.date.fromisoformat(date) - days).isoformat()
    return alignment.with_templates(
        templates and templates.until(last), hits and hits.until(last or "9999")
    )


def shared_value(storage: Storage, span: RecordSpan) -> Any:
    """Reference molecules or components of a snapshot, read once per process."""
    key = storage.uri, span
    with _LOCK:
        if key not in _SHARED:
            if len(_SHARED) == _MAX_SHARED:
                del _SHARED[next(iter(_SHARED))]
            _SHARED[key] = read_value(storage, span)
        return _SHARED[key]
