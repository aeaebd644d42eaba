"""Events of limits, for monitors that listen to Celery's events: sent while task events are on, and by the same way.

`limit-parked` `limit-resumed` `limit-released` `limit-discarded` `limit-superseded`, each with `uuid` (the task id),
`name`, `ticket` and the keys; or `by`, the id of the task that has superseded it. `limit-deadlock` has `uuid`, `ticket`
and `key`, of a task that gave up its slots and waits again. They are a group of their own, since
a monitor takes any `task-…` for a state of the task.

Relies on `EventDispatcher.groups`: empty means all, and `task` is what `enable_events` adds and `disable_events` takes
away. They are sent one by one: to add a group to the dispatcher's batches (`buffer_group`) is not safe from the threads
of a pool.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from celery_limits.store.outcomes import superseded_by

from .measuring import measure_end

__all__ = ["announce", "listening", "sender_of", "tell_superseded", "untied_sender"]

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


def tell_superseded(request: Any, ticket: str, by: str) -> str:
    """Measures and announces that a task ends for one that came later; the reason that its result gives."""
    measure_end(request.name, "superseded")
    if listening(request):
        announce(request, "superseded", ticket=ticket, by=by)
    return superseded_by(by)


def sender_of(worker: Any) -> Callable[..., None]:
    """Sends events of tasks that end in the store, which no request of Celery's sends, as this worker sends any other:
    if it sends events, and from its own thread. Processes of its pool ask its configuration, and send by themselves."""
    pid = os.getpid()

    def send(app: Any, name: str, /, **fields: Any) -> None:
        if os.getpid() == pid:
            worker.consumer.call_soon(_send_now, worker.consumer, name, fields)
        elif worker.task_events:
            with app.events.default_dispatcher() as dispatcher:
                dispatcher.send(name, **fields)

    return send


def untied_sender(worker: Any, app: Any) -> Callable[[str, str], None]:
    """Sends `limit-deadlock` for a ticket that gave up its slots, which waited at `key`."""
    send = sender_of(worker)

    def untied(ticket: str, key: str) -> None:
        send(app, f"{GROUP}-deadlock", uuid=ticket.rpartition(".")[0], ticket=ticket, key=key)

    return untied


def _send_now(consumer: Any, name: str, fields: dict[str, Any]) -> None:
    if (eventer := consumer.event_dispatcher) is not None and eventer.enabled:
        if "task" in eventer.groups:
            eventer.groups.add(GROUP)
        eventer.send(name, **fields)
