"""`celery control revoke`, `terminate` and `revoke_by_stamped_headers` end tasks that wait in the store, too.

The `celery` program broadcasts these commands to the workers without `Control.revoke`, so only a worker can do it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_limits.app.revoking import cancel, cancel_stamped

from .registry import patch

__all__: list[str] = []

_PANEL = "celery.worker.control:Panel.data"
_WHY = "The command reaches a task that waits in the store."


@patch(f"{_PANEL}[revoke]", takes="state task_id", why=_WHY)
def revoke(original: Any, state: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
    def end() -> None:
        cancel(state.app, task_id, report=True)

    return _both(end, lambda: original(state, task_id, *args, **kwargs), terminates=bool(kwargs.get("terminate")))


@patch(f"{_PANEL}[terminate]", takes="state signal task_id", why=_WHY)
def terminate(original: Any, state: Any, signal: Any, task_id: Any, **kwargs: Any) -> Any:
    def end() -> None:
        cancel(state.app, task_id, report=True)

    return _both(end, lambda: original(state, signal, task_id, **kwargs), terminates=True)


@patch(f"{_PANEL}[revoke_by_stamped_headers]", takes="state headers", why=_WHY)
def revoke_by_stamps(original: Any, state: Any, headers: Any, *args: Any, **kwargs: Any) -> Any:
    def end() -> None:
        cancel_stamped(state.app, headers, report=True)

    return _both(end, lambda: original(state, headers, *args, **kwargs), terminates=bool(kwargs.get("terminate")))


def _both(end: Callable[[], None], celery: Callable[[], Any], *, terminates: bool) -> Any:
    """Celery's own command comes second, since it leaves a task alone that has a result; but first where it ends a
    body, which must not wait for a store that is away."""
    if not terminates:
        end()
        return celery()
    answer = celery()
    end()
    return answer
