"""What the worker tells whoever measures: see `celery_limits.metrics`. While nobody does, a look at an empty list."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from celery_limits.chain import Link
from celery_limits.metrics.meter import SENT_HEADER, meter
from celery_limits.store.outcomes import Admitted
from celery_limits.tracing import WAITS_HEADER

__all__ = ["measure_admission", "measure_end", "measure_hold", "measure_reclaimed"]


def measure_admission(request: Any, links: Sequence[Link], outcome: Admitted) -> None:
    """How long it has waited for its limits, each; and then for a worker. The body's own process may tell its span."""
    waits = [(links[wait.link].key, wait.seconds) for wait in outcome.waits if wait.link < len(links)]
    if waits:
        request.request_dict[WAITS_HEADER] = waits
    to = meter()
    if to is None:
        return
    to.admitted(request.name)
    if waits:
        to.waited(request.name)
    for key, seconds in waits:
        to.waited_for_limit(request.name, key, seconds)
    idle = outcome.idle if outcome.idle is not None else _since_sent(request)
    if idle is not None:
        to.waited_for_worker(request.name, idle)


def _since_sent(request: Any) -> float | None:
    """Of one that never waited for a limit, by its publisher's clock; not of one that was to come later anyway."""
    sent = request.request_dict.get(SENT_HEADER)
    if not isinstance(sent, (int, float)) or request.request_dict.get("eta") is not None:
        return None
    return max(0.0, time.time() - sent)


def measure_end(task: str, reason: str) -> None:
    if (to := meter()) is not None:
        to.ended(task, reason)


def measure_hold(task: str, keys: Sequence[str], since: float) -> None:
    if (to := meter()) is not None:
        to.held(task, keys, time.monotonic() - since)


def measure_reclaimed(workers: Sequence[str]) -> None:
    if workers and (to := meter()) is not None:
        to.reclaimed(len(workers))
