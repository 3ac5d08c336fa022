"""What the chains that are asked for have in common: charts and counts that lead to filters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from evofeed.service.pages.charts import Brush, bars, histogram
from evofeed.service.snapshots.find import Question
from evofeed.service.state import Service

if TYPE_CHECKING:
    from evofeed.service.pages.dataset import PageQuery

Link = Callable[..., str]


def charts_of(service: Service, query: PageQuery, question: Question, link: Link) -> list[Markup]:
    """A chart a column: all chains pale, those asked for before them; each bar is a filter."""
    every = service.catalog.statistics(question.dataset, question.digest)

    def numeric(column: str, title: str, unit: str, low: str, high: str) -> Markup:
        statistics = every[column]
        if not statistics.get("edges"):
            return Markup("")
        edges = statistics["edges"]
        whole = statistics["kind"] == "integer"
        links = [
            link(**({low: a} if low else {}), **({high: b - 1 if whole else b} if high else {}))
            for a, b in pairwise(edges)
        ]
        found = service.finder.counts(question, column, edges)
        return histogram(statistics, title, unit, found, Brush(links, low, high, edges, whole))

    return [
        numeric("num_res", "Length", "residues", "min_length", "max_length"),
        numeric("num_alignments", "Alignment depth", "MSA rows", "min_depth", "max_depth"),
        numeric("num_templates", "Templates", "kept", "min_templates", ""),
        numeric("resolution", "Resolution", "ångström, at most", "", "max_resolution"),
        _years(service, every["release_date"], question, link),
    ]


def _years(service: Service, statistics: dict[str, Any], question: Question, link: Link) -> Markup:
    years = statistics.get("years") or {}
    found = service.finder.groups(question, "release_date", years=True) if years else {}
    links = {
        year: link(released_from=f"{year}-01-01", released_before=f"{int(year) + 1:04d}-01-01")
        for year in years
        if year.isdecimal()
    }
    return bars(years, "Released in", found, links)


def facets_of(
    service: Service, query: PageQuery, question: Question, link: Link
) -> list[dict[str, Any]]:
    """Values to choose from, each with its count where all other filters hold."""
    name, digest = question.dataset, question.digest
    method = service.finder.groups(query.question(name, digest, "method"), "method")
    chosen = {value.lower() for value in query.method or ()}
    facets = [
        {
            "title": "method",
            "values": [
                {
                    "label": value.lower(),
                    "count": count,
                    "on": value.lower() in chosen,
                    "link": link(method=_toggled(query.method or [], value)),
                }
                for value, count in sorted(method.items(), key=lambda pair: -pair[1])[:12]
            ],
        }
    ]
    for field, title in (("has_structure", "structure"), ("is_distillation", "distillation")):
        counts = service.finder.groups(query.question(name, digest, field), field)
        now = getattr(query, field)
        facets.append(
            {
                "title": title,
                "values": [
                    {
                        "label": label,
                        "count": counts.get(str(value), 0),
                        "on": now is value,
                        "link": link(**{field: None if now is value else value}),
                    }
                    for value, label in ((True, "yes"), (False, "no"))
                ],
            }
        )
    return facets


def _toggled(chosen: list[str], value: str) -> list[str]:
    others = [other for other in chosen if other.lower() != value.lower()]
    return others if len(others) < len(chosen) else [*chosen, value.lower()]
