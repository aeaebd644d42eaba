"""What follows from the store's answer, or from not asking it: the gate's half of the state machine in `passage`.

Each function is an event of one passage. It moves the passage on, and returns the intents that the gate carries out, in
this order. No I/O here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from celery_limits.errors import LimitError
from celery_limits.store.errors import StoreBroken, StoreError
from celery_limits.store.outcomes import (
    QUIET,
    Admitted,
    Aftermath,
    Corrupt,
    Discarded,
    Duplicate,
    Expired,
    Full,
    Lost,
    Parked,
    Refresh,
    Revoked,
    Superseded,
)

from .passage import Event, Passage

__all__ = [
    "Call",
    "Defer",
    "Doubt",
    "Drop",
    "EndAs",
    "Fail",
    "FollowUp",
    "Forget",
    "FreePlace",
    "GateIntent",
    "Hold",
    "MarkParked",
    "RefreshLimit",
    "Run",
    "Strip",
    "Withdraw",
    "admitted",
    "answered",
    "ended_by_celery",
    "store_away",
    "unlimited",
    "unreadable",
]


class Call(NamedTuple):
    """Ask the store; `whole`: with the message, so that it can be parked."""

    whole: bool = False


class Run(NamedTuple):
    """Hand it to the pool, or let the pool go on that has it."""


class FreePlace(NamedTuple):
    """Free the place of the pool that was taken for it."""


class Defer(NamedTuple):
    """Keep the delivery until the store answers."""


class Doubt(NamedTuple):
    """The store can't be reached: nobody need ask it until the housekeeping has."""

    error: StoreError


class Hold(NamedTuple):
    """It holds its slots: enter that into the ledger, and into the message for the process that runs the body."""

    outcome: Admitted


class Strip(NamedTuple):
    """Take off what would pass for an admission when its body ends."""


class Fail(NamedTuple):
    """A limit that can't be understood never means "no limit": the task fails."""

    error: LimitError


class Forget(NamedTuple):
    """The ledger need not expect an answer any more."""

    event: Event


class Withdraw(NamedTuple):
    """The store was not asked after all: the ledger is to be as if it never was to be."""


class RefreshLimit(NamedTuple):
    asked: Refresh


class MarkParked(NamedTuple):
    """The store has the message, and with our own transport has acknowledged it."""


class FollowUp(NamedTuple):
    after: Aftermath


class Drop(NamedTuple):
    """Acknowledge the delivery: the store, or a live worker, has the message."""

    outcome: Parked | Duplicate


class EndAs(NamedTuple):
    """The task ends without having run."""

    outcome: Revoked | Expired | Discarded | Superseded


GateIntent: TypeAlias = (
    Call
    | Run
    | FreePlace
    | Defer
    | Doubt
    | Hold
    | Strip
    | Fail
    | Forget
    | Withdraw
    | RefreshLimit
    | MarkParked
    | FollowUp
    | Drop
    | EndAs
)
Intents: TypeAlias = tuple[GateIntent, ...]


def ended_by_celery(passage: Passage) -> Intents:
    """Revoked or expired, and Celery has ended it."""
    passage.refuse()
    return Forget(Event.ENDED_BY_CELERY), FreePlace()


def unreadable(passage: Passage, error: LimitError) -> Intents:
    """What the store was asked for is given up; what it has granted is released when the message is rejected."""
    if not passage.holds:
        passage.refuse()
    return Forget(Event.UNREADABLE), Fail(error), FreePlace()


def unlimited(passage: Passage) -> Intents:
    passage.unlimit()
    return Strip(), Run()


def store_away(passage: Passage, *, was_asked: bool) -> Intents:
    """The lease is not held. One that was asked about may hold its slots, so the ledger goes on expecting it."""
    passage.defer()
    withdraw = () if was_asked else (Withdraw(),)
    return *withdraw, Defer(), FreePlace()


def admitted(passage: Passage, worker: str, outcome: Admitted, now: float) -> Intents:
    """By the answer to this passage's own question, or by a release that has handed it off."""
    passage.admit(passage.plan.ticket, worker, outcome.fence, now)
    return Hold(outcome), Run()


def answered(passage: Passage, outcome: Any, now: float) -> Intents:
    """The store has answered, or the call has failed with a `StoreError`."""
    if isinstance(outcome, StoreBroken):
        passage.refuse()
        return Forget(Event.UNREADABLE), Fail(outcome), FreePlace()
    if isinstance(outcome, StoreError):
        passage.defer()
        return Doubt(outcome), Defer(), FreePlace()
    if isinstance(outcome, Full) and passage.delivery.packs:
        return (Call(whole=True),)
    after = getattr(outcome, "after", QUIET)
    refreshes = tuple(RefreshLimit(asked) for asked in after.refreshes)
    if isinstance(outcome, Admitted):
        return *refreshes, *admitted(passage, passage.asked_as, outcome, now)
    parked = (MarkParked(),) if isinstance(outcome, (Parked, Duplicate)) else ()
    return *refreshes, *parked, FollowUp(after), Forget(Event.REFUSED), *_refused(passage, outcome), FreePlace()


def _refused(passage: Passage, outcome: Any) -> Intents:
    passage.refuse()
    if isinstance(outcome, (Parked, Duplicate)):
        return (Drop(outcome),)
    if isinstance(outcome, (Revoked, Expired, Discarded, Superseded)):
        return (EndAs(outcome),)
    if isinstance(outcome, Corrupt):
        request = passage.request
        return (Fail(StoreBroken(f"{request.name}[{request.id}]: {outcome.why}; run the audit")),)
    assert isinstance(outcome, (Lost, Full)), outcome
    passage.defer()
    return (Defer(),)
