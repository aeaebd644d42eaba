"""What `admit` answers and leaves in the store: weights, full lines, expiry, and what one that has waited is told.

What becomes of a ticket afterwards, or when it comes again, is in `test_verbs`.
"""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from celery_limits.store.outcomes import (
    Admitted,
    Discarded,
    Duplicate,
    Expired,
    Full,
    Lost,
    Parked,
)
from tests.store.actors import (
    ANY,
    SECOND,
    Clock,
    Worker,
    c,
    f,
    field_of,
    holders,
    line_at,
    live_on,
    names_in,
    raw_client,
    ready_in,
    settle,
    sweep_all,
    used,
    weights,
    wind_up,
)

A, B = c("a", 1), c("b", 1)


def test_admit_without_a_lease_is_lost_and_writes_nothing(store: Store) -> None:
    assert isinstance(store.admit("t.n", (A,), "nobody", delivery="d", message=b"m"), Lost)
    assert names_in(store, "*") == []


@pytest.mark.parametrize("weight", [1, 2, 3, 499, 500, 501, 1200])
def test_a_weight_is_kept_beside_the_holder(store: Store, clock: Clock, weight: int) -> None:
    w, heavy = Worker(store), c("k", 2000, weight=weight)
    w.deliver("t.n", heavy)
    assert weights(store, "k") == {"t.n": weight}
    assert store.status("k").running == weight
    w.finish("t.n", back=True)
    assert holders(store, "k") == set()
    w.deliver("t.n", heavy)
    w.finish("t.n")
    assert holders(store, "k") == set()
    wind_up(clock, w)


def test_a_weight_that_does_not_fit_waits_though_a_slot_is_free(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("one.n", c("k", 3))
    assert isinstance(w.deliver("three.n", c("k", 3, weight=3)), Parked)
    w.finish("one.n")
    assert weights(store, "k") == {"three.n": 3}
    assert w.pick_up(ANY) == ["three.n"]
    wind_up(clock, w)


def test_discard_does_not_wait_and_leaves_nothing(store: Store, clock: Clock) -> None:
    w, picky = Worker(store), c("b", 1, on_full="discard")
    w.deliver("in-b.n", B)
    assert isinstance(w.deliver("t.n", A, picky), Discarded)
    assert holders(store, "a") == set()
    assert names_in(store, "task:t") == []
    w.finish("in-b.n")
    assert isinstance(w.deliver("t.n", A, picky), Admitted)
    wind_up(clock, w)


def test_discarded_on_the_way_from_an_earlier_link_is_told_through_the_outbox(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("in-a.n", A)
    w.deliver("in-b.n", B)
    w.deliver("t.n", A, c("b", 1, on_full="discard"))
    w.finish("in-a.n")
    (entry,) = store.claim()
    assert (entry.ticket, entry.reason, entry.message) == ("t.n", "discarded", b"message of t.n")
    assert holders(store, "a") == set()
    settle(store, ["t.n"])
    assert names_in(store, "task:t") == []
    wind_up(clock, w)


def test_max_waiting_bounds_the_line_but_not_those_who_stood_in_it(store: Store, clock: Clock) -> None:
    w, short = Worker(store), c("k", 1, max_waiting=2)
    outcomes = [type(w.deliver(f"t{i}.n", short)) for i in range(4)]
    assert outcomes == [Admitted, Parked, Parked, Discarded]
    w.finish("t0.n")
    assert isinstance(w.deliver("t4.n", short), Parked)
    live_on(clock, store.policy.grant_timeout + 3, w)  # t1 is not picked up: t2 has the slot, t1 keeps its place
    assert field_of(store, "t1.n", "state") == "away"
    assert isinstance(w.deliver("t5.n", short), Parked)
    assert [ticket for ticket, _ in w.fetch(2)] == ["t1.n", "t2.n"]
    assert isinstance(w.deliver("t1.n", short), Parked), "the line is full, but it had been past it"
    assert line_at(store, "k")[0] == "t1.n"
    wind_up(clock, w)


def test_expired_on_arrival_takes_nothing(store: Store, clock: Clock) -> None:
    w = Worker(store)
    assert isinstance(w.deliver("t.n", A, expires=clock.now), Expired)
    assert holders(store, "a") == set()
    assert isinstance(w.deliver("u.n", A, expires=clock.now + SECOND), Admitted)
    wind_up(clock, w)


def test_expires_while_parked_and_frees_what_it_held(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("in-b.n", B)
    w.deliver("t.n", A, B, expires=clock.now + 2 * SECOND)
    w.deliver("next.n", A)
    live_on(clock, 1.5, w)
    assert line_at(store, "b") == ["t.n"]
    live_on(clock, 1, w)
    assert line_at(store, "b") == []
    assert holders(store, "a") == {"next.n"}
    assert [(ticket, reason, message) for ticket, _, reason, message in store.claim()] == [
        ("t.n", "expired", b"message of t.n")
    ]
    settle(store, ["t.n"])
    assert wind_up(clock, w) == ["next.n"]


def test_expired_before_the_sweep_came_is_not_woken(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("first.n", A)
    w.deliver("t.n", A, expires=clock.now + SECOND)
    w.deliver("next.n", A)
    clock.pass_(2)
    w.finish("first.n")
    assert ready_in(store) == ["next.n"]
    assert [entry.reason for entry in store.claim()] == ["expired"]
    settle(store, ["t.n"])
    wind_up(clock, w)


def test_expired_between_grant_and_pick_up(store: Store, clock: Clock) -> None:
    w, expires = Worker(store), clock.now + 2 * SECOND
    w.deliver("first.n", A)
    w.deliver("t.n", A, expires=expires)
    w.finish("first.n")
    clock.pass_(3)
    w.fetch()
    assert isinstance(w.deliver("t.n", A, expires=expires), Expired)
    assert holders(store, "a") == set()
    wind_up(clock, w)


def test_the_same_call_again_is_the_same_answer(store: Store, clock: Clock) -> None:
    """Its first answer was lost with the connection."""
    w = Worker(store)
    first, again = (w.deliver("t1.n", A, delivery="d1") for _ in range(2))
    assert isinstance(first, Admitted)
    assert isinstance(again, Admitted)
    assert again.fence == first.fence
    assert [type(w.deliver("t2.n", A, delivery="d2")) for _ in range(2)] == [Parked, Parked]
    assert line_at(store, "a") == ["t2.n"]
    w.finish("t1.n")
    assert isinstance(w.deliver("t2.n", A, delivery="d2"), Duplicate), "it went on meanwhile; acknowledge and drop"
    assert [type(w.deliver("t3.n", A, message=b"", delivery="d3")) for _ in range(2)] == [Full, Full]
    assert wind_up(clock, w) == ["t2.n"]


def test_a_floating_limit_is_its_default_until_refreshed_and_its_weight_counts(store: Store, clock: Clock) -> None:
    w = Worker(store)
    assert isinstance(w.deliver("t1.n", f("fl", 3, weight=2)), Admitted)
    assert isinstance(w.deliver("t2.n", f("fl", 3, weight=2)), Parked)
    sweep_all(store)
    assert used(store, "fl") == 2
    assert raw_client(store).hget(f"{store.prefix}note:fl", "f.name") == b"shop:size"
    wind_up(clock, w)


# -- what it has waited -----------------------------------------------------------------------------------


def test_one_that_has_waited_is_told_for_how_long_and_at_which_links(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("in-a.n", A)
    w.deliver("in-b.n", B)
    w.deliver("t.n", A, B)
    clock.pass_(3)
    w.finish("in-a.n")
    clock.pass_(2)
    w.finish("in-b.n")
    clock.pass_(0.5)
    (fetched,) = w.fetch()
    outcome = w.deliver(fetched.ticket, A, B)
    assert isinstance(outcome, Admitted)
    assert [(wait.link, round(wait.seconds, 3)) for wait in outcome.waits] == [(0, 3.0), (1, 2.0)]
    assert outcome.idle == pytest.approx(0.5, abs=0.001)


def test_one_that_has_not_waited_is_told_nothing(store: Store, clock: Clock) -> None:
    outcome = Worker(store).deliver("t.n", A, B)
    assert isinstance(outcome, Admitted)
    assert (outcome.waits, outcome.idle) == ((), None)


def test_what_it_has_waited_is_told_once_though_its_worker_dies(store: Store, clock: Clock) -> None:
    w, other = Worker(store, "dying"), Worker(store, "other")
    w.deliver("in-a.n", A)
    w.deliver("t.n", A, late=True)
    clock.pass_(3)
    w.finish("in-a.n")
    (fetched,) = w.fetch()
    assert isinstance(outcome := w.deliver(fetched.ticket, A, late=True), Admitted)
    assert [wait.link for wait in outcome.waits] == [0]
    live_on(clock, 2 * store.policy.lease, other)
    (fetched,) = other.fetch()
    assert isinstance(outcome := other.deliver(fetched.ticket, A, late=True), Admitted)
    assert outcome.waits == ()
    wind_up(clock, other)
