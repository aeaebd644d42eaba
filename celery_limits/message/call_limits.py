"""Limits of one call (`apply_async(limits=...)`) and how they stay with the task until it ends.

A retry or a `replace` publishes a new message with the same task id, and Celery does not keep the `limits` option for
it. So a message with limits of its call carries them in a header of its own, `limits_call`: the task's name and id,
and the declared limits. What is published later for the same task id resolves its chain from these; where one of them
has a callable, which cannot travel, it takes over the links that the call resolved to.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery_limits.declare.chain import KINDS, Link
from celery_limits.declare.limits import Limit
from celery_limits.declare.workers_size import FOLLOWS, WORKERS
from celery_limits.errors import CorruptChain, DeclarationError, shorten

from .header import HEADER, read_header

__all__ = ["BEGUN_HEADER", "CALL_HEADER", "Call", "call_header", "inherited_call", "read_begun", "read_call"]

CALL_HEADER = "limits_call"
BEGUN_HEADER = "limits_begun"
"""On a retry, where headers are not trusted: the store's seal that the task has begun (`store/begun.py`)."""
_SEAL = re.compile(r"[0-9a-f]{20}")
_FIELDS = frozenset({"task", "id", "declared"})
_KINDS: dict[str, type[Limit]] = {cls.kind: cls for cls in KINDS}


class Call(NamedTuple):
    """The limits of the call that a message belongs to."""

    task: str
    declared: tuple[Limit, ...] | None
    """None if one of them can't travel."""
    links: tuple[Link, ...] | None
    """What they resolved to when the message was published; None if the worker removed them, since it trusts none."""


def call_header(task: str, task_id: str, limits: Sequence[Limit] | None) -> dict[str, Any]:
    """The header value. `limits=None`: only the resolved links can be inherited."""
    declared = None if limits is None else [_encode(limit) for limit in limits]
    if declared is not None and None in declared:
        declared = None
    return {"task": task, "id": task_id, "declared": declared}


def _encode(limit: Limit) -> dict[str, Any] | None:
    """Plain values that any broker takes as a header; None for a limit with a callable."""
    fields: dict[str, Any] = {"kind": limit.kind}
    for field in dataclasses.fields(limit):  # type: ignore[arg-type]  # every kind is a dataclass
        value = getattr(limit, field.name)
        if callable(value):
            return None
        if value != field.default:
            fields[field.name] = FOLLOWS if value is WORKERS else value
    return fields


def read_call(raw: object, task_id: str) -> tuple[str, tuple[Limit, ...] | None]:
    """The task's name and the declared limits in the header of a message of this task, or `CorruptChain`."""
    if not isinstance(raw, dict) or raw.keys() != _FIELDS or not isinstance(raw["task"], str):
        raise CorruptChain(f"corrupt {CALL_HEADER} header: {shorten(raw)}")
    if raw["id"] != task_id:
        raise CorruptChain(f"corrupt {CALL_HEADER} header: it is of the task {shorten(raw['id'])}, not of this one")
    declared = raw["declared"]
    if declared is None:
        return raw["task"], None
    if not isinstance(declared, (list, tuple)) or not declared:
        raise CorruptChain(f"corrupt {CALL_HEADER} header: no list of limits but {shorten(declared)}")
    return raw["task"], tuple(_decode(fields) for fields in declared)


def _decode(fields: Any) -> Limit:
    try:
        values = dict(fields)
        if values.get("limit") == FOLLOWS:
            values["limit"] = WORKERS
        return _KINDS[values.pop("kind")](**values)
    except (KeyError, TypeError, ValueError, DeclarationError) as error:
        raise CorruptChain(f"corrupt {CALL_HEADER} header: {shorten(fields)}: {shorten(error)}") from None


def read_begun(raw: object) -> str:
    """The seal in the header, for the store to check; empty for whatever can't be one."""
    return raw if isinstance(raw, str) and _SEAL.fullmatch(raw) else ""


def inherited_call(app: Any, task_id: str, headers: Mapping[str, Any] | None) -> Call | None:
    """The call that a message belongs to which is about to be published with this task id; None for a new call.

    `headers` are the custom headers of the publish: Celery gives a retry those of its request. A replacement has none,
    but it is published by the body of the task that it replaces.
    """
    if not _is_of(headers, task_id):
        current = app.current_worker_task
        headers = vars(current.request) if current is not None else None
        if not _is_of(headers, task_id):
            return None
    assert headers is not None
    task, declared = read_call(headers[CALL_HEADER], task_id)
    raw = headers.get(HEADER)
    return Call(task, declared, None if raw is None else read_header(raw).links)


def _is_of(headers: Mapping[str, Any] | None, task_id: str) -> bool:
    raw = headers.get(CALL_HEADER) if headers else None
    return raw is not None and (not isinstance(raw, dict) or raw.get("id") == task_id)
