"""Delays in the store: what the scripts need to know of a task message whose eta has not come.

An eta is Celery's, in a header (message protocol 2) or in the body (protocol 1), written by any producer: it is read as
foreign input. Whatever can't be read goes its ordinary way, through the queue, and Celery's worker judges it.
"""

from __future__ import annotations

import base64
import json
import os
import time
from datetime import datetime, timezone
from typing import Any, NamedTuple

from celery_limits.declare.chain import Link
from celery_limits.errors import LimitError
from celery_limits.message.header import HEADER, Header, Stamp, check_ticket, read_header, ticket_in
from celery_limits.store.policy import microseconds
from celery_limits.store.record import chain_fields, record_rest
from celery_limits.store.script_runner import Arg
from celery_limits.store.store import MAX_RANK

from .early_park import RAW, parsed

__all__ = ["Delay", "delay_of", "is_far"]

SOON = 1.0
"""Seconds. What is due earlier goes through its queue; as in delay.lua, which has the last word."""

_UNREADABLE = (LimitError, KeyError, TypeError, ValueError, OverflowError, AttributeError)


class Delay(NamedTuple):
    """When a message is due and what time it is, both by this process's clock and in microseconds since 1970; and its
    ticket and its links, as delay.lua takes them.
    """

    due: int
    now: int
    ticket: tuple[Arg, ...]
    links: tuple[Arg, ...]


def is_far(delay: Delay) -> bool:
    return delay.due > delay.now + microseconds(SOON)


def delay_of(message: Any, queue: str) -> Delay | None:
    """None for a message without an eta, and for one that can't be delayed."""
    try:
        headers = message["headers"]
        if headers.get("eta") is None and "task" in headers:  # which is nearly every message
            return None
        task_id, eta = _task_of(message)
        return None if eta is None else _delay(message, queue, task_id, eta)
    except _UNREADABLE:
        return None


def _task_of(message: Any) -> tuple[Any, Any]:
    """Task id and eta; an eta of None says that there is nothing to delay."""
    headers = message["headers"]
    if "task" in headers:
        return headers["id"], headers["eta"]
    if message.get("content-type") != "application/json" or headers.get("compression"):
        return None, None
    body = base64.b64decode(message["body"]) if message["properties"].get("body_encoding") == "base64" else b""
    if b'"eta"' not in body or b'"eta": null' in body:
        return None, None
    read = json.loads(body)
    return (read["id"], read["eta"]) if isinstance(read, dict) and "task" in read else (None, None)


def _delay(message: Any, queue: str, task_id: Any, eta: Any) -> Delay:
    moment = parsed(eta) if isinstance(eta, str) else eta
    if not isinstance(moment, datetime):
        raise TypeError(f"{eta!r} is no time")
    if moment.tzinfo is None:  # as a worker reads it
        moment = moment.replace(tzinfo=timezone.utc)
    header, links = _header_of(message["headers"]), tuple[Link, ...]()
    if header is None:
        ticket = check_ticket(f"{task_id}.{os.urandom(6).hex()}")
    else:
        ticket, links = header.ticket, header.links
    chain, fields, _ = chain_fields(links)
    priority = message["properties"].get("priority")
    rank = 0 if priority is None else min(max(int(priority), 0), MAX_RANK)
    now, cut = time.time_ns() // 1000, RAW if links else None
    rest = record_rest(chain, rank=rank, delivery="", queue=_plain(queue), until="", since=now, late=False, cut=cut)
    owner, _, nonce = ticket_in(ticket, queue).rpartition(".")
    if owner != task_id:
        raise ValueError(f"the ticket {ticket!r} is not one of the task {task_id!r}")
    return Delay(microseconds(moment.timestamp()), now, (owner, nonce, rest), tuple(fields))


def _header_of(headers: Any) -> Header | None:
    """The chain of a limited message that has not started; None for a message without limits."""
    if HEADER not in headers:
        return None
    stamp = headers[HEADER]
    header = stamp.header if type(stamp) is Stamp else read_header(stamp)
    if header.at:
        raise ValueError("it has started its chain")
    return header


def _plain(queue: str) -> str:
    if "\t" in queue or "\n" in queue:
        raise ValueError(f"the queue {queue!r} can't be in a record")
    return queue
