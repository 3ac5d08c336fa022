"""Counters for Prometheus, labelled by endpoint name so that no path can flood them."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector


class Metrics:
    """The service's registry, not a global one, so that two services can share a process.

    All workers of a service, those that died included, count in `folder`: any tells the sums.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self.registry = CollectorRegistry()
        self._series: dict[tuple[str, str, int], tuple[Any, Any, Any]] = {}
        registry, per = self.registry, ["endpoint"]
        self.requests = Counter(
            "evofeed_requests_total", "Requests answered.", [*per, "method", "status"],
            registry=registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "evofeed_request_seconds", "Time from the request's head to the response's last byte.",
            per, buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10), registry=registry,
        )  # fmt: skip
        self.sent = Counter("evofeed_sent_bytes_total", "Body bytes sent.", per, registry=registry)
        newest: Any = {"registry": self.registry, "multiprocess_mode": "mostrecent"}
        self.datasets = Gauge("evofeed_datasets", "Datasets registered.", **newest)
        self.jobs = Gauge("evofeed_jobs", "Jobs by state.", ["state"], **newest)

    def request(self, endpoint: str, method: str, status: int, seconds: float, size: int) -> None:
        """Count one answered request."""
        key = (endpoint, method, status)
        if key not in self._series:  # three lookups cost half a request
            self._series[key] = (
                self.requests.labels(endpoint, method, str(status)),
                self.seconds.labels(endpoint),
                self.sent.labels(endpoint),
            )
        requests, spent, nbytes = self._series[key]
        requests.inc()
        spent.observe(seconds)
        nbytes.inc(size)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        if self._folder is None:
            return generate_latest(self.registry)
        everybody = CollectorRegistry()
        MultiProcessCollector(everybody, path=self._folder)  # type: ignore[no-untyped-call]
        return generate_latest(everybody)
