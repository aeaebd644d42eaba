"""Bodies that a newcomer has superseded (`on_full="preempt"`) are ended, as by `revoke(terminate=True)`.

The store lists them for their worker, whose housekeeping reads that list with each sweep and is woken by a bell of its
own; so a list that was read in vain, before the request was known here, is read again. Where bodies run in the worker's
own process none can be ended: the newcomer waits, and the body can ask whether it is superseded.
"""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger
from celery.worker.state import active_requests, reserved_requests

from celery_limits.lease.housekeeping import Chore
from celery_limits.printable import printable

from .passage import Passage
from .request_hooks import passage_of

__all__ = ["PreemptChore"]

logger = get_logger(__name__)


class PreemptChore(Chore):
    """What the housekeeping of a worker does with the list."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def end_body(self, ticket: str, by: str) -> None:
        self._worker.consumer.call_soon(_end_superseded, self._worker, ticket, by)


def _end_superseded(worker: Any, ticket: str, by: str) -> None:
    """Ends the body of this ticket; called in the thread of the worker's event loop. Once for each delivery: a process
    that is slow to die is waited for."""
    for request in (*active_requests, *reserved_requests):
        passage = passage_of(request)
        if passage is None or passage.ticket != ticket or not passage.holds or passage.superseded_by:
            continue
        passage.superseded_by = by
        _end(worker, request, passage)


def _end(worker: Any, request: Any, passage: Passage) -> None:
    names = printable(request.name), printable(request.id), printable(passage.superseded_by)
    if not worker.pool_cls.uses_semaphore:
        logger.info("limits: %s[%s] is superseded by %s; this pool can't end a body, so it runs on", *names)
        return
    logger.info("limits: %s[%s] is superseded by %s, and terminated", *names)
    request.terminate(worker.consumer.pool, signal="TERM")
