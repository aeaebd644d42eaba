"""Deliveries that wait for a store that is away, each with a prefetch place of its own, so that others go on."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from .passage import Passage
from .port import QosLike, WorkerLike

__all__ = ["Deferred"]


class _Waiting(NamedTuple):
    """`widened` is the prefetch count that was raised for it."""

    passage: Passage
    widened: QosLike | None


class Deferred:
    def __init__(self, worker: WorkerLike) -> None:
        self._worker = worker
        self._coming: set[Passage] = set()  # the event loop has not come to keep them
        self._waiting: deque[_Waiting] = deque()
        self._returning: set[Passage] = set()  # no longer deferred, and not asked yet: they wait for a pool place
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, passage: Passage) -> None:
        """Called from any thread."""
        self._coming.add(passage)
        self._worker.call_soon(self._keep, passage)

    def _keep(self, passage: Passage) -> None:
        """In the consumer's own thread, since that is the only one which may change the prefetch count."""
        if passage not in self._coming:  # dropped since
            return
        self._coming.discard(passage)
        qos = self._worker.qos
        before = qos.value
        grown = qos.increment_eventually() > before
        self._waiting.append(_Waiting(passage, qos if grown else None))

    def remove(self, passage: Passage) -> None:
        """The store is asked about it now, or will not be any more."""
        self._returning.discard(passage)

    def drop(self) -> set[Passage]:
        """The connection that delivered them is gone, so the broker delivers them again. The passages.

        With it a worker forgets who waits for a place of the pool, and the event loop who is to be kept; in pools that
        queue by themselves they go on, since a thread may have asked while the connection was closed.
        """
        dropped = {waiting.passage for waiting in self._waiting}
        self._waiting.clear()
        if self._worker.forked:
            dropped |= self._returning | self._coming
            self._returning.clear()
            self._coming.clear()
        return dropped

    def come_back(self) -> None:
        """The store answers: it is asked about them now. Called from any thread, and often."""
        if self._waiting:
            self._worker.call_soon(self._return_all)

    def close(self) -> None:
        """There is no pool any more: their messages go back."""
        self._is_closed = True

    def _return_all(self) -> None:
        if self._is_closed:
            return
        for _ in range(len(self._waiting)):
            waiting = self._waiting.popleft()
            if waiting.widened is not None:
                waiting.widened.decrement_eventually()
            self._returning.add(waiting.passage)
            self._worker.resubmit(waiting.passage.request)
