"""Straight into the line: what the scripts need to know of a limited message that has not come to the gate yet."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from celery_limits.errors import CorruptChain
from celery_limits.message.header import HEADER, Stamp, read_header, ticket_in
from celery_limits.store.policy import microseconds
from celery_limits.store.record import chain_fields, record_rest
from celery_limits.store.script_runner import Arg
from celery_limits.store.store import MAX_RANK

__all__ = ["RAW", "parsed", "stamp_of"]

RAW = 0
"""The `cut` of a message in kombu's own JSON: see store/lua/include/payload.lua."""


def stamp_of(message: Any, queue: str) -> tuple[Arg, ...]:
    """Task id, nonce, rest of the record, and links; nothing for one that must not wait in line, or can't be read: it
    goes through its queue, and the gate deals with it."""
    headers = message["headers"]
    if headers.get("eta") is not None:  # it takes no place before its time
        return ()
    if "task" not in headers:  # protocol 1 has eta and expires in the body
        return ()
    try:
        stamp = headers[HEADER]
        header = stamp.header if type(stamp) is Stamp else read_header(stamp)
        until = _until(headers.get("expires"))
        priority = message["properties"].get("priority")
        rank = 0 if priority is None else min(max(int(priority), 0), MAX_RANK)
    except (CorruptChain, TypeError, ValueError, OverflowError):
        return ()
    chain, fields, _ = chain_fields(header.links, queue)
    task_id, _, nonce = ticket_in(header.ticket, queue).rpartition(".")
    rest = record_rest(
        chain, rank=rank, delivery="", queue=queue, until=until, since=time.time_ns() // 1000, late=False, cut=RAW
    )
    return task_id, nonce, rest, *fields


def _until(expires: Any) -> str:
    if expires is None:
        return ""
    moment = parsed(expires) if isinstance(expires, str) else expires
    if not isinstance(moment, datetime):
        raise ValueError(f"{expires!r} is no time")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return str(microseconds(moment.timestamp()))


def parsed(text: str) -> datetime:
    """Python before 3.11 does not know the Z of ISO 8601."""
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)
