"""What the store and the queues say now, read at each scrape: no process needs to run but the one that is asked.

The number of keys has no bound, since anything may be a part of them. So those that matter most are shown each by
itself, the others together as `(other)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from kombu.exceptions import OperationalError
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from celery_limits.app.handle import Limits
from celery_limits.declare.limits import parse_rate
from celery_limits.store.errors import StoreError
from celery_limits.store.later import count_delayed
from celery_limits.store.lookups import times_parked
from celery_limits.store.status import Status
from celery_limits.transport.lengths import queue_lengths

from .labels import OTHER, LimitNames
from .prometheus import PREFIX

__all__ = ["GAUGES", "KeyCollector"]

GAUGES = {
    "running": "Slots of the key that are taken.",
    "limit": "Slots of the key that there are.",
    "rate": "Calls a second that a rate allows.",
    "waiting": "Tasks in the line of the key.",
    "oldest_wait_seconds": "Time for which the first of them has waited.",
    "paused": "1 while nothing enters the key.",
    "group_held": "Slots of the key that the group holds.",
    "group_share": "The share of the group at the key.",
    "group_waiting": "Tasks of the group in the line of the key.",
    "group_oldest_wait_seconds": "Time for which the first of them has waited.",
    "parked_total": "Times that a task was parked, by whichever process: publisher, transport or gate.",
    "keys": "Keys that there are, shown or not.",
    "delayed": "Tasks that wait in the store for their eta.",
    "queue_length": "Tasks in a queue: they wait for a worker. Those that wait for a limit are not in it.",
    "up": "1 if the limit store answers.",
}
CONNECT_SECONDS = 5.0
"""How long a scrape waits for a broker that does not answer. The figures of keys come without it."""

_BY_KEY = ("running", "limit", "rate", "waiting", "oldest_wait_seconds", "paused")
_BY_GROUP = ("group_held", "group_share", "group_waiting", "group_oldest_wait_seconds")


class Row(NamedTuple):
    """One key, or all the others."""

    key: str
    limit: str
    values: dict[str, float]


class GroupRow(NamedTuple):
    """One group of a key, or all the others there, which includes tasks without a group."""

    key: str
    limit: str
    group: str
    values: dict[str, float]


class KeyCollector(Collector):
    """Register it with any registry: `registry.register(KeyCollector(Limits(app)))`."""

    def __init__(self, limits: Limits, most: int | None = None, groups: int | None = None) -> None:
        self._limits = limits
        self._most = limits.settings.metrics_keys if most is None else most
        self._groups = limits.settings.metrics_groups if groups is None else groups
        self._names = LimitNames(limits)

    def describe(self) -> Iterable[Any]:
        """So that to register it asks no store."""
        kinds = {"parked_total": CounterMetricFamily}
        return [kinds.get(name, GaugeMetricFamily)(f"{PREFIX}_{name}", text) for name, text in GAUGES.items()]

    def collect(self) -> Iterator[Any]:
        try:
            statuses, delayed = self._limits.overview(self._groups), count_delayed(self._limits.store)
            parked = times_parked(self._limits.store)
        except StoreError:
            yield GaugeMetricFamily(f"{PREFIX}_up", GAUGES["up"], value=0)
            return
        yield GaugeMetricFamily(f"{PREFIX}_up", GAUGES["up"], value=1)
        yield GaugeMetricFamily(f"{PREFIX}_keys", GAUGES["keys"], value=len(statuses))
        yield GaugeMetricFamily(f"{PREFIX}_delayed", GAUGES["delayed"], value=delayed)
        yield CounterMetricFamily(f"{PREFIX}_parked", GAUGES["parked_total"], value=parked)
        ordered = sorted(statuses, key=lambda s: (-(s.oldest_wait or 0), -s.waiting, -s.running, s.key))
        yield from self._key_families(ordered)
        yield from self._group_families(ordered[: self._most])
        yield self._queues()

    def _key_families(self, ordered: list[Status]) -> Iterator[Any]:
        rows = list(self._rows(ordered))
        for name in _BY_KEY:
            family = GaugeMetricFamily(f"{PREFIX}_{name}", GAUGES[name], labels=["key", "name"])
            for row in rows:
                if name in row.values:
                    family.add_metric([row.key, row.limit], row.values[name])
            yield family

    def _group_families(self, shown: list[Status]) -> Iterator[Any]:
        rows = [row for status in shown if status.groups for row in self._group_rows(status)]
        for name in _BY_GROUP:
            family = GaugeMetricFamily(f"{PREFIX}_{name}", GAUGES[name], labels=["key", "name", "group"])
            for row in rows:
                if name in row.values:
                    family.add_metric([row.key, row.limit, row.group], row.values[name])
            yield family

    def _group_rows(self, status: Status) -> Iterator[GroupRow]:
        """Those whose turn comes first, as far as they were read; the rest of the key as one."""
        limit = self._names.name("", status.key)
        held, waiting = status.running, status.waiting
        for group in status.groups:
            held, waiting = held - group.held, waiting - group.waiting
            wait = 0.0 if group.since is None else max(0.0, status.now - group.since)
            values = (float(group.held), group.share, float(group.waiting), wait)
            yield GroupRow(status.key, limit, group.group, dict(zip(_BY_GROUP, values, strict=True)))
        if held > 0 or waiting > 0:
            rest = {"group_held": float(max(0, held)), "group_waiting": float(max(0, waiting))}
            yield GroupRow(status.key, limit, OTHER, rest)

    def _rows(self, ordered: list[Status]) -> Iterator[Row]:
        """First those that are waited for longest, then those that are used most."""
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
