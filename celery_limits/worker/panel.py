"""Remote control: what a worker says of its limits, and steering through any worker.

    celery -A proj inspect limits
    celery -A proj control limits_resize tenant:42 5
    app.control.inspect().limits()
    app.control.broadcast("limits_resize", {"key": "tenant:42", "size": 5}, reply=True)

Relies on `celery.worker.control.Panel`, which importing this module adds to. Every worker
that is told does the same to the one store, so telling one (`-d`) is enough, and telling all does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.exceptions import ImproperlyConfigured
from celery.worker.control import control_command, inspect_command, nok, ok
from celery.worker.state import active_requests, reserved_requests

from celery_limits.app.handle import Limits
from celery_limits.errors import LimitError
from celery_limits.printable import printable
from celery_limits.store.changes import Author

from .passage import Passage
from .request_hooks import passage_of

__all__ = ["limits"]


@inspect_command()
def limits(state: Any) -> Any:
    """This worker's view of the limits: its store, its lease, what it runs under limits."""
    gate = getattr(state.consumer.controller, "limits_gate", None)
    if gate is None:
        return {"active": False}
    handle = Limits(state.app)
    holding = [_describe(passage) for request in _requests() if (passage := passage_of(request)) and passage.holds]
    return {
        "active": True,
        "store": handle.url,
        "namespace": handle.settings.namespace,
        "lease": handle.settings.lease,
        **gate.view(),
        "holding": sorted(holding, key=lambda one: one["fence"]),
    }


def _requests() -> list[Any]:
    """Those that a pool has; with the threads pool a request holds its slots a moment before it counts as active."""
    return list({id(request): request for request in (*active_requests, *reserved_requests)}.values())


def _describe(passage: Passage) -> dict[str, Any]:
    """For a person."""
    request, keys = passage.request, [link.key for link in passage.plan.links]
    return {"task_id": request.id, "task": request.name, "ticket": passage.ticket, "fence": passage.fence, "keys": keys}


_GLOB = frozenset("*?[")


def _author() -> Author:
    """Remote control does not say who calls; every worker that is told records its own call."""
    return Author(via="control")


def _steer(state: Any, key: str | None, act: Callable[[Limits], Any], done: str) -> Any:
    handle = Limits(state.app)
    try:
        if key is not None and not _GLOB.isdisjoint(key) and not handle.store.status(key, 0).known:
            return nok(f"{key!r} is a pattern, and one key is steered at a time")
        act(handle)
    except (LimitError, ImproperlyConfigured, ValueError) as error:
        return nok(printable(error))
    return ok(printable(done))


@control_command(args=[("key", str), ("size", str), ("burst", int)], signature="<key> <size or rate> [burst]")
def limits_resize(state: Any, key: str, size: int | str, burst: int = 1) -> Any:
    """Give a key another size, or rate, until it is reset."""
    number = int(size) if isinstance(size, str) and size.isdecimal() else size
    return _steer(
        state, key, lambda handle: handle.resize(key, number, burst, author=_author()), f"{key} is resized to {size}"
    )


@control_command(args=[("key", str)], signature="<key>")
def limits_reset(state: Any, key: str) -> Any:
    """Let what the tasks declare for a key be in force again."""
    return _steer(state, key, lambda handle: handle.reset(key, author=_author()), f"{key} is as declared")


@control_command(args=[("key", str)], signature="<key>")
def limits_pause(state: Any, key: str) -> Any:
    """Let nothing enter a key; what runs, runs on."""
    return _steer(state, key, lambda handle: handle.pause(key, author=_author()), f"{key} is paused")


@control_command(args=[("key", str)], signature="<key>")
def limits_resume(state: Any, key: str) -> Any:
    """Let tasks enter a paused key again."""
    return _steer(state, key, lambda handle: handle.resume(key, author=_author()), f"{key} goes on")


@control_command(args=[("task_id", str)], signature="<task id>")
def limits_cancel(state: Any, task_id: str) -> Any:
    """End a task that waits for its limits, as revoked."""
    return _steer(state, None, lambda handle: handle.cancel(task_id, author=_author()), f"{task_id} is cancelled")
