"""The state machine of one delivery, event by event: no worker, no Celery, no Redis."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from celery_limits.errors import CorruptChain
from celery_limits.store.errors import StoreBroken, StoreUnavailable
from celery_limits.store.outcomes import (
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
)
from celery_limits.worker import admission as on
from celery_limits.worker.passage import (
    GONE_CHECK,
    Acknowledge,
    After,
    Close,
    Event,
    Passage,
    Pool,
    Reject,
    Release,
    Result,
    State,
    returns_to_broker,
)

FLAGS = tuple(product((False, True), repeat=3))
NEVER = {
    *(Event.RESULT, Event.ACKNOWLEDGED),
    *(Event.ASK_ABORTED, Event.ENDED_BY_CELERY, Event.UNREADABLE),
}
ALWAYS = {Event.FLUSHED, Event.HANDOFF_UNUSED, Event.CONNECTION_LOST, Event.REFUSED, Event.EXCHANGE_ABORTED}


@dataclass(eq=False)
class Request:
    id: str = "t"
    name: str = "task"
    acknowledged: bool = False
    worker_pid: int | None = 7
    _already_cancelled: bool = False


def state_of(passage: Passage) -> State:
    return passage.state


@dataclass(eq=False)
class Case:
    """A passage of a pool whose processes are alive, unless they are `gone`."""

    forked: bool = True
    parent: bool = False
    gone: bool = False
    request: Any = field(default_factory=Request)

    def __post_init__(self) -> None:
        pool = Pool(self.forked, self.parent, lambda pid: self.gone)
        self.passage = Passage(self.request, 1, pool, host=None)  # type: ignore[arg-type]
        self.passage.plan = Plan("t.1")
        self.passage.delivery = Delivery()

    def held(self) -> Passage:
        self.passage.ask("t.1")
        assert on.answered(self.passage, Admitted(5), 0.0) == (on.Hold(Admitted(5)), on.Run())
        assert state_of(self.passage) is State.HELD
        return self.passage

    def begun(self) -> Passage:
        passage = self.held()
        passage.accept()
        passage.accepted()
        assert state_of(passage) is State.BEGUN
        return passage


@dataclass
class Plan:
    ticket: str


@dataclass
class Delivery:
    packs: bool = False


# -- does the message come again? -----------------------------------------------------------------------------------


@pytest.mark.parametrize("event", Event)
def test_whether_the_message_comes_again_is_as_the_table_says(event: Event) -> None:
    for acknowledged, cancelled, requeue in FLAGS:
        comes_again = returns_to_broker(event, acknowledged=acknowledged, cancelled=cancelled, requeue=requeue)
        if event in NEVER | ALWAYS:
            assert comes_again is (event in ALWAYS)
        elif event is Event.REJECTED:
            assert comes_again is (requeue and not acknowledged)
        elif event is Event.TIMED_OUT:
            assert comes_again is (cancelled and not acknowledged)
        else:
            assert event in {Event.NO_RESULT, Event.NOT_ACCEPTED}
            assert comes_again is not acknowledged


def test_what_is_acknowledged_and_was_begun_never_comes_again() -> None:
    begun = {Event.RESULT, Event.ACKNOWLEDGED, Event.REJECTED, Event.TIMED_OUT, Event.NO_RESULT, Event.NOT_ACCEPTED}
    assert not any(returns_to_broker(event, acknowledged=True, cancelled=True, requeue=True) for event in begun)


# -- at the gate --------------------------------------------------------------------------------------------------

AFTER = Aftermath(outbox=1)
PARKED = (on.MarkParked(), on.FollowUp(AFTER), on.Forget(Event.REFUSED))
ANSWERS: list[tuple[Any, State, tuple[Any, ...]]] = [
    (Parked(0, AFTER), State.REFUSED, (*PARKED, on.Drop(Parked(0, AFTER)), on.FreePlace())),
    (
        Duplicate(),
        State.REFUSED,
        (on.MarkParked(), on.FollowUp(Aftermath()), on.Forget(Event.REFUSED), on.Drop(Duplicate()), on.FreePlace()),
    ),
    *(
        (
            outcome,
            State.REFUSED,
            (on.FollowUp(AFTER), on.Forget(Event.REFUSED), on.EndAs(outcome), on.FreePlace()),
        )
        for outcome in (Revoked(AFTER), Expired(AFTER), Discarded(AFTER))
    ),
    *(
        (
            outcome,
            State.DEFERRED,
            (on.FollowUp(Aftermath()), on.Forget(Event.REFUSED), on.Defer(), on.FreePlace()),
        )
        for outcome in (Lost(), Full(0))
    ),
]


@pytest.mark.parametrize(("outcome", "state", "intents"), ANSWERS, ids=lambda value: type(value).__name__)
def test_what_follows_from_an_answer_that_does_not_admit(outcome: Any, state: State, intents: tuple[Any, ...]) -> None:
    case = Case()
    case.passage.ask("t.1")
    assert on.answered(case.passage, outcome, 0.0) == intents
    assert state_of(case.passage) is state
    assert not case.passage.holds


def test_an_answer_that_admits_asks_for_refreshes_first() -> None:
    case, refresh = Case(), Refresh("key", 1, "function")
    case.passage.ask("t.1")
    case.passage.asked_as = "w"
    outcome = Admitted(5, Aftermath(refreshes=(refresh,)))
    assert on.answered(case.passage, outcome, 1.5) == (on.RefreshLimit(refresh), on.Hold(outcome), on.Run())
    assert case.passage.admission == ("t.1", "w", 5)


def test_a_store_that_is_away_defers_and_one_that_is_broken_fails() -> None:
    away, broken = StoreUnavailable("gone"), StoreBroken("odd")
    case = Case()
    case.passage.ask("t.1")
    assert on.answered(case.passage, away, 0.0) == (on.Doubt(away), on.Defer(), on.FreePlace())
    assert state_of(case.passage) is State.DEFERRED
    assert on.answered(case.passage, broken, 0.0) == (on.Forget(Event.UNREADABLE), on.Fail(broken), on.FreePlace())
    assert state_of(case.passage) is State.REFUSED


def test_a_corrupt_record_fails_the_task_and_says_which() -> None:
    case = Case()
    case.passage.ask("t.1")
    *_, fail, place = on.answered(case.passage, Corrupt("odd"), 0.0)
    assert isinstance(fail, on.Fail)
    assert str(fail.error) == "task[t]: odd; run the audit"
    assert place == on.FreePlace()


def test_a_message_of_another_broker_is_packed_when_it_has_to_be_parked() -> None:
    case = Case()
    case.passage.delivery.packs = True
    case.passage.ask("t.1")
    assert on.answered(case.passage, Full(0), 0.0) == (on.Call(whole=True),)
    assert state_of(case.passage) is State.ASKING


def test_what_was_never_asked_is_withdrawn_and_what_may_be_admitted_is_not() -> None:
    case = Case()
    case.passage.ask("t.1")
    assert on.store_away(case.passage, was_asked=False) == (on.Withdraw(), on.Defer(), on.FreePlace())
    assert on.store_away(case.passage, was_asked=True) == (on.Defer(), on.FreePlace())


def test_what_is_not_asked_is_over_or_runs_without_limits() -> None:
    error = CorruptChain("odd")
    assert on.ended_by_celery(Case().passage) == (on.Forget(Event.ENDED_BY_CELERY), on.FreePlace())
    failing = (on.Forget(Event.UNREADABLE), on.Fail(error), on.FreePlace())
    assert on.unreadable(Case().passage, error) == failing
    held = Case().held()
    assert on.unreadable(held, error) == failing
    assert held.reject(False) == (Release(False), Reject(False))
    case = Case()
    assert on.unlimited(case.passage) == (on.Strip(), on.Run())
    assert case.passage.acknowledge() == (Acknowledge(),)


# -- while it holds slots ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["new", "refused", "done"])
def test_one_that_holds_nothing_is_left_to_celery(state: str) -> None:
    case = Case()
    passage = case.held() if state == "done" else case.passage
    if state == "refused":
        passage.refuse()
    if state == "done":
        assert passage.bring(Result.ENDED) == (Close(),)
    assert passage.acknowledge() == (Acknowledge(),)
    assert passage.reject(True) == (Reject(True),)
    assert passage.failed() == passage.flush() == passage.settle() == ()


def test_an_early_acknowledgement_releases_nothing() -> None:
    passage = Case().held()
    passage.accept()
    assert passage.acknowledge() == (Acknowledge(),)
    passage.accepted()
    assert state_of(passage) is State.BEGUN


@pytest.mark.parametrize(("parent", "intents"), [(False, (Close(),)), (True, (Release(False),))])
def test_a_result_is_released_by_the_process_or_by_its_parent_and_once(parent: bool, intents: tuple[Any, ...]) -> None:
    passage = Case(parent=parent).begun()
    assert passage.bring(Result.ENDED) == intents
    assert state_of(passage) is State.DONE
    assert passage.acknowledge() == (Acknowledge(),)
    assert passage.failed() == ()


def test_a_skipped_body_has_released_nothing() -> None:
    assert Case().begun().bring(Result.SKIPPED) == (Release(False),)


@pytest.mark.parametrize("requeue", [True, False])
def test_a_rejected_result_is_released_when_celery_rejects_it(requeue: bool) -> None:
    passage = Case().begun()
    assert passage.bring(Result.REJECTED) == ()
    assert state_of(passage) is State.OVER
    assert passage.reject(requeue) == (Release(requeue), Reject(requeue))
    assert state_of(passage) is (State.BACK if requeue else State.DONE)


def test_what_was_acknowledged_early_can_not_be_put_back() -> None:
    case = Case(request=Request(acknowledged=True))
    passage = case.begun()
    assert passage.bring(Result.REJECTED) == ()
    assert passage.reject(True) == (Release(False), Reject(True))


def test_release_and_acknowledgement_wait_for_a_process_that_was_told_to_die() -> None:
    case = Case()
    passage = case.begun()
    assert passage.fail(died=True) == ()
    assert passage.acknowledge() == (After(GONE_CHECK),)
    assert state_of(passage) is State.DYING
    assert passage.failed() == ()
    assert passage.settle() == (After(GONE_CHECK),)
    case.gone = True
    assert passage.settle() == (Release(False), Acknowledge())
    assert passage.settle() == ()
    assert state_of(passage) is State.DONE


def test_a_process_that_lives_and_brings_no_result_has_ended_its_body() -> None:
    passage = Case().begun()
    passage.fail(died=False)
    assert passage.acknowledge() == (Release(False), Acknowledge())


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_process_that_died_and_was_not_answered_for_goes_back_unless_acknowledged(acknowledged: bool) -> None:
    passage = Case(gone=True, request=Request(acknowledged=acknowledged)).begun()
    passage.fail(died=True)
    assert passage.failed() == (Release(not acknowledged),)
    assert state_of(passage) is (State.DONE if acknowledged else State.BACK)


def test_what_celery_cancelled_is_left_to_the_broker() -> None:
    request = Request()
    passage = Case(request=request).begun()
    assert not passage.is_left_to_broker
    request._already_cancelled = True
    assert passage.is_left_to_broker
    request.acknowledged = True
    assert not passage.is_left_to_broker


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_hard_time_limit_has_unwound_a_body_that_is_no_process(cancelled: bool) -> None:
    passage = Case(forked=False, request=Request(_already_cancelled=cancelled)).begun()
    assert passage.time_out() == (Release(cancelled),)
    assert Case().begun().time_out() == ()


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_body_that_was_kept_from_beginning_gives_its_slots_back(acknowledged: bool) -> None:
    passage = Case(forked=False, request=Request(acknowledged=acknowledged)).held()
    passage.accept()
    assert passage.not_accepted() == (Release(not acknowledged),)


def test_a_process_begins_whatever_its_parent_makes_of_that() -> None:
    passage = Case().held()
    passage.accept()
    assert passage.not_accepted() == ()
    assert state_of(passage) is State.BEGUN


def test_an_end_in_a_thread_waits_for_its_body() -> None:
    """Such as one that was revoked while it runs: nobody can end it."""
    passage = Case(forked=False).begun()
    assert passage.acknowledge() == ()
    assert state_of(passage) is State.DYING
    assert passage.bring(Result.ENDED) == (Close(), Acknowledge())


def test_a_job_that_the_pool_drops_goes_back_once_though_something_waits_for_its_process() -> None:
    case = Case()
    passage = case.begun()
    assert passage.acknowledge() == (After(GONE_CHECK),)
    assert passage.flush() == (Release(True),)
    assert passage.flush() == ()
    assert passage.settle() == (After(GONE_CHECK),)
    case.gone = True
    assert passage.settle() == (Acknowledge(),)


def test_what_never_began_waits_for_nobody() -> None:
    passage = Case().held()
    assert passage.reject(True) == (Release(True), Reject(True))
