"""What the worker tells whoever measures: see `celery_limits.metrics`. While nobody does, a look at an empty list."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from celery_limits.declare.chain import Link
from celery_limits.declare.links import HOLDING
from celery_limits.store.outcomes import Admitted
from celery_limits.telemetry.meter import SENT_HEADER, meter
from celery_limits.telemetry.tracing import WAITS_HEADER

__all__ = ["held_before", "measure_admission", "measure_end", "measure_hold"]


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


def held_before(links: Sequence[Link], outcome: Admitted) -> tuple[float, ...]:
    """For each link, the seconds for which its slot was held before the admission: while the ticket waited at a later
    link, and since its turn had come."""
    waits, idle = outcome.waits, outcome.idle or 0.0
    return tuple(sum((wait.seconds for wait in waits if wait.link > link), idle) for link in range(len(links)))


def measure_hold(task: str, links: Sequence[Link], since: float, before: Sequence[float]) -> None:
    if (to := meter()) is None:
        return
    ran = time.monotonic() - since
    for number, link in enumerate(links):
        if link.kind in HOLDING:
            to.held(task, [link.key], ran + (before[number] if number < len(before) else 0.0))
