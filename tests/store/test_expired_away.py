"""Guarantee 13 for a task that expires while its message is with the broker: its place is worth nothing then."""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from celery_limits.store.audit import audit, leftovers
from celery_limits.store.outcomes import Admitted, Expired, Parked
from tests.store.actors import ANY, SECOND, Clock, Worker, c, live_on, names_in, r, raw_client, sweep_all

K = c("k", 1)


def test_a_task_that_lost_its_worker_leaves_nothing_once_it_has_expired(store: Store, clock: Clock) -> None:
    """It comes back after its expiry, and Celery drops it before any gate sees it."""
    dead, lives = Worker(store, "dead", queue=""), Worker(store, "lives", queue="")
    dead.deliver("t.1", K, late=True, expires=clock.server + 60 * SECOND)
    assert live_on(clock, 15, lives) == ["dead"]
    assert names_in(store, "task:*") == ["task:t"]  # its place is kept: it may come in time
    live_on(clock, 46, lives)
    store.leave("lives")
    assert leftovers(store) == []
    assert audit(store) == []


def test_one_that_comes_in_time_has_its_old_place(store: Store, clock: Clock) -> None:
    dead, lives = Worker(store, "dead", queue=""), Worker(store, "lives", queue="")
    dead.deliver("t.1", r("api", "1/h"), K, late=True, expires=clock.server + 60 * SECOND)
    live_on(clock, 15, lives)
    assert isinstance(lives.deliver("t.1", ANY, late=True), Admitted)  # and does not pay the hour's token again
    live_on(clock, 60, lives)  # it has begun in time
    assert names_in(store, "task:*") == ["task:t"]
    lives.finish("t.1")


def test_one_that_ran_beyond_its_expiry_leaves_nothing(store: Store, clock: Clock) -> None:
    dead, lives = Worker(store, "dead", queue=""), Worker(store, "lives", queue="")
    dead.deliver("t.1", K, late=True, expires=clock.server + 2 * SECOND)
    live_on(clock, 15, dead, lives)
    assert live_on(clock, 15, lives) == ["dead"]
    assert names_in(store, "task:*") == []
    assert isinstance(lives.deliver("t.1", K, late=True, expires=clock.server - 28 * SECOND), Expired)


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "claimed"])
def test_one_that_was_granted_and_sent_leaves_nothing(store: Store, clock: Clock, sent: bool) -> None:
    """Through the outbox to a broker that brings it too late."""
    w = Worker(store, queue="")
    w.deliver("runs.1", K)
    assert isinstance(w.deliver("t.1", K, expires=clock.server + 60 * SECOND), Parked)
    w.finish("runs.1")
    (entry,) = store.claim(10, settle_within=10)
    if sent:
        store.settle([entry])
    live_on(clock, 20, w)  # nobody has picked it up: its slots are free
    assert isinstance(w.deliver("next.1", K), Admitted)
    w.finish("next.1")
    if not sent:
        store.settle(store.claim(10))  # that of before was for the grant
    live_on(clock, 41, w)
    assert names_in(store, "task:*") == []


def test_one_that_goes_back_at_a_shutdown_leaves_nothing(store: Store, clock: Clock) -> None:
    w = Worker(store, queue="")
    w.deliver("t.1", K, late=True, expires=clock.server + 60 * SECOND)
    w.finish("t.1", back=True)
    live_on(clock, 59, w)
    assert names_in(store, "task:*") == ["task:t"]
    live_on(clock, 2, w)
    assert names_in(store, "task:*") == []


def test_one_without_an_expiry_is_remembered_as_ever(store: Store, clock: Clock) -> None:
    dead, lives = Worker(store, "dead", queue=""), Worker(store, "lives", queue="")
    dead.deliver("t.1", K, late=True)
    live_on(clock, store.policy.place_ttl - 1, lives)
    assert names_in(store, "task:*") == ["task:t"]


def test_the_audit_sets_the_alarm_that_fits(store: Store, clock: Clock) -> None:
    dead, lives = Worker(store, "dead", queue=""), Worker(store, "lives", queue="")
    dead.deliver("t.1", K, late=True, expires=clock.server + 60 * SECOND)
    live_on(clock, 15, lives)
    raw_client(store).zrem(f"{store.prefix}alarms", "forget|t.1")
    assert [finding.code for finding in audit(store, repair=True)] == ["unforgotten"]
    clock.pass_(46)
    store.beat("lives")
    sweep_all(store)
    assert names_in(store, "task:*") == []
