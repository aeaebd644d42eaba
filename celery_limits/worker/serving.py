"""What this worker serves: the queues that it consumes, and the places of its pool, for the store to know.

Relies on `Consumer._queues` of kombu having the queues that a consumer consumes (add_consumer and cancel_consumer
change it), on `pool.num_processes` of a prefork pool and `pool.limit` of any other following grow and shrink, and on
`autoscaler.max_concurrency`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery_limits.store import StoreError
from celery_limits.store.serving import Serving

__all__ = ["Service"]


class Service:
    """Of one worker. Called from any thread."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._consumer: Any = None
        self.lease: Any = None

    def begin(self, consumer: Any) -> None:
        """It is about to consume, and the store knows before the first message comes; one that is away hears later."""
        self._consumer = consumer
        if self.lease is not None and self.lease.held:
            with suppress(StoreError):
                self.lease.tell_serving()

    def end(self) -> None:
        """Its connection is lost, or it stops."""
        self._consumer = None

    def __call__(self) -> Serving:
        return Serving(self._places(), self._queues())

    def _queues(self) -> tuple[str, ...]:
        task_consumer = getattr(self._consumer, "task_consumer", None)
        while task_consumer is not None:
            try:
                return tuple(sorted(task_consumer._queues))
            except RuntimeError:  # a queue was added meanwhile
                continue
        return ()

    def _places(self) -> int:
        """Those that the pool may have: one that is scaled by load grows only when more tasks come than it has."""
        autoscaler = getattr(self._worker, "autoscaler", None)
        if autoscaler is not None:
            return int(autoscaler.max_concurrency)
        pool = getattr(self._worker, "pool", None)
        if pool is None:
            return 0
        if self._worker.pool_cls.uses_semaphore:
            return int(pool.num_processes) if pool._pool is not None else 0
        return int(pool.limit or 0)
