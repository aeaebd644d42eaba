"""The proof of life of one process in the store: a name, a lease, and the thread that renews it.

The lease is taken before the first admission and given up after the pool has drained, so it is renewed however long
bodies run, and however busy the event loop is (`heartbeat`). What the process does for the store meanwhile, and how
often, is left to `housekeeping`.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

from celery_limits.printable import printable
from celery_limits.store import Store, StoreError, StoreUnavailable
from celery_limits.store.outcomes import Renewed
from celery_limits.store.serving import Serving

from .heartbeat import BEATS, REAL, Heartbeat, Runtime, Threads
from .housekeeping import NAP, Chore, Housekeeping
from .ledger import Ledger

__all__ = ["Lease"]

logger = get_logger(__name__)

CUT_OFF = (
    "limits: this worker was cut off from the store for longer than its lease of %g s, so others were given its slots "
    "while %d of its tasks ran on; it joins again as %s (was %s)"
)

STORE_EMPTIED = (
    "limits: the store has lost its data: it was emptied, restarted without persistence, or failed over to an older "
    "replica. Tasks that waited in it are lost, unless their broker still has them; see 'celery limits check'. The "
    "lease of %g s is gone, and %d tasks of this worker run on without a slot; it joins again as %s (was %s)"
)


class Lease:
    """`worker` is this worker's identity in the store; a new one after the lease was lost."""

    def __init__(
        self,
        hostname: str,
        store: Store,
        ledger: Ledger,
        *,
        serving: Callable[[], Serving | None] = lambda: None,
        runtime: Runtime = REAL,
    ) -> None:
        self._name = f"{hostname}/{os.getpid()}"
        self._store, self._ledger = store, ledger
        self._serving = serving
        self._told: Serving | None = None  # what the store was told of queues and places; renewals do not repeat it
        self._telling = threading.Lock()
        self.seconds = store.policy.lease
        self._good_until = 0.0
        self._reachable = True
        self._admits = True
        self._runtime, self.clock = runtime, runtime.clock
        self.stopped = runtime.event()
        self._thread: Any = None
        self._heartbeat: Heartbeat | None = None
        self._joined = ""  # under this name the heartbeat renews; none while the lease is to be taken
        self._was_here = False
        self._lost_early = False  # the store had no lease of this worker before that could lapse
        self._serial = 0
        self._housekeeping = Housekeeping(self, store, ledger)
        self.worker = self._new_name()

    def register(self, chore: Chore) -> None:
        """Adds a part to the housekeeping, before `start`."""
        self._housekeeping.register(chore)

    def _new_name(self) -> str:
        return f"{self._name}/{secrets.token_hex(3)}"

    @property
    def held(self) -> bool:
        """Whether the store still counts this worker as alive, and answers, as far as this side can know."""
        return self._admits and self._reachable and self.clock() < self._good_until

    def admit_no_more(self) -> None:
        """It is about to be left. Whoever is not in the ledger by now does not ask; see `Gate._enter`."""
        self._admits = False

    def doubt(self, error: StoreError) -> None:
        """Somebody else could not reach the store. Nobody need try before this thread has reached it again."""
        if self._reachable:
            self._reachable = False
            logger.error(
                "limits: limit store unreachable; limited tasks are on hold on this worker: %s", printable(error)
            )

    def start(self, threads: Threads, store: Store) -> None:
        """Takes the lease, and has it renewed until `stop`, through `store`. A store that is away is waited for."""
        try:
            self.ensure_joined()
        except StoreUnavailable as error:
            self.store_went_away(error)
        self._thread = self._runtime.start(self._housekeeping.run, "limits-lease")
        self._heartbeat = Heartbeat(
            threads,
            store,
            self.seconds / BEATS,
            self.clock,
            name=lambda: self._joined,
            on_renewed=self._was_renewed,
            on_lost=self._was_lost,
            on_silence=_nothing if threads.are_green else self._check_risk,
        )
        self._heartbeat.start()

    def stop(self) -> None:
        """Ends the renewals and leaves: what this worker still holds goes to others at once."""
        self.stopped.set()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._housekeeping.leaving(self.worker)
        self._leave()
        if self._thread is not None:
            self._thread.join(2 * NAP + self.seconds)
            self._leave()  # its last sweep may have been asked for something in this worker's name

    def _leave(self) -> None:
        try:
            after = self._store.leave(self.worker)
            while after.more:
                after = self._store.leave(self.worker)
            self._housekeeping.follow_up(after._replace(refreshes=()))  # another worker is asked for those
        except StoreError as error:
            logger.warning("limits: could not leave the store, so the lease will lapse: %s", printable(error))

    # -- called by the heartbeat, in its thread --------------------------------------------------------------

    def _was_renewed(self, name: str, when: float) -> None:
        if name == self._joined:
            self._good_until = when + self.seconds

    def _was_lost(self, name: str) -> None:
        if name == self._joined:
            self._joined = ""
            self._lost_early = self.clock() < self._good_until
            self._good_until = 0.0

    def _check_risk(self) -> None:
        """Past the last third of the lease there may be no further chance to end bodies whose slots go to others."""
        if self._joined and self.clock() > self._good_until - self.seconds / BEATS:
            self._housekeeping.lease_at_risk()

    # -- called by the housekeeping, in its thread -----------------------------------------------------------

    def ensure_joined(self) -> None:
        """Takes the lease; under another name if it was lost, since what the old one held counts for nothing."""
        if self._joined:
            return
        if not self._was_here:
            self._store.check_version()
        else:
            emptied = self._lost_early or self._store.last_serial() < self._serial
            old, self.worker = self.worker, self._new_name()
            logger.critical(STORE_EMPTIED if emptied else CUT_OFF, self.seconds, len(self._ledger), self.worker, old)
            self._lost_early, self._serial = False, 0
        sent, serving = self.clock(), self._serving()
        self._store.beat(self.worker, serving=serving)
        self._told = serving
        self._was_here = True
        self._good_until = sent + self.seconds
        self._joined = self.worker

    def tell_serving(self) -> None:
        """Tells the store which queues this worker consumes and with how many places, where that has changed. Called by
        the housekeeping, each second at the least, and where something changes that others wait for."""
        name = self._joined
        with self._telling:
            serving = self._serving()
            if not name or serving is None or serving == self._told:
                return
            sent = self.clock()
            outcome = self._store.beat(name, renew=True, serving=serving)
            if isinstance(outcome, Renewed):
                self._told = serving
                self._was_renewed(name, sent)
            else:
                self._was_lost(name)

    def saw_serial(self, serial: int) -> None:
        """The highest serial number that the store has given. A lower one later says that the store lost its data."""
        self._serial = max(self._serial, serial)

    def store_went_away(self, error: StoreError) -> None:
        self.doubt(error)
        self._check_risk()
        self.stopped.wait(min(NAP, self.seconds / 10))

    def store_is_back(self) -> None:
        if not self._reachable:
            self._reachable = True
            logger.warning("limits: the limit store is reachable again")


def _nothing() -> None:
    """In green pools the heartbeat's thread may not log: the housekeeping greenlet does."""
