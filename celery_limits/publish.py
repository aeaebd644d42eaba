"""Publishing: every message of a limited task leaves with its chain on the header.

The chain is resolved anew for each publish, so a retry, a `replace` or a canvas step never inherits another's. What
can't be resolved is raised to whoever publishes. A message of a task that this process does not know goes out without;
the worker, which knows the task, resolves it there.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

from kombu.utils import json as kombu_json

from .chain import Declared, Link, declare, resolve_chain, resolve_chunk
from .errors import DeclarationError, ResolutionError
from .limits import Concurrency, FloatingConcurrency, Limit, RateLimit
from .metrics.meter import SENT_HEADER
from .wire import HEADER, Header, Stamp, new_ticket

__all__ = ["MAPS", "declared_of", "links_of", "make_serializable", "stamp"]

_ANY_CALL = inspect.signature(lambda *args, **kwargs: None)  # noqa: ARG005
_DECLARED = "__limits_declared__"
MAPS = frozenset({"celery.map", "celery.starmap"})


def signature_of(task: Any) -> inspect.Signature:
    """What the task is called with: its body's signature, without `self` for a bound one."""
    function = getattr(task, "__wrapped__", None) or task.run
    return inspect.signature(function)


def declared_of(task: Any) -> Declared | None:
    """A task's limits, bound to its signature; None for a task without. Declared once per task and list."""
    limits = getattr(task, "limits", None)
    if limits is None:
        return None
    known = task.__dict__.get(_DECLARED) or type(task).__dict__.get(_DECLARED)
    if known is None or known[0] is not limits:
        known = (limits, declare(task.name, limits, signature_of(task)))
        setattr(type(task), _DECLARED, known)
    declared: Declared = known[1]
    return declared


def links_of(
    app: Any, name: str, args: Any, kwargs: Any, override: Sequence[Limit] | None = None
) -> tuple[Link, ...] | None:
    """The links of one call of a task; None if it has no limits."""
    inner, parts = _parts_of(name, kwargs)
    if parts == []:  # a map over nothing calls nothing
        return None
    task = app._tasks.get(inner)
    if override is not None:
        declared: Declared | None = declare(name, override, signature_of(task) if task else _ANY_CALL)
    else:
        declared = declared_of(task) if task is not None else None
    if declared is None:
        return None
    return resolve_chain(declared, args, kwargs) if parts is None else resolve_chunk(declared, parts)


def _parts_of(name: str, kwargs: Any) -> tuple[str, list[tuple[Any, dict[str, Any]]] | None]:
    """Celery's own tasks behind `map`, `starmap` and `chunks` call another task several times: which, and with what."""
    if name not in MAPS or not isinstance(kwargs, dict) or "task" not in kwargs:
        return name, None
    try:
        inner, items = str(kwargs["task"]["task"]), list(kwargs["it"])
        return inner, [((item,) if name == "celery.map" else tuple(item), {}) for item in items]
    except (KeyError, TypeError) as error:  # what it calls, and so under which limits, can't be known
        raise ResolutionError(f"task {name!r}: its arguments are not those of a map: {error!r}") from None


def stamp(app: Any, name: str, message: Any, override: Sequence[Limit] | None) -> None:
    """Puts the chain on a task message (`celery.app.amqp.task_message`) that is about to be published."""
    headers, _, body, _ = message
    headers.pop(HEADER, None)
    headers.pop(SENT_HEADER, None)
    if isinstance(body, dict):  # protocol 1
        task_id, args, kwargs = body["id"], body["args"], body["kwargs"]
    else:
        task_id, (args, kwargs, _) = headers["id"], body
    links = links_of(app, name, args, kwargs, override)
    if links is not None:
        headers[HEADER] = Stamp(Header.fresh(new_ticket(task_id), links))


def _encode(limit: Any) -> dict[str, Any]:
    fields = {field.name: getattr(limit, field.name) for field in dataclasses.fields(limit)}
    odd = next((name for name, value in fields.items() if callable(value)), None)
    if odd:
        raise DeclarationError(f"{limit!r}: {odd} is a callable, which can't travel inside a canvas; use a value")
    return fields


def make_serializable() -> None:
    """Lets limits travel in the JSON of a canvas: `.set(limits=...)` inside a chord or chain."""
    for cls in (Concurrency, FloatingConcurrency, RateLimit):
        kombu_json.register_type(cls, f"celery_limits.{cls.__name__}", _encode, partial(_decode, cls))


def _decode(cls: type[Limit], fields: dict[str, Any]) -> Limit:
    return cls(**fields)
