"""The order of arrival where the newest wins and a pool queues by itself.

Its threads ask the store at the same moment, so that of two messages the later may be met first. Where that decides
which of them runs, the event loop has them numbered in the order in which they were received. On our own transport they
are numbered when they are published.
"""

from __future__ import annotations

from typing import Any

from celery_limits.declare.limits import NEWEST_WINS
from celery_limits.errors import LimitError
from celery_limits.message.header import HEADER
from celery_limits.store import Store
from celery_limits.transport.refused import MISREAD

from .passage import Passage

__all__ = ["number"]


def number(store: Store, passage: Passage, plan_of: Any) -> None:
    """Gives the passage its arrival, if that matters. What can't be read, or asked now, is left to the gate."""
    request: Any = passage.request
    raw = request.request_dict.get(HEADER)
    links = raw.get("links") if isinstance(raw, dict) else None
    claimed = links if isinstance(links, list) else ()
    if not any(map(_wins, claimed)) and not any(_wins(vars(limit)) for limit in _declared(request.task)):
        return
    try:
        plan = plan_of(request)
        if plan is not None and not plan.header.arrival:
            passage.arrival = store.arrive(plan.ticket)
    except (LimitError, *MISREAD):
        return


def _declared(task: Any) -> Any:
    limits = getattr(task, "limits", None)
    return limits if isinstance(limits, (list, tuple)) else ()


def _wins(link: Any) -> bool:
    """Of a link in a header, or the fields of a limit."""
    return isinstance(link, dict) and ("quiet" in link or link.get("on_full", "") in tuple(NEWEST_WINS))
