"""What the server counts and measures, as Prometheus reads it and as the page shows it."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64)
LAST = 512
"""Requests of each model that the page's latencies are of."""


class Metrics:
    """Counters and histograms of one server."""

    def __init__(self) -> None:
        import prometheus_client as prometheus

        self._prometheus = prometheus
        self.registry = prometheus.CollectorRegistry()
        labels = ("model", "version")
        self.requests = prometheus.Counter(
            "tvmopt_requests", "Requests by their end.", (*labels, "protocol", "status"), registry=self.registry
        )
        self._histograms = {
            name: prometheus.Histogram(f"tvmopt_{name}", told, labels, registry=self.registry, buckets=buckets)
            for name, told, buckets in (
                ("request_seconds", "From a request's arrival to its answer.", SECONDS),
                ("queue_seconds", "Waiting for a free instance.", SECONDS),
                ("compute_seconds", "In the model.", SECONDS),
                ("first_token_seconds", "Of a text: from its request to its first token.", SECONDS),
                ("token_seconds", "Of a text: from one token to the next.", SECONDS),
                ("batch_rows", "Rows of one call of the model, or texts of one step.", ROWS),
            )
        }
        self._waiting = prometheus.Gauge("tvmopt_waiting", "Requests in the queue.", labels, registry=self.registry)
        self._recent: dict[str, deque[tuple[float, float]]] = {}
        self.begin = time.time()

    def observer(self, model: str, version: str) -> Any:
        """What a `Batcher` tells of one model."""
        known = {
            "queue": self._histograms["queue_seconds"], "compute": self._histograms["compute_seconds"],
            "rows": self._histograms["batch_rows"],
        }  # fmt: skip
        bound = {what: histogram.labels(model, version) for what, histogram in known.items()}
        return lambda what, value: bound[what].observe(value)

    def of_text(self, model: str, version: str) -> Any:
        """What `texts.generate` tells of one text."""
        return lambda what, seconds: self._histograms[f"{what}_seconds"].labels(model, version).observe(seconds)

    def served(self, model: str, version: str, protocol: str, status: int, seconds: float) -> None:
        """Count one request for a model that there is."""
        self.requests.labels(model, version, protocol, str(status)).inc()
        if status == 200:
            self._histograms["request_seconds"].labels(model, version).observe(seconds)
            self._recent.setdefault(model, deque(maxlen=LAST)).append((time.time(), seconds))

    def text(self, waiting: dict[tuple[str, str], int]) -> tuple[bytes, str]:
        """What a scrape gets, and its content type."""
        for (model, version), count in waiting.items():
            self._waiting.labels(model, version).set(count)
        return self._prometheus.generate_latest(self.registry), self._prometheus.CONTENT_TYPE_LATEST

    def totals(self, model: str, version: str) -> dict[str, float]:
        """Counts and sums since the beginning: of `request_seconds`, `compute_seconds` and so on, each with ``_count``
        and ``_sum``; "failed" requests; when the "last" one was."""
        found = {"failed": 0.0}
        for sample in (sample for family in self.registry.collect() for sample in family.samples):
            labels, name = sample.labels, sample.name.removeprefix("tvmopt_")
            if (labels.get("model"), labels.get("version")) != (model, version):
                continue
            if name.endswith(("_count", "_sum")):
                found[name] = sample.value
            elif name == "requests_total" and labels["status"] != "200":
                found["failed"] += sample.value
        if recent := self._recent.get(model):
            found["last"] = recent[-1][0]
        return found

    def recent(self, model: str, window: float = 10.0) -> dict[str, float]:
        """Requests a second of the last seconds, and latencies of the last requests in milliseconds."""
        known = list(self._recent.get(model, ()))
        now = time.time()
        times = sorted(seconds for _, seconds in known)
        count = sum(when > now - window for when, _ in known)

        def part(share: float) -> float:
            return 1e3 * times[min(len(times) - 1, int(share * len(times)))] if times else 0.0

        return {"per_second": count / window, "p50_ms": part(0.5), "p99_ms": part(0.99)}
