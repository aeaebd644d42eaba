"""Publishing: every message of a limited task leaves with its chain on the header.

The chain is resolved anew for each publish, so a retry, a `replace` or a canvas step never inherits another's; limits
of one call are resolved again for its retries (see `call_limits`). What can't be resolved is raised to the publisher. A
message of a task that this process does not know goes out without; the worker, which knows the task, resolves it there.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Any

from celery import Task
from kombu.utils import json as kombu_json

from celery_limits.declare.chain import (
    KINDS,
    Declared,
    Link,
    declare,
    never_discarded,
    never_superseded,
    resolve_chain,
    resolve_chunk,
)
from celery_limits.declare.limits import Limit
from celery_limits.errors import DeclarationError, ResolutionError, shorten
from celery_limits.message.call_limits import BEGUN_HEADER, CALL_HEADER, call_header, inherited_call
from celery_limits.message.canvas import is_canvas_member
from celery_limits.message.header import HEADER, Header, Stamp, new_ticket
from celery_limits.store import StoreError
from celery_limits.store.begun import begun_seal
from celery_limits.telemetry.meter import SENT_HEADER

__all__ = ["MAPS", "declared_of", "links_of", "make_serializable", "own_attributes", "refuse_misspelt", "stamp"]

_ANY_CALL = inspect.signature(lambda *args, **kwargs: None)  # noqa: ARG005
_DECLARED = "__limits_declared__"
_MAP_CALL = inspect.signature(lambda task, it: None)  # noqa: ARG005
NEAR = 0.7
"""How like `limits` a name must be to be taken for it."""
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


def own_attributes(task: Any) -> dict[str, Any]:
    """What the user set on the task: Celery makes a class of each, below `Task` and the user's own base classes."""
    classes = type(task).__mro__
    return {name: value for cls in reversed(classes[: classes.index(Task)]) for name, value in vars(cls).items()}


def refuse_misspelt(task_name: str, options: Mapping[str, Any]) -> None:
    """Raises for limits under another name than `limits`, such as `limit=[...]`: the task would run without."""
    for name, value in options.items():
        held = value if isinstance(value, (list, tuple)) else (value,)
        if name != "limits" and held and all(isinstance(limit, Limit) for limit in held):
            near = get_close_matches(name, ["limits"], 1, NEAR)
            if near:
                raise DeclarationError(f"task {task_name!r}: {name}={shorten(value)}; did you mean limits=[...]?")


def links_of(
    app: Any, name: str, args: Any, kwargs: Any, override: Sequence[Limit] | None = None
) -> tuple[Link, ...] | None:
    """The links of one call of a task; None if it has no limits."""
    inner, parts = _parts_of(name, args, kwargs)
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


def _parts_of(name: str, args: Any, kwargs: Any) -> tuple[str, list[tuple[Any, dict[str, Any]]] | None]:
    """Celery's own tasks behind `map`, `starmap` and `chunks` call another task several times: which, and with what.

    Bound as Celery binds them, by position or by name. What can't be bound, or calls a map again, is an error: which
    task runs in the end, and so under which limits, could not be known.
    """
    if name not in MAPS:
        return name, None
    try:
        bound = _MAP_CALL.bind(*(args or ()), **(kwargs or {})).arguments
        inner, items = str(bound["task"]["task"]), list(bound["it"])
        parts: list[tuple[Any, dict[str, Any]]] = [
            ((item,) if name == "celery.map" else tuple(item), {}) for item in items
        ]
    except (KeyError, TypeError) as error:
        raise ResolutionError(f"task {name!r}: its arguments are not those of a map: {shorten(error)}") from None
    if inner in MAPS:
        raise ResolutionError(f"task {name!r}: a map of {inner!r} is refused; map over the task itself")
    return inner, parts


def stamp(
    app: Any, name: str, message: Any, override: Sequence[Limit] | None, inherited: Mapping[str, Any] | None = None
) -> None:
    """Puts the chain on a task message (`celery.app.amqp.task_message`) that is about to be published.

    `override`: limits of this one call; `inherited`: the custom headers that the publish passes on.
    """
    headers, _, body, _ = message
    for own in (HEADER, SENT_HEADER, CALL_HEADER, BEGUN_HEADER):
        headers.pop(own, None)
    if isinstance(body, dict):  # protocol 1
        task_id, args, kwargs, retries = body["id"], body["args"], body["kwargs"], body.get("retries")
    else:
        task_id, (args, kwargs, _), retries = headers["id"], body, headers.get("retries")
    mark: dict[str, Any] | None = None
    if override is not None:
        mark = call_header(name, task_id, override)
        links = links_of(app, name, args, kwargs, override)
    else:
        links, mark = _links_again(app, name, task_id, args, kwargs, inherited)
    if links is not None:
        if retries:  # a task that has begun is not dropped for want of room
            links = never_discarded(links)
        elif is_canvas_member(headers, body if isinstance(body, dict) else body[2]):
            links = never_superseded(links)
        ticket = new_ticket(task_id)
        headers[HEADER] = Stamp(Header.fresh(ticket, links))
        if retries and (seal := _seal(app, task_id, ticket)):
            headers[BEGUN_HEADER] = seal
        if mark is not None:
            headers[CALL_HEADER] = mark


def _seal(app: Any, task_id: str, ticket: str) -> str:
    """What proves to workers that do not trust headers that this is a retry: only the body of the task itself, in a
    worker, publishes one. Without a store there is none, and the retry is a newcomer to them."""
    from .handle import Limits  # noqa: PLC0415  (which needs this module)

    current = app.current_worker_task
    if current is None or current.request.id != task_id or current.request.is_eager:
        return ""
    limits = Limits(app)
    if limits.settings.trust_headers:
        return ""
    with suppress(StoreError):
        return begun_seal(limits.store, ticket)
    return ""


def _links_again(
    app: Any, name: str, task_id: str, args: Any, kwargs: Any, inherited: Mapping[str, Any] | None
) -> tuple[tuple[Link, ...] | None, dict[str, Any] | None]:
    """The links of a message without limits of its own, and the mark of the call whose limits they are, if any."""
    call = inherited_call(app, task_id, inherited)
    if call is not None and call.task == name and call.declared is not None:
        return links_of(app, name, args, kwargs, call.declared), call_header(name, task_id, call.declared)
    declared = links_of(app, name, args, kwargs)
    if call is None or call.links is None or (call.task != name and declared is not None):
        return declared, None  # another task that replaces this one has its own limits
    return call.links, call_header(name, task_id, None)


def _encode(limit: Any) -> dict[str, Any]:
    fields = {field.name: getattr(limit, field.name) for field in dataclasses.fields(limit)}
    odd = next((name for name, value in fields.items() if callable(value)), None)
    if odd:
        raise DeclarationError(f"{limit!r}: {odd} is a callable, which can't travel inside a canvas; use a value")
    return fields


def make_serializable() -> None:
    """Lets limits travel in the JSON of a canvas: `.set(limits=...)` inside a chord or chain."""
    for cls in KINDS:
        kombu_json.register_type(cls, f"celery_limits.{cls.__name__}", _encode, partial(_decode, cls))


def _decode(cls: type[Limit], fields: dict[str, Any]) -> Limit:
    return cls(**fields)
