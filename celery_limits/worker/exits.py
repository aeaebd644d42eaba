"""Every way out of a running task gives its slots back, once, before the delivery is acknowledged.

A body that ends normally releases in the process that ran it, right after its result is stored (`task_postrun`).
Every other end (killed, timed out, terminated, cancelled, never started) is seen by the worker's parent, in the
callbacks that the pool was given for the request. While the body may still be alive both release and acknowledgement
wait for its process to be gone. A release that could not reach the store is made up for soon after
(`Ledger.forgotten`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Reject, Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.log import get_logger

from celery_limits.metrics.meter import meter
from celery_limits.store import Store, StoreError
from celery_limits.store.outcomes import Aftermath, Released
from celery_limits.wire import HEADER

from .events import announce, listening
from .measuring import measure_hold
from .outbox import Outbox

__all__ = ["GONE_CHECK", "Holding", "Ledger", "Releaser"]

logger = get_logger(__name__)

PENDING = -1
"""In place of a fence, while the store is being asked."""

GONE_CHECK = 0.01
"""Seconds between two looks at a process that was told to die."""


class Ledger:
    """The tickets that this worker believes to hold, ticket -> fence."""

    def __init__(self) -> None:
        self._fences: dict[str, int] = {}
        self._back: set[str] = set()
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def enter(self, ticket: str, fence: int = PENDING) -> None:
        with self._lock:
            self._fences[ticket] = fence
            self._back.discard(ticket)

    def refused(self, ticket: str) -> None:
        """The store was asked, and this delivery is not to run. Should the store say that this worker runs the ticket
        all the same, it means another delivery of it, whose answer was lost: nobody ran that, so it goes back."""
        with self._lock:
            if self._fences.get(ticket) == PENDING:
                del self._fences[ticket]
                self._back.add(ticket)

    def close(self, ticket: str, *, owed_back: bool = False) -> None:
        """This worker is done with the ticket; `owed_back`: the store was not told yet, and its message goes back."""
        with self._lock:
            self._fences.pop(ticket, None)
            if owed_back:
                self._back.add(ticket)

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._fences

    def is_pending(self, ticket: str) -> bool:
        return self._fences.get(ticket) == PENDING

    def __len__(self) -> int:
        return len(self._fences)

    @property
    def in_doubt(self) -> bool:
        """Whether the last look found something that needs a second one."""
        return bool(self._done)

    def forgotten(self, held: dict[str, int]) -> list[tuple[str, int, bool]]:
        """Of what the store says this worker runs, what the worker is done with; and whether it goes back.

        Only what it was done with at the last look too: two deliveries of one ticket may be asked about at once, and
        the one that is answered first closes what the other is about to begin.
        """
        with self._lock:
            self._back.intersection_update(held)
            before, self._done = self._done, {t: fence for t, fence in held.items() if t not in self._fences}
            return [(t, fence, t in self._back) for t, fence in self._done.items() if before.get(t) == fence]


class Releaser:
    """Gives slots back, and finishes what that sets free when it must go through the outbox."""

    def __init__(self, store: Store, outbox: Outbox | None) -> None:
        self.store, self.outbox = store, outbox

    def release(self, ticket: str, worker: str, fence: int, *, back: bool = False) -> bool:
        """False when the store could not be told."""
        try:
            outcome = self.store.release(ticket, worker, fence, back=back)
        except StoreError as error:
            logger.error("limits: %s is not released yet: %s", ticket, error)
            return False
        if isinstance(outcome, Released):
            self.follow_up(outcome.after)
        return True

    def follow_up(self, after: Aftermath) -> None:
        if not after.outbox or self.outbox is None:
            return
        try:
            self.outbox.work_off()
        except StoreError as error:
            logger.error("limits: the outbox has to wait: %s", error)


def is_gone(pid: int) -> bool:
    """Whether nothing of the process runs any more; one that only waits to be reaped does not."""
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
        self, request: Any, *, ledger: Ledger, releaser: Releaser, later: Callable[[Holding], Any], forked: bool
    ) -> None:
        self.ticket, self.worker, self.fence, self._since = "", "", 0, 0.0
        self._request, self._ledger, self._releaser, self._later = request, ledger, releaser, later
        self._forked = forked
        self._accepting = self._over = False
        self._released = True
        self._pending: list[tuple[Callable[[], Any], bool]] = []
        self._hidden = {name: getattr(request, name) for name in _HOOKS}
        for name in _HOOKS:
            setattr(request, name, getattr(self, name))

    def hold(self, ticket: str, worker: str, fence: int) -> None:
        """The request was admitted."""
        self.ticket, self.worker, self.fence = ticket, worker, fence
        self._ledger.enter(ticket, fence)
        self._since = time.monotonic()
        self._released = False

    @property
    def held(self) -> bool:
        return not self._released

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
        told = self._releaser.release(self.ticket, self.worker, self.fence, back=back)
        self._close(owed_back=back and not told)

    def _close(self, *, owed_back: bool = False) -> None:
        self._ledger.close(self.ticket, owed_back=owed_back)
        if meter() is not None:
            measure_hold(self._request.name, self._slots, self._since)
        if listening(self._request):
            announce(self._request, "released", ticket=self.ticket, keys=self.keys)

    def body_ended(self, *, released: bool) -> None:
        """The body has run to its end; `released`: and has given its slots back, or the housekeeping will."""
        self._over = True
        if released and not self._released:
            self._released = True
            self._close()
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
        self._accepting = True
        try:
            return self._hidden["on_accepted"](pid, time_accepted)
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

        Celery skips a redelivered task whose success is stored already (`worker_deduplicate_successful_tasks`): its
        result comes without a runtime, or is a Reject if what follows on it could not be published, and nothing was
        released. Whether a rejected message goes back is seen when it is.
        """
        rejected = _was_rejected(result)
        self.body_ended(released=not rejected and not _was_skipped(result))
        if not rejected:
            self.release()
        return self._hidden["on_success"](result, *args, **kwargs)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Where the body is not a process of its own, a hard time limit has unwound it before this is called."""
        if not soft and not self._forked:
            self.body_ended(released=False)
            self.release()
        return self._hidden["on_timeout"](soft, timeout)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Called by the pool when there is no result: the process died, was killed, ran out of time; or was not able to
        bring one, and lives."""
        if not isinstance(_exception_of(exc_info), _DYING):
            self._over = True
        try:
            return self._hidden["on_failure"](exc_info, *args, **kwargs)
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
