"""`explain` where the plain sentence would mislead (a limit of 0, a lowered limit, a dead worker), and the place in
line of a parked ticket."""

from __future__ import annotations

from celery_limits.store import Store
from celery_limits.store.lookups import times_parked
from celery_limits.store.outcomes import Admission, Discarded, Parked
from tests.store.actors import Clock, Worker, c, live_on, names_in, r, raw_client, sweep_all, wind_up

TWO = c("k", 2)


def _line_that_moves(store: Store, clock: Clock) -> Worker:
    """Two run and two wait at `k`, and the line has moved twice, so that its pace is known."""
    w = Worker(store)
    for i in range(6):
        w.deliver(f"t{i}.n", TWO)
    for ticket in ("t0.n", "t1.n"):
        clock.pass_(1)
        w.finish(ticket)
        w.pick_up(TWO)
    assert store.explain("t5").tickets[0].estimate is not None
    assert "s to go" in str(store.explain("t5"))
    return w


def test_a_limit_of_zero_gives_no_estimate(store: Store, clock: Clock) -> None:
    w = _line_that_moves(store, clock)
    store.resize("k", 0)
    said = str(store.explain("t5"))
    assert "the limit is 0, so that nothing starts until it is raised; 2 slots are taken, held by" in said
    assert "to go" not in said
    assert " of 0 " not in said
    store.reset("k")
    wind_up(clock, w)


def test_a_rate_of_zero_is_said(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t.n", r("api", "0/s"))
    assert "the rate is 0, so that nothing passes until it is raised" in str(store.explain("t"))
    store.settle(store.cancel("t").ended)
    wind_up(clock, w)


def test_a_limit_below_what_runs_gives_no_estimate(store: Store, clock: Clock) -> None:
    w = _line_that_moves(store, clock)
    store.resize("k", 1)
    said = str(store.explain("t5"))
    assert "2 slots are taken and the limit is now 1, so that nothing starts until enough of them have ended" in said
    assert "to go" not in said
    store.reset("k")
    wind_up(clock, w)


def test_a_holder_on_a_dead_worker_is_not_said_to_run(store: Store, clock: Clock) -> None:
    """Nobody sweeps: there is no other worker."""
    _line_that_moves(store, clock)
    clock.pass_(store.policy.lease + 1)
    waits, ran = store.explain("t5").tickets[0], store.explain("t3").tickets[0]
    assert (waits.estimate, waits.workers) == (None, 0)
    assert all(holder.lapsed for holder in waits.holders)
    assert "t3 on w1, whose lease has lapsed" in str(waits)
    assert "no worker is alive" in str(waits)
    assert ran.lapsed
    assert "was running on w1, whose lease has lapsed: the worker counts as dead, and no worker is alive" in str(ran)
    assert all(holder.lapsed for holder in store.status("k").holders)
    live = Worker(store, "w2")
    assert "a live worker reclaims its slots" in str(store.explain("t3").tickets[0])
    assert "to go" not in str(store.explain("t5")), "the pace of the line was that of a dead worker"
    assert live_on(clock, 2 * store.policy.lease, live) == ["w1"]
    sweep_all(store)
    wind_up(clock, live)


def _parked(outcome: Admission) -> tuple[int | None, int | None]:
    assert isinstance(outcome, Parked)
    return outcome.place, outcome.waiting


def test_a_parked_ticket_is_told_its_place(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t0.n", c("k", 1))
    assert _parked(w.deliver("t1.n", c("k", 1), rank=5)) == (1, 1)
    assert _parked(w.deliver("t2.n", c("k", 1), rank=5)) == (2, 2)
    assert _parked(w.deliver("first.n", c("k", 1), rank=1)) == (1, 3)
    assert _parked(w.deliver("small.n", c("k", 0), rank=9)) == (4, 4), "of another size, and so of another class"
    assert _parked(w.deliver("t3.n", c("k", 1), rank=5, delivery="d")) == (4, 5)
    assert _parked(w.deliver("t3.n", c("k", 1), rank=5, delivery="d")) == (None, None), "it was parked before"
    store.settle(store.cancel("small").ended)
    wind_up(clock, w)


def test_a_parked_ticket_of_a_group_is_told_its_place_in_the_group(store: Store, clock: Clock) -> None:
    w = Worker(store)
    places = []
    for i, group in enumerate(("a", "a", "a", "b", "a")):
        outcome = w.deliver(f"t{i}.n", c("k", 1, group=group))
        places.append(_parked(outcome) if isinstance(outcome, Parked) else None)
    assert places == [None, (1, 1), (2, 2), (1, 1), (3, 3)]
    wind_up(clock, w)


def test_discarded_names_the_link(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t0.n", c("b", 1))
    outcome = w.deliver("t1.n", c("a", 1, on_full="discard"), c("b", 1, max_waiting=0))
    assert isinstance(outcome, Discarded)
    assert outcome.link == 1
    wind_up(clock, w)


def test_every_parking_is_counted_and_the_count_stays(store: Store, clock: Clock) -> None:
    w = Worker(store)
    assert times_parked(store) == 0
    for i in range(4):
        w.deliver(f"t{i}.n", c("a", 2), c("b", 1))
    assert times_parked(store) == 3, "one at b and two at a"
    wind_up(clock, w)
    assert times_parked(store) == 5, "those two waited at b as well"
    assert names_in(store, "counts") == ["counts"]
    assert raw_client(store).hkeys(f"{store.prefix}counts") == [b"parked"]
