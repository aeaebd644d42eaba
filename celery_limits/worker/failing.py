"""Ending a request that can't run: its result is a failure, its message is rejected, and the worker goes on."""

from __future__ import annotations

from typing import Any

from celery import states
from celery.utils.log import get_logger
from celery.worker.state import task_ready

from celery_limits.errors import LimitError, UnreadableMessage, shorten
from celery_limits.printable import printable
from celery_limits.transport.delivery import QUEUE_MARK

from .untrusted import context_of

__all__ = ["fail", "refuse", "unreadable"]

logger = get_logger(__name__)


def unreadable(error: Exception) -> LimitError:
    """What failed while a message was read or admitted, as the error of its task."""
    if isinstance(error, LimitError):
        return error
    return UnreadableMessage(f"the message can't be processed: {type(error).__name__}: {shorten(str(error))}")


def fail(request: Any, error: LimitError) -> None:
    """One log line. A chord, a group or a chain hears of it through the backend, as from Celery."""
    told = _store(request, error)
    logger.error("limits: %s[%s] can't run: %s%s", *map(printable, (request.name, request.id, error, told)))
    task_ready(request)
    request.reject(requeue=False)


def _store(request: Any, error: LimitError) -> str:
    """What is to be said about the result: nothing, if it is stored. Id, chord and callbacks are foreign input too, and
    the backend may be away; neither may end the worker."""
    backend, store = request.task.backend, request.store_errors
    try:
        backend.mark_as_failure(request.id, error, request=context_of(request), store_result=store)
        return ""
    except Exception as trouble:
        problem = f"; its callbacks could not be told ({type(trouble).__name__}: {shorten(str(trouble))})"
    try:
        if store:
            backend.store_result(request.id, error, states.FAILURE)
    except Exception as trouble:
        problem = f"; its result could not be stored ({type(trouble).__name__}: {shorten(str(trouble))})"
    return problem


def refuse(request: Any, error: Exception) -> None:
    """Celery itself fails at it, and would end the worker: our transport delivers it again, or sets it aside."""
    message = request.message
    task_ready(request)
    message.channel.refuse(message.delivery_tag, getattr(message, QUEUE_MARK, ""), message._raw, error)
