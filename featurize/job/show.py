"""A job on the terminal: a progress bar while it runs, a summary when it has ended."""

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
_INTERRUPTED = "interrupted: finished work is kept; the same command again continues from there"


@contextmanager
def job_bar(
    quiet: bool = False, title: str = "featurizing", items: str = "chains"
) -> Iterator[Callable[[JobProgress], None]]:
    """A progress bar on stderr with items/s and time left; yields the callback for the job."""
    with share_bar(title, quiet) as show:
        yield lambda progress: show(progress.share, _line(progress, items))


def run_and_show(input_uri: str, dataset_uri: str, as_json: bool, **options: Any) -> JobReport:
    """`run_job` with a progress bar on stderr and a summary (or JSON) on stdout."""
    with interruptible(), job_bar(quiet=as_json) as show:
        report = run_job(input_uri, dataset_uri, progress=show, **options)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        for text in summary(report):
            Console().print(text, highlight=False, soft_wrap=True)
    return report


class _Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


@contextmanager
def interruptible() -> Iterator[None]:
    """At Ctrl-C or SIGTERM, end the job and print that finished work is kept."""

    def end(*_: object) -> None:
        raise _Terminated

    is_main = threading.current_thread() is threading.main_thread()
    previous_handler = signal.signal(signal.SIGTERM, end) if is_main else None
    try:
        yield
    except KeyboardInterrupt as interruption:
        Console(stderr=True).print(_INTERRUPTED, highlight=False, soft_wrap=True)
        if isinstance(interruption, _Terminated):
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, previous_handler)


def _line(progress: JobProgress, items: str) -> str:
    """Progress in one line: items, rate, broken."""
    parts = [
        f"{progress.good + progress.broken}/{progress.num_chains} {items}",
        f"{progress.chains_per_second:.1f}/s",
        f"{progress.broken} broken",
    ]
    if progress.suspects:
        parts.append(f"{progress.suspects} suspect")
    return "  ".join(parts)


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
            location = ":".join(str(part) for part in (item["path"], item["line"]) if part)
            parts = dict.fromkeys(part for part in (item["chain_id"], location) if part)
            lines.append(escape(f"  {': '.join(parts)}: {item['message']}"))
        if report.num_broken > _SHOWN:
            lines.append(f"  and {report.num_broken - _SHOWN} more")
    lines += [escape(text) for text in _omissions(report)]
    if report.notes:
        lines.append(escape(f"notes on good chains: {_common_notes(report.notes)}"))
    if report.message:
        lines.append(f"[red]{report.state}[/red]: {escape(report.message)}")
    lines.append(f"report: {escape(report.path)}")
    return lines


def _omissions(report: JobReport) -> list[str]:
    """Lines on unused files, inputs without a protein, and chains whose query has no hits."""
    texts = []
    for kind, label in (("UnusedInput", "unused"), ("NoProtein", "left out, no protein")):
        items = [item for item in report.left_out if item["type"] == kind]
        shown = [f"{item['chain_id']}: {item['message']}" for item in items[:_SHOWN]]
        if items:
            texts.append(f"{len(items)} {label}, {'; '.join(shown)}")
    alone = sum(any("query alone" in note for note in notes) for notes in report.notes.values())
    if alone:
        texts.append(f"{alone} of {report.num_good} chains have no aligned row but the query")
    return texts


def _common_notes(notes: Mapping[str, Sequence[str]]) -> str:
    """The most common notes, each with its number of chains; the report has all."""
    kinds = Counter(kind for chain in notes.values() for kind in {_kind(note) for note in chain})
    shown = [f"{kind} ({count})" for kind, count in kinds.most_common(_SHOWN)]
    more = len(kinds) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _kind(note: str) -> str:
    """A note without its file, number, name and example, to count it with those of other chains."""
    general = re.sub(r"hits? passed over, e\.g\. \S+:", "hits passed over:", note)
    general = re.sub(r"^\S+ also holds .*:", "other molecules:", general)
    general = re.sub(r" \([^()]*\)", "", general)
    parts = [re.sub(r"^\d+ ", "", part) for part in general.split(": ")]
    return ": ".join(part for part in parts if not _NAMES.fullmatch(part)) or note
