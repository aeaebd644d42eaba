"""Remote control: what a worker says of its limits, and steering through any worker.

    celery -A proj inspect limits
    celery -A proj control limits_resize tenant:42 5
    app.control.inspect().limits()
    app.control.broadcast("limits_resize", {"key": "tenant:42", "size": 5}, reply=True)

Relies on `celery.worker.control.Panel`, which importing this module adds to, and on `Inspect._request`. Every worker
that is told does the same to the one store, so telling one (`-d`) is enough, and telling all does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.app.control import Inspect
from celery.exceptions import ImproperlyConfigured
from celery.worker.control import control_command, inspect_command, nok, ok
from celery.worker.state import active_requests, reserved_requests

from celery_limits.app import Limits
from celery_limits.errors import LimitError

__all__ = ["limits"]


def _inspect_limits(inspect: Inspect) -> Any:
    """Each worker's view of the limits, by the worker's name."""
    return inspect._request("limits")


Inspect.limits = _inspect_limits


@inspect_command()
def limits(state: Any) -> Any:
    """This worker's view of the limits: its store, its lease, what it runs under limits."""
    gate = getattr(state.consumer.controller, "limits_gate", None)
    if gate is None:
        return {"active": False}
    handle = Limits(state.app)
    holding = [_told(request.holding) for request in _requests() if getattr(request, "holding", None)]
    holding = [one for one in holding if one is not None]
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


def _told(holding: Any) -> dict[str, Any] | None:
    return holding.told() if holding.held else None


def _steer(state: Any, act: Callable[[Limits], Any], done: str) -> Any:
    try:
        act(Limits(state.app))
    except (LimitError, ImproperlyConfigured, ValueError) as error:
        return nok(str(error))
    return ok(done)


@control_command(args=[("key", str), ("size", str), ("burst", int)], signature="<key> <size or rate> [burst]")
def limits_resize(state: Any, key: str, size: int | str, burst: int = 1) -> Any:
    """Give a key another size, or rate, until it is reset."""
    number = int(size) if isinstance(size, str) and size.isdecimal() else size
    return _steer(state, lambda handle: handle.resize(key, number, burst), f"{key} is resized to {size}")


@control_command(args=[("key", str)], signature="<key>")
def limits_reset(state: Any, key: str) -> Any:
    """Let what the tasks declare for a key be in force again."""
    return _steer(state, lambda handle: handle.reset(key), f"{key} is as declared")


@control_command(args=[("key", str)], signature="<key>")
def limits_pause(state: Any, key: str) -> Any:
    """Let nothing enter a key; what runs, runs on."""
    return _steer(state, lambda handle: handle.pause(key), f"{key} is paused")


@control_command(args=[("key", str)], signature="<key>")
def limits_resume(state: Any, key: str) -> Any:
    """Let tasks enter a paused key again."""
    return _steer(state, lambda handle: handle.resume(key), f"{key} goes on")


@control_command(args=[("task_id", str)], signature="<task id>")
def limits_cancel(state: Any, task_id: str) -> Any:
    """End a task that waits for its limits, as revoked."""
    return _steer(state, lambda handle: handle.cancel(task_id), f"{task_id} is cancelled")
