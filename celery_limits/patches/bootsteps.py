"""The order of a worker's steps: its event loop and its pool start after ours and stop before them.

No function is replaced here: `requires` of Celery's steps names ours. The event loop is among them because, when it
closes, it acknowledges what a pool of threads has ended since it stopped.
"""

from __future__ import annotations

from celery.worker.components import Hub, Pool

__all__ = ["put_before_pool"]

_STEPS = "celery_limits.worker.steps"


def put_before_pool() -> None:
    """Relies on Celery resolving the names in `requires` when it has loaded all steps of a worker."""
    for step, name in ((Hub, "LimitsStep"), (Pool, "LimitsStep"), (Pool, "SettleStep")):
        ours = f"{_STEPS}:{name}"
        if not any(known == ours or getattr(known, "__name__", "") == name for known in step.requires):
            step.requires = (*step.requires, ours)
