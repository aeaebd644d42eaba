"""Passages whose release and acknowledgement wait for a process of the pool to be gone."""

from __future__ import annotations

from .passage import Passage
from .port import WorkerLike

__all__ = ["Unsettled"]


class Unsettled:
    """The timer may forget: Celery before 5.7 clears it when the broker's connection is lost."""

    def __init__(self, worker: WorkerLike) -> None:
        self._worker = worker
        self._waiting: set[Passage] = set()

    def add(self, passage: Passage, seconds: float) -> None:
        """Looks again after this time."""
        self._waiting.add(passage)
        self._worker.call_after(seconds, self._settle, passage)

    def _settle(self, passage: Passage) -> None:
        self._waiting.discard(passage)
        passage.host.carry_out(passage, passage.settle())

    def settle_all(self) -> None:
        for passage in tuple(self._waiting):
            self._settle(passage)
