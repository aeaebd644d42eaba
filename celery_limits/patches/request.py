"""Requests in pools that run bodies in the worker's own process: threads, gevent, eventlet, solo.

A task that is revoked with `terminate` before its body has begun is to be terminated when it is accepted. The one to do
so is the very thread or greenlet of the body: a thread can't be terminated, and a greenlet ends itself, before or amid
all that is to be done about it. Celery then drops the task without a word. If it is acknowledged late, its worker keeps
it; on our transport, where no visibility timeout takes it away, for as long as it lives. Here it ends as revoked.
One without limits is kept nevertheless where its result can't be stored; one with limits is sent back by the gate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.platforms import signals

from .registry import patch

__all__ = ["NotNow", "not_now_in"]


class NotNow(BaseException):
    """Raised out of `on_accepted`, so that the pool does not run the body. It is no error."""


def not_now_in(pool_cls: Any) -> type[NotNow]:
    """Green pools print what ends a greenlet, unless it is a GreenletExit."""
    if not pool_cls.is_green:
        return NotNow
    from greenlet import GreenletExit  # noqa: PLC0415  (there only with a green pool)

    return type("NotNow", (NotNow, GreenletExit), {})


class _Bar:
    """Stands in for the pool where a task is to be terminated as soon as it is accepted."""

    def __init__(self, request: Any, pool: Any) -> None:
        self._request, self._pool = request, pool

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        self._request._announce_revoked("terminated", True, signal, False)
        raise not_now_in(self._pool)


@patch(
    "celery.worker.request:Request.terminate",
    takes="self pool signal",
    why="A task that is terminated before its body begins ends as revoked; Celery drops it and reports nothing.",
)
def bar(terminate: Callable[..., None], request: Any, pool: Any, signal: Any = None) -> None:
    """Relies on `on_accepted` setting `time_start` and then, before the body runs, terminating the request with what is
    in `_terminate_on_ack`, a pool and a signal, by that pool's `terminate_job`."""
    if request.time_start or pool.uses_semaphore:
        return terminate(request, pool, signal)
    request._terminate_on_ack = _Bar(request, pool), signals.signum(signal or "TERM")
    return None
