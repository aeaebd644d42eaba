"""What the gate reads of a request beside its chain, taken as foreign input: whoever can publish has written it.

Celery's `Request` passes on whatever stands in properties, headers and body. Each function here returns a value of the
kind that its name says or raises `UnreadableMessage`, which fails the one task.
"""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from celery_limits.errors import UnreadableMessage, shorten
from celery_limits.message.header import HEADER, WORKER_HEADER
from celery_limits.printable import printable
from celery_limits.store.policy import microseconds
from celery_limits.store.store import MAX_RANK
from celery_limits.transport.delivery import QUEUE_MARK

__all__ = [
    "arguments_of",
    "body_of",
    "check",
    "context_of",
    "embed_of",
    "expiry_of",
    "forges_admission",
    "queue_of",
    "rank_of",
    "strip",
]

logger = get_logger(__name__)

LONGEST = 1e9
"""Seconds of a time limit. The event loop can't sleep for longer than some such time."""


def check(request: Any) -> None:
    """What Celery relies on from the moment it hands the request to the pool. It looks at none of this before; a value
    of the wrong kind ends the worker when the body is accepted, or leaves the message unacknowledged."""
    for what, value in (("task id", request.id), ("name", request.name)):
        if not isinstance(value, str):
            raise UnreadableMessage(f"the {what} {shorten(value)} is not a string")
    _check_time_limits(request.time_limits)
    _check_embed(embed_of(request))
    if forges_admission(request):
        raise UnreadableMessage("the body says which slots the task holds, which only the worker may")


def _check_embed(embed: Any) -> None:
    """Where bodies run in the worker's own process, callbacks of the wrong kind make Celery drop the message."""
    if embed is None:
        return
    if not isinstance(embed, dict):
        raise UnreadableMessage(f"the third part of the body is not a mapping but {shorten(embed)}")
    for name in ("callbacks", "errbacks", "chain"):
        found = embed.get(name)
        if found and not (isinstance(found, (list, tuple)) and all(map(_is_signature, found))):
            raise UnreadableMessage(f"the {name} {shorten(found)} are not a list of signatures")
    if (chord := embed.get("chord")) and not _is_signature(chord):
        raise UnreadableMessage(f"the chord {shorten(chord)} is not a signature")


def context_of(request: Any) -> Any:
    """What the result backend is told of a request that fails. Callbacks that are none stay out of it: of a text in
    their place Celery would call each character."""
    try:
        _check_embed(embed_of(request))
    except UnreadableMessage:
        return None
    return request._context


_PARTS = (("task", str), ("args", (list, tuple)), ("kwargs", dict), ("options", dict))


def _is_signature(value: Any) -> bool:
    """A canvas within a signature is left to Celery."""
    return isinstance(value, dict) and all(
        value.get(part) is None or isinstance(value[part], kind) for part, kind in _PARTS
    )


def _check_time_limits(limits: Any) -> None:
    if not isinstance(limits, (list, tuple)) or len(limits) != 2:
        raise UnreadableMessage(f"the time limits {shorten(limits)} are not a pair")
    for limit in limits:
        if limit is not None and not (isinstance(limit, (int, float)) and abs(limit) <= LONGEST):  # nor is NaN
            raise UnreadableMessage(f"the time limit {shorten(limit)} is not a number of seconds")


def embed_of(request: Any) -> Any:
    _, _, embed = request._payload  # which may be anything that has three parts
    return embed


def forges_admission(request: Any) -> bool:
    """Celery merges the third part of the body into the request that the body's process sees. There the gate's word,
    which ticket is to be released and by whom, must not be replaced."""
    embed = embed_of(request)
    return isinstance(embed, dict) and (HEADER in embed or WORKER_HEADER in embed)


def arguments_of(request: Any) -> tuple[Any, Any]:
    args, kwargs = request.args, request.kwargs
    if args is not None and not isinstance(args, (list, tuple)):
        raise UnreadableMessage(f"the positional arguments are not a list but {shorten(args)}")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise UnreadableMessage(f"the keyword arguments are not a mapping but {shorten(kwargs)}")
    return args, kwargs


def body_of(request: Any) -> bytes | memoryview | str:
    body = request.message.body
    if isinstance(body, (bytes, bytearray, memoryview, str)):
        return bytes(body) if isinstance(body, bytearray) else body
    raise UnreadableMessage(f"the body is neither bytes nor text but {shorten(body)}")


def queue_of(request: Any) -> str:
    """The one queue that the message came from (see `steps.QueueMarks`)."""
    queue = getattr(request.message, QUEUE_MARK, None) or request.delivery_info["routing_key"] or ""
    if not isinstance(queue, str):
        raise UnreadableMessage(f"the routing key {shorten(queue)} is not a string")
    return queue


def rank_of(request: Any, app: Any) -> int:
    """Celery's priority as a rank, lower first: on Redis 0 is the highest priority, on AMQP the lowest."""
    priority = request.delivery_info.get("priority")
    if priority is None:
        priority = app.conf.task_default_priority or 0
    try:
        rank = int(priority)
    except (TypeError, ValueError, OverflowError):
        raise UnreadableMessage(f"the priority {shorten(priority)} is not a whole number") from None
    if request.message.channel is not None and not hasattr(request.message.channel, "priority_steps"):
        rank = MAX_RANK - rank
    return min(max(rank, 0), MAX_RANK)


def expiry_of(request: Any) -> int | None:
    """In microseconds since 1970."""
    expires = request.expires
    if not expires:
        return None
    try:
        return microseconds(expires.timestamp())
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise UnreadableMessage(f"the time {shorten(expires)} at which it expires is not one") from None


def strip(request: Any) -> None:
    """What no task here declares does not limit it, and must not pass for an admission when its body ends."""
    request.request_dict.pop(WORKER_HEADER, None)
    if request.request_dict.pop(HEADER, None) is not None:
        logger.warning(
            "limits: %s[%s] carries limits that its task does not declare here, and limits_trust_headers is False: "
            "it runs without", printable(request.name), printable(request.id),
        )  # fmt: skip
