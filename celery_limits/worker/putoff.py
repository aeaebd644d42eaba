"""Deliveries that wait for a store that is away, each with a prefetch place of its own, so that others go on."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

__all__ = ["PutOffs"]


class _PutOff(NamedTuple):
    """`widened` is the prefetch count that was raised for it."""

    request: Any
    widened: Any


class PutOffs:
    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._waiting: deque[_PutOff] = deque()
        self._walking: set[Any] = set()  # no longer put off, and not asked yet: they wait for a place of the pool
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Any) -> None:
        """Called from any thread."""
        self._worker.consumer.call_soon(self._keep, request)

    def _keep(self, request: Any) -> None:
        """In the consumer's own thread, since that is the only one which may change the prefetch count."""
        qos = self._worker.consumer.qos
        before = qos.value
        grown = qos.increment_eventually() > before
        self._waiting.append(_PutOff(request, qos if grown else None))

    def asked(self, request: Any) -> None:
        self._walking.discard(request)

    def drop(self) -> set[Any]:
        """The connection that delivered them is gone, so the broker delivers them again. The requests.

        With it a worker forgets who waits for a place of the pool; in pools that queue by themselves they go on.
        """
        dropped = {put_off.request for put_off in self._waiting}
        self._waiting.clear()
        if self._worker.pool_cls.uses_semaphore:
            dropped |= self._walking
            self._walking.clear()
        return dropped

    def come_back(self) -> None:
        """The store answers: they are walked now. Called from any thread, and often."""
        if self._waiting:
            self._worker.consumer.call_soon(self._walk)

    def close(self) -> None:
        """There is no pool any more: their messages go back."""
        self._is_closed = True

    def _walk(self) -> None:
        if self._is_closed:
            return
        for _ in range(len(self._waiting)):
            put_off = self._waiting.popleft()
            if put_off.widened is not None:
                put_off.widened.decrement_eventually()
            self._walking.add(put_off.request)
            self._worker.process_task(put_off.request)
