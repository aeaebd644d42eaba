"""Releasing in the store: the slots of one admission, and what that leaves to do for the outbox.

A body that ends normally releases in the process that ran it, right after its result is stored (`task_postrun`); but on
our own transport the parent of a prefork pool releases, together with what comes next (see `exchange`). Every other end
is seen by the worker's parent (see `passage`). A release that could not reach the store is made up for soon after
(`Ledger.forgotten`).
"""

from __future__ import annotations

import mmap
from typing import Any, Protocol

from celery.utils.log import get_logger

from celery_limits.lease.housekeeping import Chore
from celery_limits.printable import printable
from celery_limits.store import Store, StoreError
from celery_limits.store.outcomes import Aftermath, Release, Released

from .outbox import Outbox

__all__ = ["Handoff", "OutboxChore", "Releaser", "leave_to_parent", "left_to_parent"]

logger = get_logger(__name__)


_by_parent = mmap.mmap(-1, 1)
"""Shared with the processes of the pool, if they are forked. Any other has a page of its own, and releases itself."""


def leave_to_parent(yes: bool) -> None:
    """Whether the parent is there to release for the processes of its pool, which saves each of them the exchange.
    While its event loop does not run (a shutdown, a lost connection) it hears late of results, and they release."""
    _by_parent[0] = yes


def left_to_parent() -> bool:
    return bool(_by_parent[0])


class Handoff(Protocol):
    """Takes the message that a release may bring with its answer: see `worker.handoff`."""

    def offer_from_thread(self) -> Any: ...

    def answered(self, offer: Any, worker: str, outcome: Any) -> None: ...


class Releaser:
    """Releases slots, and finishes what that admits when it must go through the outbox."""

    def __init__(self, store: Store, outbox: Outbox | None) -> None:
        self.store, self._outbox = store, OutboxChore(outbox) if outbox is not None else None
        self.handoff: Handoff | None = None
        """Set where the threads of a pool release, and may be handed the next message."""

    def release(self, ticket: str, worker: str, fence: int, *, back: bool = False) -> None:
        """What the store can't be told now, the housekeeping makes up for."""
        offer = self.handoff.offer_from_thread() if self.handoff is not None and not back else None
        outcome: Release | None = None
        try:
            outcome = self.store.release(ticket, worker, fence, back=back, **(offer.along if offer else {}))
        except StoreError as error:
            logger.error("limits: %s is not released yet: %s", printable(ticket), printable(error))
        finally:
            if offer and self.handoff is not None:
                self.handoff.answered(offer, worker, outcome)
        if isinstance(outcome, Released):
            self.follow_up(outcome.after)

    def follow_up(self, after: Aftermath) -> None:
        if self._outbox is not None:
            self._outbox.follow_up(after)


class OutboxChore(Chore):
    """Finishes what a script has put into the outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def follow_up(self, after: Aftermath) -> None:
        if not after.outbox:
            return
        try:
            self._outbox.work_off()
        except StoreError as error:
            logger.error("limits: could not work off the outbox; the next sweep tries again: %s", printable(error))
