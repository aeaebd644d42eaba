"""The worker's proof of life, and its share of the store's housekeeping, in a thread of their own.

The thread starts before the first admission and ends after the pool has drained, so a lease is renewed however long
bodies run, and however busy the event loop is. It also sweeps (shared by all workers), works off the outbox, makes up
for releases that could not reach the store, and says loudly when the lease was lost. Where that thread is a greenlet,
`keeper` renews the lease beside it.
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
from celery_limits.store.outcomes import Aftermath, Beat, Joined, Lost, Refresh

from .exits import Ledger, Releaser
from .keeper import Keeper, NativeThreads

__all__ = ["Lease"]

logger = get_logger(__name__)

NAP = 1.0
"""Seconds between two sweeps when nothing is due earlier."""

BEATS = 3
"""Renewals in the time of one lease: two may be lost."""


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
        self._losing = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._keeper: Keeper | None = None
        self._found_lost = ""
        self.worker = self._new_name()
        self.owed: set[str] = set()
        """Deliveries that could not be given back yet."""

    def keep_with(self, native: NativeThreads, store: Store) -> None:
        """Has the lease renewed by a real thread as well, over a connection of its own."""
        self._keeper = Keeper(
            native,
            store,
            self._seconds / BEATS,
            name=lambda: self.worker,
            on_renewed=self._was_renewed,
            on_lost=lambda name: setattr(self, "_found_lost", name),
        )

    def _was_renewed(self, name: str, when: float) -> None:
        if name == self.worker:
            self._good_until = max(self._good_until, when + self._seconds)

    def _new_name(self) -> str:
        return f"{self._name}/{secrets.token_hex(3)}"

    @property
    def held(self) -> bool:
        """Whether the store still counts this worker as alive, and answers, as far as this side can know."""
        return self._reachable and time.monotonic() < self._good_until

    def doubt(self, error: StoreError) -> None:
        """Somebody else could not reach the store. Nobody need try before this thread has reached it again."""
        if self._reachable:
            self._reachable = False
            logger.error("limits: the store can't be reached: %s Limited tasks wait until it is back.", error)

    def start(self) -> None:
        """Takes the lease and renews it until `stop`. A store that is away is waited for."""
        try:
            self._beat()
        except StoreUnavailable as error:
            self._went_away(error)
        self._thread = threading.Thread(target=self._live, name="limits-lease", daemon=True)
        self._thread.start()
        if self._keeper is not None:
            self._keeper.start()

    def stop(self) -> None:
        """Ends the renewals and leaves: what this worker still holds goes to others at once."""
        self._stopped.set()
        self._leave()
        if self._thread is not None:
            self._thread.join(2 * NAP + self._seconds)
            if self._keeper is not None:
                self._keeper.stop()
            self._leave()  # a renewal may have been under way the first time

    def _leave(self) -> None:
        try:
            after = self._store.leave(self.worker)
            while after.more:
                after = self._store.leave(self.worker)
            self._releaser.follow_up(after)
        except StoreError as error:
            logger.warning("limits: could not leave the store: %s; the lease will lapse", error)

    # -- the thread ----------------------------------------------------------------------------------------

    def _live(self) -> None:
        next_beat = time.monotonic() + self._seconds / BEATS
        while not self._stopped.is_set():
            try:
                if time.monotonic() >= next_beat:
                    self._beat()
                    next_beat = time.monotonic() + self._seconds / BEATS
                pause = self._sweep()
                self._came_back()
                self._store.listen(min(pause, max(0.0, next_beat - time.monotonic())))
            except StoreError as error:
                next_beat = 0.0
                self._went_away(error)
            except Exception as error:  # whatever it is, it must not end the renewals
                logger.exception("limits: housekeeping failed, and is tried again: %r", error)
                self._stopped.wait(NAP)

    def _beat(self) -> None:
        sent = time.monotonic()
        if self._found_lost == self.worker or self._finds_lost(self._store.beat(self.worker)):
            self._lost()
            self._store.beat(self.worker)
        self._good_until = sent + self._seconds
        self._losing = False
        for ticket, fence, back in self._ledger.forgotten(self._store.held_by(self.worker)):
            self._releaser.release(ticket, self.worker, fence, back=back)

    def _finds_lost(self, outcome: Beat) -> bool:
        return isinstance(outcome, Lost) or bool(isinstance(outcome, Joined) and self._good_until)

    def _lost(self) -> None:
        old, self.worker = self.worker, self._new_name()
        logger.critical(
            "limits: this worker was cut off from the store for longer than its lease of %g s, so others were given "
            "its slots while %d of its tasks ran on; it joins again as %s (was %s)",
            self._seconds, len(self._ledger), self.worker, old,
        )  # fmt: skip

    def _sweep(self) -> float:
        """Sweeps until nothing is left to do; seconds until it should be called again."""
        while True:
            after = self._store.sweep(self.worker).after
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
        if not self._losing and time.monotonic() > self._good_until - self._seconds / BEATS:
            self._losing = True
            self._on_losing()
        self._stopped.wait(min(NAP, self._seconds / 10))

    def _came_back(self) -> None:
        if not self._reachable:
            self._reachable = True
            logger.warning("limits: the store is back")
        self._on_back()
