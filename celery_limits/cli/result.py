"""What the result backend says about a task that the limits do not know. `celery result` raises for a revoked task, and
waits for one that is unknown; this does neither."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from celery import states

__all__ = ["LookedUp", "look_up"]


class LookedUp(NamedTuple):
    """`state` is one of Celery's; None if the backend could not say."""

    state: str | None
    text: str

    def __str__(self) -> str:
        return self.text


_MEANING = {
    states.PENDING: "its result is PENDING: it has not ended, its result has expired, or there is no such task",
    states.REVOKED: "its result is REVOKED: it was revoked, it expired, or a limit discarded it, and it did not run",
}


def look_up(app: Any, task_id: str, within: float) -> LookedUp:
    """Asks the backend once, and waits no longer than this many seconds."""
    found: list[LookedUp] = []
    asking = threading.Thread(target=lambda: found.append(_ask(app, task_id)), daemon=True)
    asking.start()
    asking.join(within)
    return found[0] if found else LookedUp(None, f"the result backend did not answer within {within:g} s")


def _ask(app: Any, task_id: str) -> LookedUp:
    try:
        backend = app.backend
        kind = type(backend).__name__
        if kind == "DisabledBackend":
            return LookedUp(None, "no result backend is configured, so nobody knows what became of it")
        if kind == "RPCBackend":
            return LookedUp(None, "results of rpc:// can be read by the process alone that has published the task")
        state = str(backend.get_state(task_id))
    except Exception as error:  # of any backend's driver
        return LookedUp(None, f"the result backend can't be asked: {type(error).__name__}")
    return LookedUp(state, _MEANING.get(state, f"its result is {state}"))
