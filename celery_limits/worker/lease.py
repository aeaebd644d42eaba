"""The worker's proof of life, and its share of the store's housekeeping, in threads of their own.

They start before the first admission and end after the pool has drained, so a lease is renewed however long bodies run,
and however busy the event loop is. The renewals are the `keeper`'s. The housekeeping sweeps (shared by all workers),
works off the outbox, makes up for releases that could not reach the store, and says loudly when the lease was lost.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

from celery_limits.store import Store, StoreError, StoreUnavailable
from celery_limits.store.outcomes import Aftermath, Refresh
from celery_limits.transport.debts import Debts

from .exits import Ledger, Releaser
from .keeper import Keeper, Threads
from .measuring import measure_reclaimed

__all__ = ["Lease"]

logger = get_logger(__name__)

NAP = 1.0
"""Seconds between two sweeps when nothing is due earlier."""

BEATS = 3
"""Renewals in the time of one lease: two may be lost."""

SECOND_LOOK = 0.5
"""Seconds between the two looks at what the store believes to run here. An answer under way is there by then."""


class Lease:
    """`worker` is this worker's identity in the store; a new one after the lease was lost."""

    def __init__(
        self,
        hostname: str,
        store: Store,
        ledger: Ledger,
        releaser: Releaser,
        *,
        on_refresh: Callable[[Refresh], Any],
        on_back: Callable[[], Any],
        on_losing: Callable[[], Any],
    ) -> None:
        self._name = f"{hostname}/{os.getpid()}"
        self._store, self._ledger, self._releaser = store, ledger, releaser
        self._on_refresh, self._on_back, self._on_losing = on_refresh, on_back, on_losing
        self._seconds = store.policy.lease
        self._good_until = 0.0
        self._reachable = True
        self._admits = True
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._keeper: Keeper | None = None
        self._joined = ""  # under this name the keeper renews; none while the lease is to be taken
        self._was_here = False
        self.worker = self._new_name()
        self.debts = Debts(lambda: self.worker)

    def _new_name(self) -> str:
        return f"{self._name}/{secrets.token_hex(3)}"

    @property
    def held(self) -> bool:
        """Whether the store still counts this worker as alive, and answers, as far as this side can know."""
        return self._admits and self._reachable and time.monotonic() < self._good_until

    def admit_no_more(self) -> None:
        """It is about to be left. Whoever is not in the ledger by now does not ask; see `Gate._plan`."""
        self._admits = False

    def doubt(self, error: StoreError) -> None:
        """Somebody else could not reach the store. Nobody need try before this thread has reached it again."""
        if self._reachable:
            self._reachable = False
            logger.error("limits: nothing that is limited starts here at present: %s", error)

    def start(self, threads: Threads, store: Store) -> None:
        """Takes the lease, and has it renewed until `stop`, through `store`. A store that is away is waited for."""
        try:
            self._join()
        except StoreUnavailable as error:
            self._went_away(error)
        self._thread = threading.Thread(target=self._live, name="limits-lease", daemon=True)
        self._thread.start()
        self._keeper = Keeper(
            threads,
            store,
            self._seconds / BEATS,
            name=lambda: self._joined,
            on_renewed=self._was_renewed,
            on_lost=self._was_lost,
            on_silence=_nothing if threads.are_green else self._check_losing,
        )
        self._keeper.start()

    def stop(self) -> None:
        """Ends the renewals and leaves: what this worker still holds goes to others at once."""
        self._stopped.set()
        if self._keeper is not None:
            self._keeper.stop()
        if self.debts:
            self.debts.try_to_pay(self.worker)  # or what was done comes again
        self._leave()
        if self._thread is not None:
            self._thread.join(2 * NAP + self._seconds)
            self._leave()  # its last sweep may have been asked for something in this worker's name

    def _leave(self) -> None:
        try:
            after = self._store.leave(self.worker)
            while after.more:
                after = self._store.leave(self.worker)
            self._releaser.follow_up(after)
        except StoreError as error:
            logger.warning("limits: could not leave the store, so the lease will lapse: %s", error)

    # -- called by the keeper, in its own thread ------------------------------------------------------------

    def _was_renewed(self, name: str, when: float) -> None:
        if name == self._joined:
            self._good_until = when + self._seconds

    def _was_lost(self, name: str) -> None:
        if name == self._joined:
            self._joined = ""
            self._good_until = 0.0

    def _check_losing(self) -> None:
        """Past the last third of the lease there may be no further chance to end what others will be given."""
        if self._joined and time.monotonic() > self._good_until - self._seconds / BEATS:
            self._on_losing()

    # -- the housekeeping thread ---------------------------------------------------------------------------

    def _live(self) -> None:
        next_look = time.monotonic() + self._seconds / BEATS
        while not self._stopped.is_set():
            try:
                if not self._joined:
                    self._join()
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + self._make_up()
                pause = self._sweep()
                self._came_back()
                if self.debts:
                    self.debts.try_to_pay(self.worker)
                self._store.listen(min(pause, max(0.0, next_look - time.monotonic())))
            except StoreError as error:
                next_look = 0.0
                self._went_away(error)
            except Exception as error:  # whatever it is, it must not end the housekeeping
                logger.exception("limits: housekeeping failed, and is tried again: %r", error)
                self._stopped.wait(NAP)
        self._store.hush()

    def _join(self) -> None:
        """Takes the lease; under another name if it was lost, since what the old one held counts for nothing."""
        if not self._was_here:
            self._store.check_version()
        else:
            old, self.worker = self.worker, self._new_name()
            logger.critical(
                "limits: this worker was cut off from the store for longer than its lease of %g s, so others were "
                "given its slots while %d of its tasks ran on; it joins again as %s (was %s)",
                self._seconds, len(self._ledger), self.worker, old,
            )  # fmt: skip
        sent = time.monotonic()
        self._store.beat(self.worker)
        self._was_here = True
        self._good_until = sent + self._seconds
        self._joined = self.worker

    def _make_up(self) -> float:
        """Gives back what the store believes this worker runs, and it does not; seconds until the next look."""
        for ticket, fence, back in self._ledger.forgotten(self._store.held_by(self.worker)):
            self._releaser.release(ticket, self.worker, fence, back=back)
        often = self._seconds / BEATS
        return min(SECOND_LOOK, often) if self._ledger.in_doubt else often

    def _sweep(self) -> float:
        """Sweeps until nothing is left to do; seconds until it should be called again."""
        while True:
            dead, after = self._store.sweep(self.worker)
            measure_reclaimed(dead)
            for name in dead:
                logger.warning(
                    "limits: %s was not heard of for %g s and is taken for dead: others get its slots and its messages",
                    name, self._seconds,
                )  # fmt: skip
            for refresh in after.refreshes:
                self._on_refresh(refresh)
            self._releaser.follow_up(after)
            if not after.more:
                return self._pause(after)

    @staticmethod
    def _pause(after: Aftermath) -> float:
        return NAP if after.due_in is None else min(NAP, after.due_in)

    def _went_away(self, error: StoreError) -> None:
        self.doubt(error)
        self._check_losing()
        self._stopped.wait(min(NAP, self._seconds / 10))

    def _came_back(self) -> None:
        if not self._reachable:
            self._reachable = True
            logger.warning("limits: the store is back")
        self._on_back()


def _nothing() -> None:
    """In green pools the keeper's thread may not log: the housekeeping greenlet says it."""
