"""Every way out of a running task gives its slots back, once, before the delivery is acknowledged.

A body that ends normally releases in the process that ran it, right after its result is stored (`task_postrun`); but on
our own transport the parent of a prefork pool releases, together with what comes next (see `turn`). Every other end
(killed, timed out, terminated, cancelled, never started) is seen by the worker's parent, in the callbacks that the pool
was given for the request. While the body may still be alive both release and acknowledgement wait for its process to be
gone. A release that could not reach the store is made up for soon after (`Ledger.forgotten`).
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Reject, Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.log import get_logger

from celery_limits.metrics.meter import meter
from celery_limits.store import Store, StoreError
from celery_limits.store.outcomes import Aftermath, Release, Released
from celery_limits.wire import HEADER

from .events import announce, listening
from .measuring import measure_hold
from .outbox import Outbox

if TYPE_CHECKING:
    from .handoff import Taker

__all__ = ["GONE_CHECK", "Holding", "Ledger", "Releaser", "leave_to_parent", "left_to_parent"]

logger = get_logger(__name__)

PENDING = -1
"""In place of a fence, while the store is being asked."""

LOOKS = 6
"""At what the store believes to run here: those of two leases."""

GONE_CHECK = 0.01
"""Seconds between two looks at a process that was told to die."""


_by_parent = mmap.mmap(-1, 1)
"""Shared with the processes of the pool, if they are forked. Any other has a page of its own, and releases itself."""


def leave_to_parent(yes: bool) -> None:
    """Whether the parent is there to release for the processes of its pool, which saves each of them the exchange.
    While its event loop does not run (a shutdown, a lost connection) it hears late of results, and they release."""
    _by_parent[0] = yes


def left_to_parent() -> bool:
    return bool(_by_parent[0])


class Ledger:
    """The tickets that this worker believes to hold, ticket -> fence."""

    def __init__(self) -> None:
        self._fences: dict[str, int] = {}
        self._asking: dict[str, set[int]] = {}
        self._ran: dict[str, int] = {}  # and has ended, while another delivery is still asked about
        self._back: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def ask(self, ticket: str, delivery: int) -> bool:
        """The store is to be asked about this delivery, which may hold the ticket's slots from now on. Whether that is
        the first time."""
        with self._lock:
            self._fences.setdefault(ticket, PENDING)
            self._back.pop(ticket, None)
            asking = self._asking.setdefault(ticket, set())
            first = delivery not in asking
            asking.add(delivery)
            return first

    def ask_no_more(self, ticket: str, delivery: int, *, back: bool = True) -> None:
        """It is not to run. Should the store say that this worker runs the ticket all the same, that means a delivery
        whose answer was lost: nobody ran that, so it goes back. Another one of the ticket may still be asked about."""
        with self._lock:
            if self._is_answered(ticket, delivery) and self._fences.get(ticket) == PENDING:
                del self._fences[ticket]
                if back:
                    self._back[ticket] = LOOKS

    def _is_answered(self, ticket: str, delivery: int) -> bool:
        """Takes it out; whether it was the last of its ticket."""
        asking = self._asking.get(ticket, set())
        asking.discard(delivery)
        if not asking:
            self._asking.pop(ticket, None)
        return not asking

    def enter(self, ticket: str, fence: int, delivery: int = 0) -> None:
        """It runs; `delivery`: as whoever was asked about."""
        with self._lock:
            self._is_answered(ticket, delivery)
            self._fences[ticket] = fence
            self._back.pop(ticket, None)

    def close(self, ticket: str, *, back: bool = False) -> None:
        """It has run, or is not to; `back`: its message goes back, so if the store was not told or still gets a call of
        before, nobody here has run what that says."""
        with self._lock:
            fence = self._fences.pop(ticket, PENDING)
            if ticket in self._asking:
                self._fences[ticket] = PENDING
                self._ran[ticket] = PENDING if back else fence
            if back:
                self._back[ticket] = LOOKS

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._fences

    def __len__(self) -> int:
        return len(self._fences)

    @property
    def in_doubt(self) -> bool:
        """Whether the last look found something that needs a second one."""
        return bool(self._done)

    def forgotten(self, held: dict[str, int]) -> list[tuple[str, int, bool]]:
        """Of what the store says this worker runs, what the worker is done with; and whether it goes back.

        Only what it was done with at the last look too: two deliveries of one ticket may be asked about at once, and
        the one that is answered first closes what the other is about to begin. What goes back is remembered for some
        looks more: `held` may be older than the admission, or the request for it still be under way.
        """
        with self._lock:
            self._back = {t: LOOKS if t in held else left - 1 for t, left in self._back.items() if left or t in held}
            self._ran = {t: fence for t, fence in self._ran.items() if t in held or t in self._asking}
            before, self._done = self._done, {t: fence for t, fence in held.items() if t not in self._fences}
            again = [(t, fence) for t, fence in self._done.items() if before.get(t) == fence]
            return [(t, fence, t in self._back and self._ran.get(t) != fence) for t, fence in again]


class Releaser:
    """Gives slots back, and finishes what that sets free when it must go through the outbox."""

    def __init__(self, store: Store, outbox: Outbox | None) -> None:
        self.store, self.outbox = store, outbox
        self.taker: Taker | None = None

    def release(self, ticket: str, worker: str, fence: int, *, back: bool = False) -> None:
        """What the store can't be told now, the housekeeping makes up for."""
        taking = self.taker.taking() if self.taker is not None and not back else None
        outcome: Release | None = None
        try:
            outcome = self.store.release(ticket, worker, fence, back=back, taking=taking.told if taking else ())
        except StoreError as error:
            logger.error("limits: %s is not released yet: %s", ticket, error)
        finally:
            if taking and self.taker is not None:
                self.taker.arrive(taking, worker, outcome)
        if isinstance(outcome, Released):
            self.follow_up(outcome.after)

    def follow_up(self, after: Aftermath) -> None:
        if not after.outbox or self.outbox is None:
            return
        try:
            self.outbox.work_off()
        except StoreError as error:
            logger.error("limits: the outbox has to wait: %s", error)


def is_gone(pid: int) -> bool:
    """Whether nothing of the process runs any more; one that only waits to be reaped does not."""
    if pid == os.getpid():  # in our own name the pool accepts what was revoked, and whose process is dead
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return True
    try:  # a system without /proc: a zombie counts as alive there, until the pool has reaped it
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


class Holding:
    """One request's admissions, and the hooks on that request that end them.

    The hooks are attributes of the request itself, so they work with any Request class, and they call what they hide.
    They must be there before the request is handed to the pool, which keeps the callbacks that it is given; until
    `hold`, and once released, they let everything through.
    """

    def __init__(
        self,
        request: Any,
        *,
        ledger: Ledger,
        give_back: Callable[[Holding, bool], Any],
        later: Callable[[Holding], Any],
        forked: bool,
        by_parent: bool,
    ) -> None:
        self.ticket, self.worker, self.fence, self._since = "", "", 0, 0.0
        self._request, self._ledger, self._give_back, self._later = request, ledger, give_back, later
        self._forked, self._by_parent = forked, by_parent
        self._accepting = self._over = False
        self._released = True
        self._pending: list[tuple[Callable[[], Any], bool]] = []
        self._hidden = {name: getattr(request, name) for name in _HOOKS}
        for name in _HOOKS:
            setattr(request, name, getattr(self, name))

    def hold(self, ticket: str, worker: str, fence: int, delivery: int) -> None:
        """The request was admitted, as this delivery of the worker's."""
        self.ticket, self.worker, self.fence = ticket, worker, fence
        self._ledger.enter(ticket, fence, delivery)
        self._since = time.monotonic()
        self._released = False

    @property
    def held(self) -> bool:
        return not self._released

    @property
    def message(self) -> Any:
        """The request's."""
        return self._request.message

    @property
    def keys(self) -> list[str]:
        return [link["key"] for link in self._request.request_dict[HEADER]["links"]]

    @property
    def _slots(self) -> list[str]:
        """The keys that it holds until it ends; what a rate gave is gone at once."""
        return [link["key"] for link in self._request.request_dict[HEADER]["links"] if link["kind"] != "rate"]

    def told(self) -> dict[str, Any]:
        """For a person."""
        request = self._request
        mine = {"ticket": self.ticket, "fence": self.fence, "keys": self.keys}
        return {"task_id": request.id, "task": request.name, **mine}

    def release(self, *, back: bool = False) -> None:
        if self._released:
            return
        self._released = True
        self._give_back(self, back)

    @property
    def admission(self) -> tuple[str, str, int]:
        return self.ticket, self.worker, self.fence

    def closed(self, *, back: bool = False) -> None:
        """It was released, or that could not be told; `back`: its message goes back."""
        self._ledger.close(self.ticket, back=back)
        if meter() is not None:
            measure_hold(self._request.name, self._slots, self._since)
        if listening(self._request):
            announce(self._request, "released", ticket=self.ticket, keys=self.keys)

    def body_ended(self, *, released: bool) -> None:
        """The body has run to its end; `released`: and has given its slots back, or the housekeeping will."""
        self._over = True
        if released and not self._released:
            self._released = True
            self.closed()
        self.settle()

    def _end(self, action: Callable[[], Any], *, back: bool) -> None:
        """Releases, then acknowledges or rejects; both when the body is gone."""
        self._pending.append((action, back))
        self.settle()

    def settle(self) -> None:
        """Does what waits for the body's end, if that has come; else looks again later."""
        request = self._request
        started = request.time_start is not None
        if started and not self._over and not (self._forked and is_gone(request.worker_pid)):
            if self._forked and self._pending:
                self._later(self)
            return
        pending, self._pending = self._pending, []
        for action, back in pending:
            self.release(back=back)
            action()

    # -- the hooks ---------------------------------------------------------------------------------------

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        """What is raised here keeps the body from beginning, unless that is in a process of its own."""
        self._accepting = True
        try:
            return self._hidden["on_accepted"](pid, time_accepted)
        except BaseException:
            if not self._forked:
                self._over = True
                self.release(back=not self._request.acknowledged)
                self.settle()
            raise
        finally:
            self._accepting = False

    def acknowledge(self) -> Any:
        """An early acknowledgement comes while the body is being accepted; any other says that it is over."""
        if self._accepting or self._released:
            return self._hidden["acknowledge"]()
        return self._end(self._hidden["acknowledge"], back=False)

    def reject(self, requeue: bool = False) -> Any:
        if self._released:
            return self._hidden["reject"](requeue)
        back = requeue and not self._request.acknowledged  # else there is nothing to put back
        return self._end(lambda: self._hidden["reject"](requeue), back=back)

    def on_success(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        """The pool has brought a result, so the body has come to its `task_postrun`; or there was no body to run.

        Where the parent releases, the process has done so only if it found that the parent's event loop has ended: a
        second release is stale, and does nothing.
        Celery skips a redelivered task whose success is stored already (`worker_deduplicate_successful_tasks`): its
        result comes without a runtime, or is a Reject if what follows on it could not be published, and nothing was
        released. Whether a rejected message goes back is seen when it is.
        """
        rejected = _was_rejected(result)
        self.body_ended(released=not self._by_parent and not rejected and not _was_skipped(result))
        if not rejected:
            self.release()
        return self._hidden["on_success"](result, *args, **kwargs)

    @property
    def _is_left_to_broker(self) -> bool:
        """Whether Celery has cancelled it (a cold shutdown, a lost connection), so that its message comes again. Should
        its time limit pass while its process ends, Celery would acknowledge it all the same, and tell nobody."""
        return self._request._already_cancelled and not self._request.acknowledged

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Where the body is not a process of its own, a hard time limit has unwound it before this is called."""
        left = not soft and self._is_left_to_broker
        if not soft and not self._forked:
            self.body_ended(released=False)
            self.release(back=left)
        return None if left else self._hidden["on_timeout"](soft, timeout)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Called by the pool when there is no result: the process died, was killed, ran out of time; or was not able to
        bring one, and lives."""
        died = isinstance(_exception_of(exc_info), _DYING)
        if not died:
            self._over = True
        try:
            return None if died and self._is_left_to_broker else self._hidden["on_failure"](exc_info, *args, **kwargs)
        finally:
            if not self._released and not self._pending:
                # Acknowledged before it began, or cancelled and left to the broker to deliver again.
                self._end(lambda: None, back=not self._request.acknowledged)


_HOOKS = ("on_accepted", "acknowledge", "reject", "on_success", "on_timeout", "on_failure")
_DYING = (WorkerLostError, Terminated, TimeLimitExceeded)
"""What the pool itself says of a process. Any other exception was brought by the process, whose body is over then."""


def _was_skipped(result: Any) -> bool:
    return isinstance(result, tuple) and len(result) == 3 and not result[0] and result[2] is None


def _was_rejected(result: Any) -> bool:
    return isinstance(result, tuple) and bool(result[0]) and isinstance(_exception_of(result[1]), Reject)


def _exception_of(exc_info: Any) -> Any:
    exception = exc_info.exception
    return exception.exc if isinstance(exception, ExceptionWithTraceback) else exception
