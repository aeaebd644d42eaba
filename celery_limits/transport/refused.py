"""Messages that can't be processed: back to their queue a few times, then set aside, so that they end no worker.

A queue may hold what is no message at all; that is set aside at once. A message at which Celery itself fails before its
task begins (a body that is no list, an unhashable id) is delivered again, since another worker may know better, and set
aside by the worker that has failed at it `TRIES` times. Only deliveries whose processing has raised are counted, in the
process that they raised in: being restored after a worker was killed counts for nothing, and a worker that goes on
needs nobody else to remember.

If the process dies after a message was set aside and before that is acknowledged, the message is restored, fails again,
and is set aside under the same name: nothing is lost, and nothing is kept twice.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from hashlib import blake2b
from typing import Any

from kombu.exceptions import ContentDisallowed, SerializationError
from kombu.log import get_logger
from redis.exceptions import DataError

from celery_limits.errors import LimitError
from celery_limits.printable import printable

from .leased import Leased
from .payload import Unreadable, dump

__all__ = ["MISREAD", "TRIES", "Refusing"]

logger = get_logger(__name__)

TRIES = 3
"""Deliveries of one message to one process."""

MOST_COUNTED = 1000

MISREAD = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    SerializationError,
    ContentDisallowed,
    DataError,
)
"""What Python, kombu and redis-py raise at a value of the wrong kind or size. Any other error, such as that of a
connection or a result backend, is not the message's."""


class _Counts:
    """How often each message has failed here. Of many, the oldest are forgotten, which costs them some more tries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: OrderedDict[str, int] = OrderedDict()

    def add(self, name: str) -> int:
        with self._lock:
            tries = self._counts.pop(name, 0) + 1
            if tries < TRIES:
                self._counts[name] = tries
                if len(self._counts) > MOST_COUNTED:
                    self._counts.popitem(last=False)
            return tries


_counts = _Counts()


def name_of(raw: Any, queue: str) -> str:
    """The same for each delivery of a message: a redelivery is marked as such, and the store writes into the header."""
    headers, properties = dict(raw.get("headers") or {}), dict(raw["properties"])
    for name in ("redelivered", "limits"):
        headers.pop(name, None)
    if isinstance(info := properties.get("delivery_info"), dict):
        properties["delivery_info"] = {k: v for k, v in info.items() if k != "redelivered"}
    return _digest(dump({**raw, "headers": headers, "properties": properties}), queue)


def _digest(payload: bytes, queue: str) -> str:
    return blake2b(payload + b"\0" + queue.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Refusing(Leased):
    """What a channel does with such a message. Relies on what is in `QoS._delivered`, and not in `_dirty`, being not
    acknowledged yet."""

    sets_aside = False
    """Whether an error of whoever consumes here is the message's. Only a Celery worker says so: to anyone else who
    drains events an exception of its own callback is raised, as by kombu."""

    def refuse(self, field: str, queue: str, raw: Any, error: Exception) -> None:
        """Its consumer has failed at it."""
        if field not in self.qos._delivered or field in self.qos._dirty:
            logger.error("limits: a message from %r was rejected, and then failed: %r", queue, error, exc_info=error)
            return
        name = name_of(raw, queue)
        tries = _counts.add(name)
        if tries < TRIES:
            logger.warning("limits: delivery %d of a message from %r failed, requeued: %r", tries, queue, error)
            self.qos.reject(field, requeue=True)
        else:
            self._set_aside(name, field, queue, dump(raw), error)

    def set_aside(self, field: str, queue: str, payload: bytes, error: Exception) -> None:
        """It is no message, to anyone."""
        self._set_aside(_digest(payload, queue), field, queue, payload, error)

    def _set_aside(self, name: str, field: str, queue: str, payload: bytes, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"[:1000]
        entry = {
            "why": why,
            "queue": queue,
            "message": payload.decode("utf-8", "surrogateescape"),
            "at": str(time.time_ns() // 1000),
        }
        self.scripts.set_aside(f"message {name}", json.dumps(entry))
        logger.error(
            "limits: message %s from %r is set aside, since no task can be made of it; `limits aside` shows it: %s",
            name, queue, printable(why), exc_info=None if isinstance(error, (LimitError, Unreadable)) else error,
        )  # fmt: skip
        if field:
            self.qos.ack(field)
