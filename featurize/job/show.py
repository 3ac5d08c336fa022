"""A job on the terminal: the bar while it runs, the summary when it is over."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape

from evofeed.base.counts import counted
from evofeed.base.options import share_bar
from evofeed.featurize.job.account import JobProgress, JobReport
from evofeed.featurize.job.run import run_job

_SHOWN = 5
_NAMES = re.compile(r"\S+(, \S+)*")
_INTERRUPTED = "interrupted: what is done is kept; the same command again continues from there"


@contextmanager
def job_bar(quiet: bool = False) -> Iterator[Callable[[JobProgress], None]]:
    """A progress bar on stderr with chains/s and time left; yields what `run_job` calls."""
    with share_bar("featurizing", quiet) as show:
        yield lambda progress: show(progress.share, line(progress))


def run_and_show(input_uri: str, dataset_uri: str, as_json: bool, **how: Any) -> JobReport:
    """`run_job` with a progress bar on stderr and a summary (or JSON) on stdout."""
    with _terminable(), job_bar(quiet=as_json) as show:
        try:
            report = run_job(input_uri, dataset_uri, progress=show, **how)
        except KeyboardInterrupt:
            Console(stderr=True).print(_INTERRUPTED, highlight=False, soft_wrap=True)
            raise
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        for text in summary(report):
            Console().print(text, highlight=False, soft_wrap=True)
    return report


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does: workers are stopped, one line says what is kept."""

    def end(*_: object) -> None:
        Console(stderr=True).print(_INTERRUPTED, highlight=False, soft_wrap=True)
        raise SystemExit(128 + signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def line(progress: JobProgress) -> str:
    """Progress in one line: chains, rate, broken, time left."""
    left = progress.seconds_left
    parts = [
        f"{progress.good + progress.broken}/{progress.num_chains} chains",
        f"{progress.chains_per_second:.1f}/s",
        f"{progress.broken} broken",
    ]
    if progress.suspects:
        parts.append(f"{progress.suspects} suspect")
    parts.append("" if left is None else f"ETA {int(left) // 60}:{int(left) % 60:02d}")
    return "  ".join(part for part in parts if part)


def summary(report: JobReport) -> list[str]:
    """The report in a few lines of rich markup."""
    units = counted(report.units, "unit")
    lines = [
        f"{report.num_good} of {counted(report.num_chains, 'chain')} in "
        f"{counted(report.num_shards, 'shard')}, "
        f"{report.num_bytes / 1e6:.1f} MB, {report.seconds:.1f} s"
        + (f" ({report.chains_per_second:.1f} chains/s)" if report.resumed < report.units else "")
        + (f", {report.resumed} of {units} done before" if report.resumed else "")
    ]
    if report.snapshot:
        lines.append(f"{escape(report.ref)} -> {report.snapshot}")
    if report.broken:
        kinds = ", ".join(
            f"{n} {kind}" for kind, n in Counter(b["type"] for b in report.broken).most_common()
        )
        lines.append(f"[yellow]{report.num_broken} broken[/yellow]: {escape(kinds)}")
        for item in report.broken[:_SHOWN]:
            place = ":".join(str(part) for part in (item["path"], item["line"]) if part)
            parts = dict.fromkeys(part for part in (item["chain_id"], place) if part)
            lines.append(escape(f"  {': '.join(parts)}: {item['message']}"))
        if report.num_broken > _SHOWN:
            lines.append(f"  and {report.num_broken - _SHOWN} more")
    lines += [escape(text) for text in _left_out(report)]
    if report.notes:
        lines.append(escape(f"notes on good chains: {_notes(report.notes)}"))
    if report.message:
        lines.append(f"[red]{report.state}[/red]: {escape(report.message)}")
    lines.append(f"report: {escape(report.path)}")
    return lines


def _left_out(report: JobReport) -> list[str]:
    """Files that no chain uses, what is no protein, and chains without a row but the query."""
    texts = []
    for kind, what in (("UnusedInput", "unused"), ("NoProtein", "left out, no protein")):
        items = [item for item in report.left_out if item["type"] == kind]
        shown = [f"{item['chain_id']}: {item['message']}" for item in items[:_SHOWN]]
        if items:
            texts.append(f"{len(items)} {what}, {'; '.join(shown)}")
    alone = sum(any("query alone" in note for note in notes) for notes in report.notes.values())
    if alone:
        texts.append(f"{alone} of {report.num_good} chains have no aligned row but the query")
    return texts


def _notes(notes: Mapping[str, Sequence[str]]) -> str:
    """The commonest notes, each with the number of its chains; the report has them all."""
    kinds = Counter(kind for chain in notes.values() for kind in {_kind(note) for note in chain})
    shown = [f"{kind} ({count})" for kind, count in kinds.most_common(_SHOWN)]
    more = len(kinds) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _kind(note: str) -> str:
    """What a note has in common with those of other chains: no file, number, name or example."""
    general = re.sub(r"hits? passed over, e\.g\. \S+:", "hits passed over:", note)
    general = re.sub(r"^\S+ also holds .*:", "other molecules:", general)
    general = re.sub(r" \([^()]*\)", "", general)
    parts = [re.sub(r"^\d+ ", "", part) for part in general.split(": ")]
    return ": ".join(part for part in parts if not _NAMES.fullmatch(part)) or note
