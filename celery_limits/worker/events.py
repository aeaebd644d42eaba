"""Events of limits, for monitors that listen to Celery's events: sent while task events are on, and by the same way.

`limit-parked` `limit-resumed` `limit-released` `limit-discarded`, each with `uuid` (the task id), `name`, `ticket` and
the keys. They are a group of their own, since a monitor takes any `task-…` for a state of the task.

Relies on `EventDispatcher.groups`: empty means all, and `task` is what `enable_events` adds and `disable_events` takes
away. They are sent one by one: to add a group to the dispatcher's batches (`buffer_group`) is not safe from the threads
of a pool.
"""

from __future__ import annotations

from typing import Any

__all__ = ["announce", "listening"]

GROUP = "limit"


def listening(request: Any) -> bool:
    """Whether an event about this request would be sent: task events are on, and ours go the same way then."""
    eventer = request.eventer
    if not eventer or not eventer.enabled or not request.task.send_events:
        return False
    groups = eventer.groups
    if groups and "task" not in groups:
        return False
    if groups:
        groups.add(GROUP)
    return True


def announce(request: Any, what: str, **fields: Any) -> None:
    """Sends one event about a request. Ask `listening` first: it is cheaper than to make the fields."""
    request.eventer.send(f"{GROUP}-{what}", uuid=request.id, name=request.name, **fields)
