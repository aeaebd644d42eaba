"""Refreshing floating limits: a task of our own, run in the pool of the worker that the store has asked.

It does not come through the broker: the worker hands it to its own pool, with a time limit, so it waits behind no
queue. Only functions that some task of this app declares are ever imported; a name in the store or in a message is
only compared.
"""

from __future__ import annotations

import inspect
from typing import Any
from uuid import uuid4

from celery import shared_task
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from kombu.message import Message
from kombu.serialization import dumps

from celery_limits.declare.limits import MAX_SIZE, FloatingConcurrency, whole
from celery_limits.errors import LimitError, Refused
from celery_limits.printable import printable
from celery_limits.store.outcomes import Refresh, Stale

__all__ = ["REFRESH", "hand_to_pool"]

logger = get_logger(__name__)
REFRESH = "celery_limits.refresh"


@shared_task(name=REFRESH, bind=True, ignore_result=True, acks_late=False, max_retries=0)
def refresh(self: Any, key: str, token: int, name: str, worker: str) -> int | None:
    """Calls the refresh function of one key and tells the store what it said."""
    from celery_limits.app.handle import Limits  # noqa: PLC0415  (the app's handle knows this task)

    limits = Limits(self.app)
    try:
        size = _ask(limits, key, name)
    except Exception as error:
        outcome = limits.store.refreshed(key, worker, token, None)
        said = (key, printable(name), outcome, error)
        logger.exception("limits: refreshing %r with %s failed (%r): %r; its size stays", *said)
        return None
    outcome = limits.store.refreshed(key, worker, token, size)
    if not isinstance(outcome, Stale):
        limits.releaser.follow_up(outcome.after)
    return size


def _ask(limits: Any, key: str, name: str) -> int:
    known = {
        limit.refresh
        for declared in limits.declared()
        for limit in declared.limits
        if isinstance(limit, FloatingConcurrency)
    }
    if name not in known:
        raise LimitError(f"no task of this app declares the refresh function {name!r}")
    function = symbol_by_name(name)
    wants_key = bool(inspect.signature(function).parameters)
    said = function(key) if wants_key else function()
    try:
        return whole(said, "the new size", 0, MAX_SIZE)
    except Refused as error:
        raise LimitError(str(error)) from None


def hand_to_pool(consumer: Any, worker: str, asked: Refresh, seconds: float) -> None:
    """Delivers the task to this very worker, as if its broker had."""
    app = consumer.app
    args = (asked.key, asked.token, asked.name, worker)
    headers, properties, body, _ = app.amqp.as_task_v2(uuid4().hex, REFRESH, args=args, time_limit=seconds)
    content_type, encoding, data = dumps(body, serializer="json")
    message = Message(
        body=data,
        content_type=content_type,
        content_encoding=encoding,
        headers=headers,
        properties=properties,
        delivery_info={"exchange": "", "routing_key": "", "redelivered": False},
    )
    consumer.strategies[REFRESH](message, None, _done, _done, ())


def _done(*_: Any, **__: Any) -> None:
    """There is no broker to acknowledge to."""
