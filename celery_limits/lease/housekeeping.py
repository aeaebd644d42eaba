"""The housekeeping of one process: a loop that sweeps the store, reconciles the ledger, and runs the registered chores.

It runs in a thread of its own, from before the first admission until after the pool has drained. A process registers
the chores that it needs: a worker those of its gate and its outbox, a channel of our transport the calls that Redis has
not confirmed, a bare consumer nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_limits.printable import printable
from celery_limits.store import Store, StoreError
from celery_limits.store.outcomes import Aftermath, Released
from celery_limits.telemetry.meter import meter

from .deadlocks import Deadlocks
from .heartbeat import BEATS
from .ledger import Ledger

if TYPE_CHECKING:
    from .lease import Lease

__all__ = ["NAP", "Chore", "Housekeeping"]

logger = get_logger(__name__)

NAP = 1.0
"""Seconds between two sweeps when nothing is due earlier."""

SECOND_LOOK = 0.5
"""Seconds between the two looks at what the store believes to run here. An answer under way is there by then."""


class Chore:
    """A part of the housekeeping, called in its thread. A chore implements the methods that concern it."""

    def store_answered(self) -> None:
        """After each turn in which the store could be reached."""

    def follow_up(self, after: Aftermath) -> None:
        """A script has left this to do."""

    def end_body(self, ticket: str, by: str) -> None:
        """The task `by` has superseded this ticket, which runs here. Called with each sweep until it is released."""

    def gave_way(self, ticket: str, key: str) -> None:
        """This ticket, which waited at the key, gave up its slots, since tickets waited for each other."""

    def lease_at_risk(self) -> None:
        """The lease may lapse before it can be renewed. Called repeatedly, from any thread, until it is renewed."""

    def leaving(self, worker: str) -> None:
        """The process is about to give up its lease."""


class Housekeeping:
    def __init__(self, lease: Lease, store: Store, ledger: Ledger) -> None:
        self._lease, self._store, self._ledger = lease, store, ledger
        self._chores: list[Chore] = []
        self._deadlocks = Deadlocks(store, lease.clock, self._gave_way)

    def register(self, chore: Chore) -> None:
        self._chores.append(chore)

    def run(self) -> None:
        """Until the lease is stopped."""
        lease, clock = self._lease, self._lease.clock
        next_look = clock() + lease.seconds / BEATS
        while not lease.stopped.is_set():
            try:
                lease.ensure_joined()
                lease.tell_serving()
                if clock() >= next_look:
                    next_look = clock() + self._reconcile()
                pause = self._sweep()
                lease.store_is_back()
                for chore in self._chores:
                    chore.store_answered()
                self._store.listen(min(pause, max(0.0, next_look - clock())), lease.worker)
            except StoreError as error:
                next_look = 0.0
                lease.store_went_away(error)
            except Exception as error:  # whatever it is, it must not end the housekeeping
                logger.exception("limits: housekeeping failed and is tried again: %r", error)
                lease.stopped.wait(NAP)
        self._store.hush()

    def follow_up(self, after: Aftermath) -> None:
        for chore in self._chores:
            chore.follow_up(after)

    def lease_at_risk(self) -> None:
        for chore in self._chores:
            chore.lease_at_risk()

    def leaving(self, worker: str) -> None:
        for chore in self._chores:
            chore.leaving(worker)

    def _gave_way(self, ticket: str, key: str) -> None:
        for chore in self._chores:
            chore.gave_way(ticket, key)

    def _reconcile(self) -> float:
        """Releases what the store believes this worker runs, and it does not; seconds until the next look."""
        lease = self._lease
        lease.saw_serial(self._store.last_serial())
        for ticket, fence, back in self._ledger.forgotten(self._store.held_by(lease.worker)):
            outcome = self._store.release(ticket, lease.worker, fence, back=back)
            if isinstance(outcome, Released):
                self.follow_up(outcome.after)
        often = lease.seconds / BEATS
        return min(SECOND_LOOK, often) if self._ledger.in_doubt else often

    def _sweep(self) -> float:
        """Sweeps until nothing is left to do; seconds until it should be called again."""
        while True:
            dead, after, orders, untied = self._store.sweep(self._lease.worker)
            if dead and (to := meter()) is not None:
                to.reclaimed(len(dead))
            for name in dead:
                logger.warning(
                    "limits: no heartbeat from %s for %g s; declaring it dead and reclaiming its slots and messages",
                    printable(name), self._lease.seconds,
                )  # fmt: skip
            if untied:
                self._deadlocks.report(untied)
            for ticket, by in orders:
                for chore in self._chores:
                    chore.end_body(ticket, by)
            self.follow_up(after)
            if not after.more:
                return NAP if after.due_in is None else min(NAP, after.due_in)
