"""What limits need of Celery's pools that run bodies in the worker's own process (threads, gevent, eventlet, solo) and
the pools do not do by themselves.

A task that is revoked with `terminate` before its body has begun is to be terminated when it is accepted. The one to do
so is the very thread or greenlet of the body: a thread can't be terminated, and a greenlet ends itself, before or amid
all that is to be done about it. Celery then drops the task without a word. If it is acknowledged late, its worker keeps
it; on our transport, where no visibility timeout takes it away, for as long as it lives. Here it ends as revoked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.concurrency.base import BasePool
from celery.platforms import signals
from celery.worker.request import Request

__all__ = ["NotNow", "can_terminate", "install", "not_now_in"]

_MARK = "__celery_limits__"


class NotNow(BaseException):
    """Raised out of `on_accepted`, so that the pool does not run the body. Nobody's error."""


def not_now_in(pool_cls: Any) -> type[NotNow]:
    """Green pools print what ends a greenlet, unless it is a GreenletExit."""
    if not pool_cls.is_green:
        return NotNow
    from greenlet import GreenletExit  # noqa: PLC0415  (there only with a green pool)

    return type("NotNow", (NotNow, GreenletExit), {})


def install() -> None:
    """Relies on `Request.terminate(pool, signal)` being what is called then."""
    if not hasattr(Request, _MARK):
        setattr(Request, _MARK, True)
        Request.terminate = _ending_as_revoked(Request.terminate)


def _ending_as_revoked(terminate: Callable[..., None]) -> Callable[..., None]:
    """Relies on `_terminate_on_ack` being what `on_accepted` calls it for, once `time_start` is set and before the body
    runs."""

    def end_or_terminate(request: Any, pool: Any, signal: Any = None) -> None:
        if request._terminate_on_ack is None or not request.time_start or pool.uses_semaphore:
            return terminate(request, pool, signal)
        request._announce_revoked("terminated", True, signals.signum(signal or "TERM"), False)
        raise not_now_in(pool)

    return end_or_terminate


def can_terminate(pool: Any) -> bool:
    """Whether it can end one body and nothing else."""
    return getattr(pool.terminate_job, "__func__", None) is not BasePool.terminate_job
