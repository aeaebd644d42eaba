"""A server whose clock is set back, or ahead: by NTP, or by a failover to a replica whose clock differs.

Stored times are those of the namespace, which go on from the latest one that a beat or a sweep has seen.
"""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from celery_limits.store.outcomes import Admitted, Expired, Joined, Parked, Renewed
from tests.store.actors import ANY, SECOND, Clock, Worker, c, f, field_of, holders, live_on, r, raw_client, sweep_all

HOUR = 3600.0
STEPS = pytest.mark.parametrize("step", [5.0, HOUR, 30 * 24 * HOUR])


def kept(store: Store) -> tuple[int, int]:
    mark, ahead = raw_client(store).get(f"{store.prefix}clock").split()
    return int(mark), int(ahead)


def step_back(clock: Clock, seconds: float, *workers: Worker) -> None:
    """Between two sweeps, as any step."""
    live_on(clock, 0.1, *workers)
    clock.step_back(seconds)
    live_on(clock, 0.1, *workers)


@STEPS
def test_a_rate_goes_on_when_the_clock_is_set_back(store: Store, clock: Clock, step: float) -> None:
    w, link = Worker(store), r("api", "1/s", burst=1)
    assert isinstance(w.deliver("a.1", link), Admitted)
    assert isinstance(w.deliver("b.1", link), Parked)
    step_back(clock, step, w)
    live_on(clock, 0.8, w)
    assert w.pick_up(link) == []
    live_on(clock, 0.2, w)
    assert w.pick_up(link) == ["b.1"]
    assert isinstance(w.deliver("c.1", link), Parked)  # and goes no faster
    live_on(clock, 1.0, w)
    assert w.pick_up(link) == ["c.1"]


def test_a_rate_is_exceeded_by_no_step_back(store: Store, clock: Clock) -> None:
    w, link, passed = Worker(store), r("api", "1/s", burst=2), 0
    for i in range(40):
        step_back(clock, HOUR, w)
        live_on(clock, 0.4, w)
        passed += isinstance(w.deliver(f"t{i}.1", link), Admitted)
        passed += len(w.pick_up(link))
    assert passed in (20, 21, 22)  # half a second each, and the burst
    while store.status("api").waiting:
        live_on(clock, 1.0, w)
        w.pick_up(link)
    for ticket in list(w.running):
        w.finish(ticket)


@STEPS
def test_a_floating_limit_is_refreshed_on_time(store: Store, clock: Clock, step: float) -> None:
    w, link = Worker(store), f("pool", 1, every=2.0)
    first = w.deliver("a.1", link)
    assert isinstance(first, Admitted)
    asked = first.after.refreshes[0]
    store.refreshed("pool", w.name, asked.token, 1)
    assert isinstance(w.deliver("b.1", link), Parked)
    step_back(clock, step, w)
    clock.pass_(2.0)
    store.beat(w.name)
    (again,) = store.sweep(w.name).after.refreshes
    store.refreshed("pool", w.name, again.token, 2)
    assert w.pick_up(link) == ["b.1"]
    w.finish("a.1")
    w.finish("b.1")


@STEPS
def test_a_refresh_that_hangs_is_given_to_another(store: Store, clock: Clock, step: float) -> None:
    w, link = Worker(store), f("pool", 1, every=2.0)
    assert w.deliver("a.1", link).after.refreshes  # type: ignore[union-attr]
    assert isinstance(w.deliver("b.1", link), Parked)
    step_back(clock, step, w)
    for _ in range(5):
        clock.pass_(store.policy.refresh_timeout / 5)
        store.beat(w.name)
    assert store.sweep(w.name).after.refreshes
    w.finish("a.1")
    w.pick_up(link)
    w.finish("b.1")


@STEPS
def test_a_dead_worker_loses_its_slots_on_time(store: Store, clock: Clock, step: float) -> None:
    dead, lives = Worker(store, "dead"), Worker(store, "lives")
    dead.deliver("a.1", c("k", 1), late=True)
    assert isinstance(lives.deliver("b.1", c("k", 1)), Parked)
    step_back(clock, step, lives)
    lease = store.policy.lease
    assert live_on(clock, lease - 1, lives) == []
    assert live_on(clock, 2.5, lives) == ["dead"]
    assert holders(store, "k") == {"b.1"}
    assert lives.pick_up(ANY) == ["b.1"]
    lives.finish("b.1")


@STEPS
def test_nobody_who_renews_is_dead(store: Store, clock: Clock, step: float) -> None:
    """Neither by a step back, nor when the clock is set right again."""
    a, b = Worker(store, "a"), Worker(store, "b")
    a.deliver("a.1", c("k", 1))
    for seconds in (-step, step, -step, step):
        clock.pass_(seconds)
        assert live_on(clock, 2.5 * store.policy.lease, a, b) == []
        assert isinstance(store.beat("a", renew=True), Renewed)
    assert isinstance(a.deliver("a.2", c("k", 2)), Admitted)
    a.finish("a.1")
    a.finish("a.2")


def test_after_a_leap_ahead_the_dead_are_found_a_lease_later(store: Store, clock: Clock) -> None:
    dead, lives = Worker(store, "dead"), Worker(store, "lives")
    dead.deliver("a.1", c("k", 1), late=True)
    clock.pass_(HOUR)
    assert sweep_all(store, "lives") == []
    assert live_on(clock, store.policy.lease + 2.5, lives) == ["dead"]


@STEPS
def test_a_grant_that_nobody_picks_up_times_out(store: Store, clock: Clock, step: float) -> None:
    w = Worker(store)
    w.deliver("a.1", c("k", 1))
    w.deliver("b.1", c("k", 1))
    w.finish("a.1")
    assert field_of(store, "b.1", "state") == "granted"
    step_back(clock, step, w)
    live_on(clock, store.policy.grant_timeout, w)
    assert field_of(store, "b.1", "state") == "away"
    assert w.pick_up(ANY) == ["b.1"]
    w.finish("b.1")


@STEPS
def test_an_outbox_claim_lapses_on_time(store: Store, clock: Clock, step: float) -> None:
    w = Worker(store, queue="")
    w.deliver("a.1", c("k", 1))
    w.deliver("b.1", c("k", 1))
    w.finish("a.1")
    assert [entry.ticket for entry in store.claim(10, settle_within=3)] == ["b.1"]
    step_back(clock, step, w)
    assert store.claim(10) == ()
    live_on(clock, 3, w)
    (entry,) = store.claim(10)
    assert isinstance(w.deliver("b.1", ANY), Admitted)
    store.settle([entry])
    w.finish("b.1")


@STEPS
def test_a_revoke_is_forgotten_on_time(store: Store, clock: Clock, step: float) -> None:
    w = Worker(store)
    store.cancel("gone")
    step_back(clock, step, w)
    client = raw_client(store)
    live_on(clock, store.policy.revoke_ttl - 5, w)
    assert client.exists(f"{store.prefix}cancelled:gone")
    live_on(clock, 5, w)
    assert not client.exists(f"{store.prefix}cancelled:gone", f"{store.prefix}remembered")


def test_a_task_expires_by_the_clock_of_the_server(store: Store, clock: Clock) -> None:
    """An expiry is a date. Set back by 100 s, the clock says that there are 100 s more."""
    w = Worker(store)
    w.deliver("a.1", c("k", 1))
    parked = w.deliver("b.1", c("k", 1), expires=clock.server + 20 * SECOND)
    assert isinstance(parked, Parked)
    step_back(clock, 100, w)
    live_on(clock, 60, w)
    assert field_of(store, "b.1", "state") == "waiting"
    assert isinstance(w.deliver("c.1", c("other", 1), expires=clock.server + SECOND), Admitted)
    assert isinstance(w.deliver("d.1", c("other", 1), expires=clock.server - SECOND), Expired)
    live_on(clock, 61, w)
    assert field_of(store, "b.1", "state") == "ended"
    store.settle(store.claim(10))
    w.finish("a.1")
    w.finish("c.1")


def test_people_are_shown_the_clock_of_the_server(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("a.1", c("k", 1))
    w.deliver("b.1", c("k", 1))
    w.deliver("p.1", r("api", "1/m"))
    step_back(clock, HOUR, w)
    live_on(clock, 10, w)
    w.deliver("c.1", c("k", 1))
    w.deliver("d.1", r("api", "1/m"))
    w.deliver("e.1", c("free", 1))
    status = store.status("k")
    assert status.now == pytest.approx(clock.server / 1e6, abs=0.01)
    first, second = (status.now - (party.since or 0) for party in status.waiters)
    assert first == pytest.approx(10, abs=1.5)
    assert second == pytest.approx(0, abs=0.1)
    assert status.oldest_wait == pytest.approx(10, abs=1.5)
    assert store.status("api").tokens == 0
    assert (store.status("api").next_token or 0) - status.now == pytest.approx(50, abs=1.5)
    (story,) = store.explain("d").tickets
    assert story.now - (story.since or 0) == pytest.approx(0, abs=0.1)
    (running,) = store.explain("e").tickets
    assert running.now - (running.since or 0) == pytest.approx(0, abs=0.1)
    store.cancel("d")
    store.settle(store.claim(10))
    live_on(clock, 35, w)
    store.settle(store.claim(10))
    for ticket in ("a.1", "p.1", "e.1"):
        w.finish(ticket)
    while w.pick_up(ANY):
        for ticket in list(w.running):
            w.finish(ticket)


def test_the_time_of_the_namespace_does_not_go_back(store: Store, clock: Clock) -> None:
    w, latest = Worker(store), 0
    for seconds in (1.0, -HOUR, 1.0, -0.5, HOUR, -2 * HOUR, 1.0):
        clock.pass_(seconds)
        store.beat(w.name)
        mark, ahead = kept(store)
        assert mark >= latest
        assert mark - ahead == clock.server
        latest = mark


@pytest.mark.parametrize("value", [b"", b"soon", b"1", b"9" * 30 + b" 0", b"1 " + b"9" * 30, b"-1 -1"])
def test_what_is_not_a_time_counts_for_nothing(store: Store, clock: Clock, value: bytes) -> None:
    raw_client(store).set(f"{store.prefix}clock", value)
    assert isinstance(store.beat("w"), Joined)
    assert kept(store) == (clock.server, 0)
