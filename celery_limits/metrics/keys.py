"""What the store and the queues say now, read at each scrape: no process needs to run but the one that is asked.

The number of keys has no bound, since anything may be a part of them. So those that matter most are shown each by
itself, the others together as `(other)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from kombu.exceptions import OperationalError
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from celery_limits.app import Limits
from celery_limits.limits import parse_rate
from celery_limits.store.errors import StoreError
from celery_limits.store.reads import Status
from celery_limits.transport.lengths import queue_lengths

from .names import OTHER, LimitNames
from .prometheus import PREFIX

__all__ = ["GAUGES", "KeyCollector"]

GAUGES = {
    "running": "Slots of the key that are taken.",
    "limit": "Slots of the key that there are.",
    "rate": "Calls a second that a rate allows.",
    "waiting": "Tasks in the line of the key.",
    "oldest_wait_seconds": "Time for which the first of them has waited.",
    "paused": "1 while nothing enters the key.",
    "keys": "Keys that there are, shown or not.",
    "queue_length": "Tasks in a queue: they wait for a worker. Those that wait for a limit are not in it.",
    "up": "1 if the limit store answers.",
}
CONNECT_SECONDS = 5.0
"""How long a scrape waits for a broker that does not answer. The figures of keys come without it."""

_BY_KEY = ("running", "limit", "rate", "waiting", "oldest_wait_seconds", "paused")


class Row(NamedTuple):
    """One key, or all the others."""

    key: str
    limit: str
    values: dict[str, float]


class KeyCollector(Collector):
    """Register it with any registry: `registry.register(KeyCollector(Limits(app)))`."""

    def __init__(self, limits: Limits, most: int | None = None) -> None:
        self._limits = limits
        self._most = limits.settings.metrics_keys if most is None else most
        self._names = LimitNames(limits)

    def describe(self) -> Iterable[Any]:
        """So that to register it asks no store."""
        return [GaugeMetricFamily(f"{PREFIX}_{name}", text) for name, text in GAUGES.items()]

    def collect(self) -> Iterator[Any]:
        try:
            statuses = self._limits.overview()
        except StoreError:
            yield GaugeMetricFamily(f"{PREFIX}_up", GAUGES["up"], value=0)
            return
        yield GaugeMetricFamily(f"{PREFIX}_up", GAUGES["up"], value=1)
        yield GaugeMetricFamily(f"{PREFIX}_keys", GAUGES["keys"], value=len(statuses))
        rows = list(self._rows(statuses))
        for name in _BY_KEY:
            family = GaugeMetricFamily(f"{PREFIX}_{name}", GAUGES[name], labels=["key", "name"])
            for row in rows:
                if name in row.values:
                    family.add_metric([row.key, row.limit], row.values[name])
            yield family
        yield self._queues()

    def _rows(self, statuses: list[Status]) -> Iterator[Row]:
        """First those that are waited for longest, then those that are used most."""
        ordered = sorted(statuses, key=lambda s: (-(s.oldest_wait or 0), -s.waiting, -s.running, s.key))
        shown, others = ordered[: self._most], ordered[self._most :]
        for status in shown:
            yield Row(status.key, self._names.name("", status.key), _values(status))
        if others:
            together = {
                "running": float(sum(status.running for status in others)),
                "waiting": float(sum(status.waiting for status in others)),
                "oldest_wait_seconds": max(status.oldest_wait or 0.0 for status in others),
            }
            yield Row(OTHER, OTHER, together)

    def _queues(self) -> Any:
        family = GaugeMetricFamily(f"{PREFIX}_queue_length", GAUGES["queue_length"], labels=["queue"])
        app = self._limits.app
        with app.connection_for_read() as connection, suppress(OperationalError):
            connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
            for name, length in queue_lengths(connection, sorted(app.amqp.queues)).items():
                family.add_metric([name], length)
        return family


def _values(status: Status) -> dict[str, float]:
    values: dict[str, float] = {
        "waiting": status.waiting,
        "oldest_wait_seconds": status.oldest_wait or 0.0,
        "paused": float(status.paused),
    }
    limit = status.limit
    if isinstance(limit, int):
        values |= {"running": status.running, "limit": limit}
    elif isinstance(limit, str):
        interval = parse_rate(limit).interval_us
        values["rate"] = 1e6 / interval if interval else 0.0
    else:
        values["running"] = status.running
    return values
