"""What this process could not tell Redis about its deliveries, until it can.

A connection may break after the script has run: then a fetch has brought messages that nobody here knows of, or an
acknowledgement is not known to have arrived. Neither may wait for the end of the process, since its lease goes on.
Debts are paid before the next fetch, and by the lease's housekeeping where nothing is fetched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import NamedTuple

from redis import exceptions as redis_errors

from .courier import Courier, number_of

__all__ = ["ERRORS", "Debts"]

ERRORS = (redis_errors.RedisError, OSError)

WATCH = 10.0
"""Seconds for which a fetch whose answer was lost may still be carried out by a server that was slow to read it."""

LOOK = 0.5
"""Seconds between two looks for what such a fetch has brought."""


class _Unsure(NamedTuple):
    known: frozenset[str]
    until: float


class Debts:
    """Of one member, `whose` name changes when its lease is lost. Then all that was owed before is void, since others
    have seen to it; and so is what a call of before still brings up."""

    def __init__(self, whose: Callable[[], str]) -> None:
        self._lock = threading.Lock()
        self._whose = whose
        self._courier: Courier | None = None
        self._worker = ""
        self._acks: set[str] = set()
        self._back: dict[str, str] = {}
        self._unsure: dict[str, _Unsure] = {}
        self._next_look = 0.0

    def __bool__(self) -> bool:
        return bool(self._acks or self._back or self._unsure)

    def acknowledge(self, courier: Courier, worker: str, fields: Iterable[str]) -> None:
        with self._lock:
            if self._owes(courier, worker):
                self._acks.update(fields)

    def give_back(self, courier: Courier, worker: str, fields: Iterable[str], where: str) -> None:
        with self._lock:
            if self._owes(courier, worker):
                self._back.update(dict.fromkeys(fields, where))

    def lose_sight(self, courier: Courier, worker: str, mark: str, known: Iterable[str]) -> None:
        """A fetch under this mark was not answered. What it brought, beside what is known, goes back."""
        with self._lock:
            if self._owes(courier, worker):
                self._unsure[mark] = _Unsure(frozenset(known), monotonic() + WATCH)
                self._next_look = 0.0

    def _owes(self, courier: Courier, worker: str) -> bool:
        """Whether it is a debt of the present life."""
        if worker != self._whose():
            return False
        if worker != self._worker:
            self._void()
        self._courier, self._worker = courier, worker
        return True

    def _void(self) -> None:
        self._acks.clear()
        self._back.clear()
        self._unsure.clear()

    def pay(self, worker: str) -> None:
        """All or nothing is forgotten: whatever was paid already may be paid again."""
        with self._lock:
            if worker != self._worker or self._courier is None:
                return self._void()
            if self._acks:
                self._courier.acknowledge(worker, sorted(self._acks))
                self._acks.clear()
            self._look(self._courier, worker)  # what came last goes to the front first
            for where in ("front", "end"):
                fields = [field for field, to in self._back.items() if to == where]
                self._courier.requeue(worker, sorted(fields, key=number_of), where)
            return self._back.clear()

    def _look(self, courier: Courier, worker: str) -> None:
        now = monotonic()
        if not self._unsure or now < self._next_look:
            return
        unknown = [
            field
            for field in courier.fetched_by(worker)
            if (unsure := self._unsure.get(field.partition(".")[2])) is not None and field not in unsure.known
        ]
        courier.requeue(worker, unknown, "front")
        self._next_look = now + LOOK
        for mark in [mark for mark, unsure in self._unsure.items() if unsure.until < now]:
            del self._unsure[mark]

    def try_to_pay(self, worker: str) -> None:
        try:
            self.pay(worker)
        except ERRORS:
            return  # there will be another turn
