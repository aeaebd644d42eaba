"""The life of one delivery in a worker, as a state machine: events in, intents out. No I/O, no Celery, no Redis.

    new ─ask─► asking ─admitted─► held ─accept─► accepting ─► begun ─┬─ result ───────────► ended: done
     │            │                │                                 ├─ result: Reject ► over ─► ended: done or back
     │            │                │                                 └─ killed ► dying ─ gone ─► ended: done or back
     │            │                └─ flushed, lost before it began ───────────────────────────► ended: back
     │            ├─ parked, duplicate, revoked, expired, discarded, superseded, corrupt ──────► refused
     │            └─ store away, lease lost ► deferred ─ store back ─► asking
     ├─ handed off by a release ► held
     └─ without limits here ► unlimited

A passage is the only thing that limits attach to a Celery request. The gate feeds it events ("the store answered
Parked") and so do the hooks on the request ("the pool brought a result"); each event returns the intents that the
caller carries out, in this order. The simulation carries out the same intents in virtual time.

A slot is released, and its message is acknowledged or rejected, only when the body can't be alive any more. A body that
is a process of its own may outlive the callback that reports its end: such a passage is `dying` until it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

__all__ = [
    "GONE_CHECK",
    "Acknowledge",
    "After",
    "Close",
    "Event",
    "HookIntent",
    "Host",
    "Passage",
    "Pool",
    "Reject",
    "Release",
    "RequestLike",
    "Result",
    "State",
    "returns_to_broker",
]

GONE_CHECK = 0.01
"""Seconds between two looks at a process that was told to die."""


class State(Enum):
    NEW = "new"
    ASKING = "asking"
    DEFERRED = "deferred"
    REFUSED = "refused"
    UNLIMITED = "unlimited"
    HELD = "held"
    ACCEPTING = "accepting"
    BEGUN = "begun"
    OVER = "over"
    DYING = "dying"
    DONE = "done"
    BACK = "back"


_HOLDING = frozenset({State.HELD, State.ACCEPTING, State.BEGUN, State.OVER, State.DYING})
_MAY_RUN = frozenset({State.ACCEPTING, State.BEGUN, State.DYING})


class Event(Enum):
    """What ends a passage, or the question about it."""

    RESULT = "the pool brought a result"
    ACKNOWLEDGED = "Celery acknowledges the message"
    REJECTED = "Celery rejects the message"
    TIMED_OUT = "a hard time limit has unwound the body"
    NO_RESULT = "the pool says that there is no result"
    NOT_ACCEPTED = "the body was kept from beginning"
    FLUSHED = "the pool dropped the job"
    HANDOFF_UNUSED = "what was handed off did not come to the gate"
    CONNECTION_LOST = "the connection that brought the message is lost"
    REFUSED = "the store did not admit it"
    EXCHANGE_ABORTED = "the exchange with the store was aborted"
    ASK_ABORTED = "the question was aborted"
    ENDED_BY_CELERY = "Celery revoked it, or it has expired"
    UNREADABLE = "its limits can't be read"


class RequestLike(Protocol):
    """What a passage reads of a Celery request."""

    id: str
    name: str
    acknowledged: bool
    worker_pid: int | None
    _already_cancelled: bool

    def limits_acknowledge(self) -> None:
        """Celery's own way to acknowledge."""

    def limits_reject(self, requeue: bool) -> None: ...


_ALWAYS = frozenset({Event.FLUSHED, Event.HANDOFF_UNUSED, Event.CONNECTION_LOST, Event.REFUSED, Event.EXCHANGE_ABORTED})
_UNLESS_ACKNOWLEDGED = frozenset({Event.NO_RESULT, Event.NOT_ACCEPTED})


def returns_to_broker(
    event: Event, *, acknowledged: bool = False, cancelled: bool = False, requeue: bool = False
) -> bool:
    """Whether the message comes again after this event, so that the ticket goes back instead of being done.

    `acknowledged`: the message is, so there is nothing that could come again. `cancelled`: Celery cancelled the task (a
    cold shutdown, a lost connection) and leaves its message to the broker. `requeue`: as it is rejected.

    | event                                                            | comes again                     |
    |------------------------------------------------------------------|---------------------------------|
    | RESULT, ACKNOWLEDGED                                             | no                              |
    | REJECTED                                                         | if requeue and not acknowledged |
    | TIMED_OUT                                                        | if cancelled and not acknowledged |
    | NO_RESULT, NOT_ACCEPTED                                          | if not acknowledged             |
    | FLUSHED, HANDOFF_UNUSED, CONNECTION_LOST, EXCHANGE_ABORTED       | yes                             |
    | REFUSED: should the store hold it all the same, nobody ran that  | yes                             |
    | ASK_ABORTED, ENDED_BY_CELERY, UNREADABLE                         | no                              |
    """
    if event in _ALWAYS:
        return True
    if event in _UNLESS_ACKNOWLEDGED:
        return not acknowledged
    if event is Event.REJECTED:
        return requeue and not acknowledged
    if event is Event.TIMED_OUT:
        return cancelled and not acknowledged
    return False


# -- intents of the hooks on a request ------------------------------------------------------------------------


class Release(NamedTuple):
    """Release the slots in the store; `back`: the message comes again."""

    back: bool


class Close(NamedTuple):
    """The process of the body has released: only this worker's books are to be closed."""


class Acknowledge(NamedTuple):
    """Celery's own acknowledgement."""


class Reject(NamedTuple):
    """Celery's own rejection."""

    requeue: bool


class After(NamedTuple):
    """Call `settle` after this time."""

    seconds: float


HookIntent: TypeAlias = Release | Close | Acknowledge | Reject | After
_Action: TypeAlias = Acknowledge | Reject | None


class Host(Protocol):
    """Who feeds passages, and carries out their intents: the gate."""

    not_now: type[BaseException]
    """Raised to keep the pool from running a body."""

    def carry_out(self, passage: Passage, intents: Iterable[Any]) -> None: ...

    def may_begin(self, passage: Passage) -> bool: ...

    def send_back(self, passage: Passage) -> None: ...

    def superseded(self, passage: Passage) -> str:
        """Its body was ended for a newcomer; the reason that its result gives."""


class Pool(NamedTuple):
    """What a passage has to know of the pool. `forked`: each body is in a process of its own; `parent_releases`: not
    that process releases the slots; `is_gone`: whether a process is."""

    forked: bool
    parent_releases: bool
    is_gone: Callable[[int], bool]


class Result(Enum):
    """What the pool brought when a body was to run."""

    ENDED = "the body has come to its task_postrun"
    SKIPPED = "Celery found its success stored, and ran no body"
    REJECTED = "a Reject: whether its message goes back is said when Celery rejects it"


class Passage:
    """One delivery. `number` names it among all of this worker's, however often the store is asked about it, so that a
    lost answer is given again."""

    __slots__ = (
        *("_pending", "arrival", "asked_as", "delivery", "fence", "held_before", "host", "number", "plan", "pool"),
        *("request", "since", "state", "superseded_by", "ticket", "worker"),
    )

    def __init__(self, request: RequestLike, number: int, pool: Pool, host: Host) -> None:
        self.request, self.number, self.pool, self.host = request, number, pool, host
        self.state = State.NEW
        self.ticket = ""
        """Empty until the store is to be asked."""
        self.asked_as = ""
        """In which worker's name the store was asked."""
        self.plan: Any = None
        self.delivery: Any = None
        """What the store is asked, and where the message is."""
        self.worker, self.fence, self.since = "", 0, 0.0
        """The admission."""
        self.held_before: tuple[float, ...] = ()
        """For each link the seconds for which it was held before the admission, where somebody measures."""
        self.arrival = ""
        """Its number in the order in which this worker received messages, where that matters."""
        self.superseded_by = ""
        """The id of the task for which its body is to end."""
        self._pending: list[tuple[_Action, bool]] = []

    @property
    def holds(self) -> bool:
        """Whether it holds slots."""
        return self.state in _HOLDING

    @property
    def was_admitted(self) -> bool:
        return bool(self.worker)

    @property
    def admission(self) -> tuple[str, str, int]:
        return self.ticket, self.worker, self.fence

    def returns(self, event: Event, *, requeue: bool = False) -> bool:
        request = self.request
        cancelled = request._already_cancelled
        return returns_to_broker(event, acknowledged=request.acknowledged, cancelled=cancelled, requeue=requeue)

    # -- at the gate ------------------------------------------------------------------------------------------

    def ask(self, ticket: str) -> None:
        """The store is to be asked."""
        self.ticket, self.state = ticket, State.ASKING

    def defer(self) -> None:
        self.state = State.DEFERRED

    def refuse(self) -> None:
        self.state = State.REFUSED

    def unlimit(self) -> None:
        """No task here declares limits for it."""
        self.state = State.UNLIMITED

    def admit(self, ticket: str, worker: str, fence: int, now: float) -> None:
        self.ticket, self.worker, self.fence, self.since = ticket, worker, fence, now
        self.state = State.HELD

    # -- the hooks on the request -----------------------------------------------------------------------------

    def accept(self) -> None:
        """The pool accepts it: Celery's own handler is called next."""
        if self.state is State.HELD:
            self.state = State.ACCEPTING

    def accepted(self) -> None:
        if self.state is State.ACCEPTING:
            self.state = State.BEGUN

    def not_accepted(self) -> tuple[HookIntent, ...]:
        """That handler failed, which keeps the body from beginning, unless that is in a process of its own."""
        if self.pool.forked:
            self.accepted()
            return ()
        back = self.returns(Event.NOT_ACCEPTED)
        return (*self._release(back), *self._flush())

    def acknowledge(self) -> tuple[HookIntent, ...]:
        """An early acknowledgement comes while the body is being accepted; any other says that it is over."""
        if self.state is State.ACCEPTING or not self.holds:
            return (Acknowledge(),)
        return self._end(Acknowledge(), back=self.returns(Event.ACKNOWLEDGED))

    def reject(self, requeue: bool) -> tuple[HookIntent, ...]:
        if not self.holds:
            return (Reject(requeue),)
        return self._end(Reject(requeue), back=self.returns(Event.REJECTED, requeue=requeue))

    def bring(self, result: Result) -> tuple[HookIntent, ...]:
        """The pool brought a result.

        Where the parent releases, the process has done so only if it found that the parent's event loop has ended: a
        second release is stale, and does nothing.
        """
        closed: tuple[HookIntent, ...] = ()
        if self.holds:
            self.state = State.OVER
            if result is Result.ENDED and not self.pool.parent_releases:
                self.state, closed = State.DONE, (Close(),)
        intents = (*closed, *self._flush())
        return intents if result is Result.REJECTED else (*intents, *self._release(self.returns(Event.RESULT)))

    @property
    def is_left_to_broker(self) -> bool:
        """Whether Celery has cancelled it (a cold shutdown, a lost connection), so that its message comes again. Should
        its time limit pass while its process ends, Celery would acknowledge it all the same, and tell nobody."""
        return self.request._already_cancelled and not self.request.acknowledged

    def time_out(self) -> tuple[HookIntent, ...]:
        """A hard time limit. Where the body is not a process of its own, that has unwound it before this is called."""
        if self.pool.forked:
            return ()
        if self.holds:
            self.state = State.OVER
        return (*self._flush(), *self._release(self.returns(Event.TIMED_OUT)))

    def fail(self, *, died: bool) -> tuple[HookIntent, ...]:
        """There is no result: the process died, was killed, ran out of time; or it was not able to bring one, and
        lives. Celery's own handler is called next."""
        if died:
            return ()
        if self.holds:
            self.state = State.OVER
            return ()
        return self._flush()

    def failed(self) -> tuple[HookIntent, ...]:
        """Celery's own handler was called. Where that has not acknowledged it: the message was acknowledged before it
        began, or cancelled and left to the broker to deliver again."""
        if not self.holds or self._pending:
            return ()
        return self._end(None, back=self.returns(Event.NO_RESULT))

    def flush(self) -> tuple[HookIntent, ...]:
        """The pool dropped it: no process runs it, or will."""
        return self._release(self.returns(Event.FLUSHED))

    def settle(self) -> tuple[HookIntent, ...]:
        """What waits for the body's end, if that has come; else it is to be looked for later."""
        if self._may_run():
            return (After(GONE_CHECK),) if self.pool.forked and self._pending else ()
        return self._flush()

    # -- how it ends --------------------------------------------------------------------------------------------

    def _may_run(self) -> bool:
        """One that was released and has something pending began once."""
        if self.state not in _MAY_RUN and (self.holds or not self._pending):
            return False
        return not (self.pool.forked and self.pool.is_gone(self.request.worker_pid or 0))

    def _end(self, action: _Action, *, back: bool) -> tuple[HookIntent, ...]:
        """Releases, then acknowledges or rejects; both when the body is gone."""
        self._pending.append((action, back))
        intents = self.settle()
        if self._pending and self.holds:
            self.state = State.DYING
        return intents

    def _flush(self) -> tuple[HookIntent, ...]:
        pending, self._pending = self._pending, []
        intents: list[HookIntent] = []
        for action, back in pending:
            intents += self._release(back)
            if action is not None:
                intents.append(action)
        return tuple(intents)

    def _release(self, back: bool) -> tuple[HookIntent, ...]:
        if not self.holds:
            return ()
        self.state = State.BACK if back else State.DONE
        return (Release(back),)
