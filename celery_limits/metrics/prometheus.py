"""The figures, as Prometheus wants them. Importing this needs the extra `prometheus`.

`enable(app)` counts what happens in this process; a worker with `limits_metrics_port` does so by itself, and serves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery.exceptions import ImproperlyConfigured

from celery_limits.app.handle import Limits
from celery_limits.telemetry.meter import measure_with

from .labels import LimitNames

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, start_http_server
except ImportError:
    raise ImproperlyConfigured('metrics need prometheus-client: pip install "celery-limits[prometheus]"') from None

__all__ = ["METRICS", "PrometheusMeter", "enable", "serve"]

BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400)
"""Seconds. From what nobody notices to what somebody is called for."""

PREFIX = "celery_limits"
METRICS = {
    "admitted_total": "Tasks that were admitted.",
    "waited_total": "Tasks that were admitted after they had waited for a limit.",
    "discarded_total": "Tasks that were dropped, since they do not wait or the line was full.",
    "cancelled_total": "Tasks that were revoked before they began.",
    "superseded_total": "Tasks that ended for one that came later.",
    "expired_total": "Tasks that expired before they began.",
    "reclaimed_total": "Workers that were found dead, whose slots were given to others.",
    "wait_for_limit_seconds": "Time in the line of one limit, of tasks that had to wait for it.",
    "wait_for_worker_seconds": "Time in which a task could have run, had a worker been free.",
    "hold_seconds": "Time for which a task held the limit, while it ran and while it waited at a later one.",
}
_REASONS = {
    "discarded": "discarded_total",
    "revoked": "cancelled_total",
    "expired": "expired_total",
    "superseded": "superseded_total",
}


class PrometheusMeter:
    """Counts by task, and measures by the name of the limit."""

    def __init__(self, limits: Limits, registry: CollectorRegistry) -> None:
        self._names = LimitNames(limits)
        self._counters = {
            name: Counter(f"{PREFIX}_{name}", text, [] if name == "reclaimed_total" else ["task"], registry=registry)
            for name, text in METRICS.items()
            if name.endswith("_total")
        }
        self._waits = _histogram("wait_for_limit_seconds", "limit", registry)
        self._idle = _histogram("wait_for_worker_seconds", "task", registry)
        self._holds = _histogram("hold_seconds", "limit", registry)

    def admitted(self, task: str) -> None:
        self._counters["admitted_total"].labels(task).inc()

    def waited(self, task: str) -> None:
        self._counters["waited_total"].labels(task).inc()

    def ended(self, task: str, reason: str) -> None:
        self._counters[_REASONS[reason]].labels(task).inc()

    def reclaimed(self, workers: int) -> None:
        self._counters["reclaimed_total"].inc(workers)

    def waited_for_limit(self, task: str, key: str, seconds: float) -> None:
        self._waits.labels(self._names.name(task, key)).observe(seconds)

    def waited_for_worker(self, task: str, seconds: float) -> None:
        self._idle.labels(task).observe(seconds)

    def held(self, task: str, keys: Sequence[str], seconds: float) -> None:
        for key in keys:
            self._holds.labels(self._names.name(task, key)).observe(seconds)


def _histogram(name: str, label: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(f"{PREFIX}_{name}", METRICS[name], [label], registry=registry, buckets=BUCKETS)


def enable(app: Any, registry: CollectorRegistry = REGISTRY) -> PrometheusMeter:
    """Counts what the limits of the app do in this process from now on, in this registry, for whoever serves that."""
    meter = PrometheusMeter(Limits(app), registry)
    measure_with(meter)
    return meter


def serve(port: int, address: str, registry: CollectorRegistry = REGISTRY) -> int:
    """Serves a registry over HTTP, in a thread; the port, which is another one if that was 0."""
    server, _ = start_http_server(port, addr=address, registry=registry)
    return int(server.server_port)
