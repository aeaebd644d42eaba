"""Remote control: a revoke or a purge reaches the tasks that wait in the store."""

from __future__ import annotations

from typing import Any

from celery.app.control import Control, Inspect

from celery_limits.app.revoking import cancel, cancel_stamped, in_store

from .registry import patch

__all__ = ["extend_control"]


@patch(
    "celery.app.control:Control.revoke",
    takes="self task_id",
    why="A task that waits in the store ends there, at once and without a worker.",
)
def revoke(original: Any, control: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
    cancel(control.app, task_id)
    return original(control, task_id, *args, **kwargs)


@patch(
    "celery.app.control:Control.revoke_by_stamped_headers",
    takes="self headers",
    why="Tasks that wait in the store with one of these stamps end there.",
)
def revoke_by_stamps(original: Any, control: Any, headers: Any, *args: Any, **kwargs: Any) -> Any:
    cancel_stamped(control.app, headers)
    return original(control, headers, *args, **kwargs)


@patch(
    "celery.app.control:Control.purge",
    takes="self connection",
    why="Tasks that wait in the store came from a queue, and are purged with it.",
)
def purge(original: Any, control: Any, *args: Any, **kwargs: Any) -> int:
    purged: int = original(control, *args, **kwargs)
    return purged + in_store(control.app, lambda limits: limits.purge(control.app.amqp.queues.consume_from))


def extend_control() -> None:
    """What is no replacement: a second name of `purge`, and `app.control.inspect().limits()`."""
    Control.discard_all = Control.purge
    Inspect.limits = _inspect_limits


def _inspect_limits(inspect: Any) -> Any:
    """Each worker's view of its limits, by the worker's name. Relies on `Inspect._request(command)`."""
    return inspect._request("limits")
