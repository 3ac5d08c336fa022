"""Statistics as numbers for others to plot."""

from __future__ import annotations

from evofeed.loader.metrics import flat_metrics, prometheus_text

STATS = {"samples": 3, "data_wait": {"p50_ms": 0.5}, "bad_chains": ["a: why"], "note": "text"}


def test_numbers_become_flat_and_lists_are_counted() -> None:
    assert flat_metrics(STATS) == {
        "loader/samples": 3.0,
        "loader/data_wait/p50_ms": 0.5,
        "loader/bad_chains": 1.0,
    }


def test_prometheus_reads_them_as_gauges() -> None:
    text = prometheus_text(STATS, rank=1)
    assert 'evofeed_loader_data_wait_p50_ms{rank="1"} 0.5\n' in text
    assert text.count("# TYPE") == 3
