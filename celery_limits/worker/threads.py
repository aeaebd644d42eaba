"""Free threads of a pool of threads, for a channel that leaves to other workers what it could not begin at once.

Relies on `BasePool.apply_async` calling `self.on_apply`, on the `ApplyResult` that `TaskPool.on_apply` of the pool of
threads returns having its future as `f`, and on `pool.limit` being the number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Threads", "leave_to_free_threads"]


class Threads:
    """Counts the jobs that a pool of threads was given and has not finished. There is one per pool, however often its
    worker reconnects."""

    def __init__(self, pool: Any) -> None:
        self._pool, self._apply, self._given = pool, pool.on_apply, 0
        self._lock = threading.Lock()
        self.when_free: Callable[[], Any] = lambda: None
        """Called in the thread that has become free."""

    @classmethod
    def of(cls, pool: Any) -> Threads:
        counting = getattr(pool.on_apply, "__self__", None)
        if not isinstance(counting, cls):
            counting = cls(pool)
            pool.on_apply = counting.apply
        return counting

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._given += 1
        try:
            result = self._apply(*args, **kwargs)
        except BaseException:
            self._finish()
            raise
        result.f.add_done_callback(self._finish)
        return result

    def _finish(self, _: Any = None) -> None:
        with self._lock:
            self._given -= 1
        self.when_free()

    def has_place(self) -> bool:
        return self._given < int(self._pool.limit)


def leave_to_free_threads(consumer: Any) -> None:
    """With every thread busy, a task that was granted just now is left to a worker that can begin it; the loop looks
    again as soon as a thread is free."""
    channel, hub, threads = consumer.task_consumer.channel, consumer.hub, Threads.of(consumer.pool)

    def look() -> None:
        if channel.is_resting:
            hub.call_soon(lambda: None)

    channel.has_place, threads.when_free = threads.has_place, look
