"""Calls about deliveries that Redis has not confirmed, repeated until it does.

A connection may break after the script has run: then a fetch has brought messages that nobody here knows of, or an
acknowledgement is not known to have arrived. Neither may wait for the end of the process, since its lease goes on.
Unconfirmed calls are repeated before the next fetch, and by the housekeeping where nothing is fetched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import NamedTuple

from redis import exceptions as redis_errors

from celery_limits.lease.housekeeping import Chore

from .queue_scripts import QueueScripts, number_of

__all__ = ["ERRORS", "Unconfirmed"]

ERRORS = (redis_errors.RedisError, OSError)

WATCH = 10.0
"""Seconds for which a fetch whose answer was lost may still be carried out by a server that was slow to read it."""

LOOK = 0.5
"""Seconds between two looks for what such a fetch has brought."""


class _Unsure(NamedTuple):
    """What a fetch whose answer was lost has brought is numbered above `after`."""

    known: frozenset[str]
    after: int
    until: float


class Unconfirmed(Chore):
    """The unconfirmed calls of one process, in the name that `worker()` returns. That name changes when the lease is
    lost. Calls in the old name are dropped, since the store has given its messages to others."""

    def __init__(self, worker: Callable[[], str]) -> None:
        self._lock = threading.Lock()
        self._name = worker
        self._scripts: QueueScripts | None = None
        self._worker = ""
        self._acks: set[str] = set()
        self._back: dict[str, str] = {}
        self._unsure: dict[str, _Unsure] = {}
        self._next_look = 0.0

    def __bool__(self) -> bool:
        return bool(self._acks or self._back or self._unsure)

    def acknowledge(self, scripts: QueueScripts, worker: str, fields: Iterable[str]) -> None:
        with self._lock:
            if self._is_current(scripts, worker):
                self._acks.update(fields)

    def give_back(self, scripts: QueueScripts, worker: str, fields: Iterable[str], where: str) -> None:
        with self._lock:
            if self._is_current(scripts, worker):
                self._back.update(dict.fromkeys(fields, where))

    def lose_sight(self, scripts: QueueScripts, worker: str, mark: str, known: Iterable[str], after: int) -> None:
        """A fetch under this mark was not answered. What it brought, beside what is known, goes back; all of that is
        numbered above `after`."""
        with self._lock:
            if self._is_current(scripts, worker):
                self._unsure[mark] = _Unsure(frozenset(known), after, monotonic() + WATCH)
                self._next_look = 0.0

    def _is_current(self, scripts: QueueScripts, worker: str) -> bool:
        """Whether it is a call in the present name."""
        if worker != self._name():
            return False
        if worker != self._worker:
            self._drop_all()
        self._scripts, self._worker = scripts, worker
        return True

    def _drop_all(self) -> None:
        self._acks.clear()
        self._back.clear()
        self._unsure.clear()

    def confirm(self, worker: str) -> None:
        """Repeats every call. If one fails all are kept: each of them may be repeated."""
        with self._lock:
            if worker != self._worker or self._scripts is None:
                return self._drop_all()
            if self._acks:
                self._scripts.acknowledge(worker, sorted(self._acks))
                self._acks.clear()
            self._look(self._scripts, worker)  # what came last goes to the front first
            for where in ("front", "end"):
                fields = [field for field, to in self._back.items() if to == where]
                self._scripts.requeue(worker, sorted(fields, key=number_of), where)
            return self._back.clear()

    def _look(self, scripts: QueueScripts, worker: str) -> None:
        now = monotonic()
        if not self._unsure or now < self._next_look:
            return
        unknown = [
            field
            for field in scripts.fetched_by(worker, self._unsure, min(unsure.after for unsure in self._unsure.values()))
            if (unsure := self._unsure.get(field.partition(".")[2])) is not None and field not in unsure.known
        ]
        scripts.requeue(worker, unknown, "front")
        self._next_look = now + LOOK
        for mark in [mark for mark, unsure in self._unsure.items() if unsure.until < now]:
            del self._unsure[mark]

    def try_to_confirm(self, worker: str) -> None:
        try:
            self.confirm(worker)
        except ERRORS:
            return  # there will be another turn

    def store_answered(self) -> None:
        if self:
            self.try_to_confirm(self._name())

    def leaving(self, worker: str) -> None:
        if self:
            self.try_to_confirm(worker)  # else a finished task is delivered again
