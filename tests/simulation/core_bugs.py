"""Bugs of the worker that the simulation must catch: defects that were mended in its core, put back; and their kind.

A bug is a change of one function for as long as it is seeded. What was mended in Celery's pool itself, in the channel
or in the bootsteps is no part of the core, and has tests of its own (`tests/worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from celery_limits.dispatch.outbox import Outbox
from celery_limits.lease.ledger import Ledger
from celery_limits.patches import asynpool
from celery_limits.worker import passage
from celery_limits.worker.gate import Gate
from celery_limits.worker.handoff import DirectHandoff
from celery_limits.worker.passage import Event, Passage

__all__ = ["CORE_BUGS", "CoreBug"]


class CoreBug(NamedTuple):
    name: str
    commit: str
    """What mended it; empty for one of the same kind that was never made."""
    seed: int
    """The first seed that shows it."""
    found: str
    seed_into: Callable[[pytest.MonkeyPatch], None]

    @contextmanager
    def seeded(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            self.seed_into(patch)
            yield


def _nothing(*_: Any, **__: Any) -> tuple[()]:
    return ()


def _refusal_says_nothing(patch: pytest.MonkeyPatch) -> None:
    """A refused delivery closes the entry of another one, whose answer was lost: taken for done."""
    patch.setattr(passage, "_ALWAYS", passage._ALWAYS - {Event.REFUSED})


def _one_look(patch: pytest.MonkeyPatch) -> None:
    """What the store holds and the ledger does not is released at once, though its answer may be on its way."""

    def forgotten(ledger: Ledger, held: dict[str, int]) -> list[tuple[str, int, bool]]:
        return [(t, fence, t in ledger._back) for t, fence in held.items() if t not in ledger._fences]

    patch.setattr(Ledger, "forgotten", forgotten)


def _cancelled_and_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """A time limit passes while a cold shutdown ends the body: Celery acknowledges it, and tells nobody."""
    patch.setattr(Passage, "is_left_to_broker", False)


def _not_accepted_keeps_slots(patch: pytest.MonkeyPatch) -> None:
    """What keeps an admitted body from beginning leaves its slots with it."""
    patch.setattr(Passage, "not_accepted", _nothing)


def _not_sent_back(patch: pytest.MonkeyPatch) -> None:
    """A thread can't store that its task was revoked, and drops it without a word."""
    patch.setattr(Gate, "send_back", _nothing)


def _flushed_keeps_message(patch: pytest.MonkeyPatch) -> None:
    """A process dies while the pool is flushed: the slots of its job go back, and its message stays."""
    patch.setattr(asynpool, "requeue", _nothing)


def _flushed_keeps_slots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Passage, "flush", _nothing)


def _sent_again_unclaimed(patch: pytest.MonkeyPatch) -> None:
    """What was not confirmed is sent once more by whoever sent it, and the store counts one copy."""

    def finish_all(outbox: Outbox, claimed: Any) -> tuple[list[Any], list[Any]]:
        for entry in claimed:
            for _ in range(3):
                try:
                    outbox._finish(entry)
                except Exception:
                    continue
                break
        return list(claimed), []

    patch.setattr(Outbox, "_finish_all", finish_all)


def _withdrawn_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A question that is not put makes the ledger forget that the ticket goes back."""

    def withdraw(ledger: Ledger, ticket: str, delivery: int) -> None:
        ledger.ask_no_more(ticket, delivery, back=False)

    patch.setattr(Ledger, "withdraw", withdraw)


def _newer_closed(patch: pytest.MonkeyPatch) -> None:
    """Two copies of a message: the end of the first closes the entry of the second, admitted in the same exchange."""
    close = Ledger.close

    def close_any(ledger: Ledger, ticket: str, fence: int, *, back: bool = False) -> None:
        close(ledger, ticket, ledger._fences.get(ticket, fence), back=back)

    patch.setattr(Ledger, "close", close_any)


def _ask_unnoted(patch: pytest.MonkeyPatch) -> None:
    """The ledger does not expect what the store is asked about: an answer that is slow is released meanwhile."""

    def ask(ledger: Ledger, ticket: str, delivery: int) -> bool:
        return True

    patch.setattr(Ledger, "ask", ask)


def _released_alive(patch: pytest.MonkeyPatch) -> None:
    """The slot of a body is free when that was told to die, and not when it is dead."""
    patch.setattr(Passage, "_may_run", lambda _: False)


def _handoff_never_given_up(patch: pytest.MonkeyPatch) -> None:
    """What was handed off and did not come to the gate keeps its slots."""
    patch.setattr(DirectHandoff, "give_up", _nothing)


def _offer_unnoted(patch: pytest.MonkeyPatch) -> None:
    """A ticket is handed off, and the answer that brings it is slow: it is taken for one that nobody runs."""
    patch.setattr(Ledger, "offer", lambda ledger: 0)


def _dropped_and_expected(patch: pytest.MonkeyPatch) -> None:
    """The connection is lost, what was deferred goes back, and the ledger goes on expecting its answer."""
    patch.setattr(Gate, "reconnected", lambda gate: gate.deferred.drop() and None)


_BUGS: tuple[tuple[str, str, str, Callable[[pytest.MonkeyPatch], None]], ...] = (
    ("refusal-says-nothing", "f21b0b4", "is nowhere", _refusal_says_nothing),
    ("one-look", "c6ef4cb", "begins though it was released|is released while its body runs|is nowhere", _one_look),
    ("cancelled-and-acknowledged", "181e00c", "is nowhere|have not ended", _cancelled_and_acknowledged),
    ("not-accepted-keeps-slots", "15c568b, 06adfcc", "have not ended|no body", _not_accepted_keeps_slots),
    ("not-sent-back", "6c85228, adbe2dc", "have not ended", _not_sent_back),
    ("flushed-keeps-message", "b773562", "have not ended|is nowhere", _flushed_keeps_message),
    ("flushed-keeps-slots", "f31845b", "have not ended", _flushed_keeps_slots),
    ("sent-again-unclaimed", "83e2517", "runs again|and another copy may come|have not ended", _sent_again_unclaimed),
    ("withdrawn-is-forgotten", "", "is nowhere", _withdrawn_is_forgotten),
    ("newer-closed", "", "is released while its body runs", _newer_closed),
    ("ask-unnoted", "", "released|is nowhere|have not ended", _ask_unnoted),
    ("released-alive", "", "is released while its body runs", _released_alive),
    ("handoff-never-given-up", "4173008", "have not ended", _handoff_never_given_up),
    ("offer-unnoted", "", "begins though it was released|is released while its body runs", _offer_unnoted),
    ("dropped-and-expected", "770fbf5", "have not ended", _dropped_and_expected),
)

_CAUGHT_AT: dict[str, int] = {
    "refusal-says-nothing": 44,
    "one-look": 170,
    "cancelled-and-acknowledged": 368,
    "not-accepted-keeps-slots": 133,
    "not-sent-back": 52,
    "flushed-keeps-message": 44,
    "flushed-keeps-slots": 44,
    "sent-again-unclaimed": 65,
    "withdrawn-is-forgotten": 495,
    "newer-closed": 272,
    "ask-unnoted": 20,
    "released-alive": 7,
    "handoff-never-given-up": 102,
    "offer-unnoted": 152,
}

CORE_BUGS = tuple(CoreBug(name, commit, _CAUGHT_AT.get(name, 0), found, into) for name, commit, found, into in _BUGS)
