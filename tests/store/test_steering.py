"""Steering a key while it is in use: resize, reset, pause, resume, rates, floating limits, also for many waiters."""

from __future__ import annotations

import itertools

import pytest

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Failed, Parked, Refreshed, Stale
from tests.store.actors import (
    ANY,
    Clock,
    Worker,
    c,
    f,
    line_at,
    live_on,
    names_in,
    r,
    raw_client,
    ready_in,
    sweep_all,
    used,
    wind_up,
)

A = c("a", 1)


def test_a_resize_with_a_thousand_waiters_is_granted_in_batches(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for i in range(1001):
        w.deliver(f"t{i}.n", A)
    after = store.resize("a", 801)
    assert after.more
    granted = [used(store, "a")]
    while store.sweep().after.more:
        granted.append(used(store, "a"))
    assert max(later - earlier for earlier, later in itertools.pairwise([1, *granted])) <= 100
    assert used(store, "a") == 801
    assert ready_in(store) == [f"t{i}.n" for i in range(1, 801)]
    assert audit(store) == []
    raw_client(store).flushall()


def test_a_sweep_rings_a_thousand_alarms_in_batches(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("holder.n", A)
    for i in range(1000):
        w.deliver(f"t{i}.n", A, expires=clock.now + 1_000_000)
    clock.pass_(2)
    rounds = 1
    while store.sweep().after.more:
        rounds += 1
    assert rounds > 3
    assert line_at(store, "a") == []
    clock.pass_(1)  # entries of one script are a microsecond apart
    assert len(store.claim(2000)) == 1000
    raw_client(store).flushall()


def test_paused_nothing_enters_and_what_runs_runs_on(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("runs.n", c("k", 5))
    store.pause("k")
    assert isinstance(w.deliver("t.n", c("k", 5)), Parked)
    assert store.status("k").paused
    assert audit(store) == [], "room beside a waiter is as it should be"
    w.finish("runs.n")
    live_on(clock, 60, w)
    assert ready_in(store) == []
    store.resume("k")
    assert w.pick_up(ANY) == ["t.n"]
    wind_up(clock, w)


@pytest.mark.parametrize("paused", ["rate", "floating"])
def test_pause_holds_rates_and_floating_limits_too(store: Store, clock: Clock, paused: str) -> None:
    w, link = Worker(store), r("k", "100/s", burst=5) if paused == "rate" else f("k", 5)
    store.pause("k")
    assert isinstance(w.deliver("t.n", link), Parked)
    live_on(clock, 5, w)
    assert ready_in(store) == []
    store.resume("k")
    assert wind_up(clock, w) == ["t.n"]


def test_a_size_set_by_resize_counts_for_every_declaration_until_reset(store: Store, clock: Clock) -> None:
    w = Worker(store)
    store.resize("a", 2)
    assert [type(w.deliver(f"t{i}.n", c("a", 1 + i))) for i in range(3)] == [Admitted, Admitted, Parked]
    assert store.status("a").size == 2
    store.reset("a")
    assert store.status("a").size is None
    assert w.pick_up(ANY) == ["t2.n"], "it had declared 3"
    wind_up(clock, w)


def test_a_rate_is_a_burst_then_smooth(store: Store, clock: Clock) -> None:
    w, rate = Worker(store), r("api", "2/s", burst=3)
    assert [type(w.deliver(f"t{i}.n", rate)) for i in range(6)] == [Admitted] * 3 + [Parked] * 3
    seen = []
    for _ in range(8):
        live_on(clock, 0.25, w)
        seen.append(len(w.pick_up(ANY)))
    assert seen == [0, 1, 0, 1, 0, 1, 0, 0]
    wind_up(clock, w)


def test_a_cost_is_that_many_tokens(store: Store, clock: Clock) -> None:
    w = Worker(store)
    assert isinstance(w.deliver("dear.n", r("api", "1/s", burst=4, cost=4)), Admitted)
    assert isinstance(w.deliver("cheap.n", r("api", "1/s", burst=4)), Parked)
    live_on(clock, 1.5, w)
    assert w.pick_up(ANY) == ["cheap.n"]
    wind_up(clock, w)


def test_a_faster_rate_wakes_who_waits_for_the_slower(store: Store, clock: Clock) -> None:
    w, rate = Worker(store), r("api", "1/h")
    w.deliver("spender.n", rate)
    w.deliver("t.n", rate)
    store.resize("api", "10/s")
    live_on(clock, 0.5, w)
    assert ready_in(store) == [], "the hour that the first one cost stands"
    store.resize("api", "10/s", burst=100_000)
    assert w.pick_up(ANY) == ["t.n"]
    store.reset("api")
    wind_up(clock, w)


def test_a_rate_of_zero_lets_nothing_pass_and_bars_nobody_else(store: Store, clock: Clock) -> None:
    w = Worker(store)
    assert isinstance(w.deliver("never.n", r("api", "0/s")), Parked)
    assert isinstance(w.deliver("t.n", r("api", "1/s")), Admitted)
    live_on(clock, 30, w)
    assert line_at(store, "api") == ["never.n"]
    store.resize("api", "5/s")
    assert wind_up(clock, w) == ["never.n"]
    store.reset("api")


# -- floating limits (more in L14) --------------------------------------------------------------------------


def test_the_backoff_of_a_failing_refresh_ends_at_an_hour(store: Store, clock: Clock) -> None:
    w, floating = Worker(store), f("fl", 1, every=1000.0)
    admitted = w.deliver("t1.n", floating)
    w.deliver("t2.n", floating)
    assert isinstance(admitted, Admitted)
    (refresh,) = admitted.after.refreshes
    for wait in (1000, 2000, 3600, 3600):
        assert isinstance(store.refreshed("fl", w.name, refresh.token, None), Failed)
        clock.pass_(wait - 2)
        assert store.sweep(w.name).after.refreshes == ()
        clock.pass_(3)
        store.beat(w.name)
        (refresh,) = store.sweep(w.name).after.refreshes
    wind_up(clock, w)


def test_a_fresh_size_is_not_asked_for_again_and_a_stale_one_is(store: Store, clock: Clock) -> None:
    w, floating = Worker(store), f("fl", 1, every=30)
    first = w.deliver("t1.n", floating)
    assert isinstance(first, Admitted)
    (refresh,) = first.after.refreshes
    assert refresh.name == "shop:size"
    answer = store.refreshed("fl", w.name, refresh.token, 5)
    assert isinstance(answer, Refreshed)
    assert isinstance(store.refreshed("fl", w.name, refresh.token, 9), Stale)
    second = w.deliver("t2.n", floating)
    assert isinstance(second, Admitted)
    assert second.after.refreshes == ()
    live_on(clock, 31, w)
    third = w.deliver("t3.n", floating)
    assert isinstance(third, Admitted)
    assert len(third.after.refreshes) == 1
    wind_up(clock, w)


def test_a_floating_limit_lowered_by_its_refresh_evicts_nobody(store: Store, clock: Clock) -> None:
    w, floating = Worker(store), f("fl", 3)
    first = w.deliver("t0.n", floating)
    for i in range(1, 5):
        w.deliver(f"t{i}.n", floating)
    assert isinstance(first, Admitted)
    (refresh,) = first.after.refreshes
    store.refreshed("fl", w.name, refresh.token, 1)
    assert used(store, "fl") == 3
    for i in range(2):
        w.finish(f"t{i}.n")
        assert ready_in(store) == []
    w.finish("t2.n")
    assert ready_in(store) == ["t3.n"]
    wind_up(clock, w)


def test_an_idle_floating_limit_is_remembered_for_a_while_and_then_forgotten(store: Store, clock: Clock) -> None:
    w, floating = Worker(store), f("fl", 1)
    first = w.deliver("t1.n", floating)
    assert isinstance(first, Admitted)
    (refresh,) = first.after.refreshes
    store.refreshed("fl", w.name, refresh.token, 7)
    w.finish("t1.n")
    live_on(clock, store.policy.place_ttl / 2, w)
    assert store.status("fl").floating == 7
    live_on(clock, store.policy.place_ttl, w)
    assert names_in(store, "note:*") == []
    wind_up(clock, w)


def test_the_bell_rings_for_a_sweeper_that_is_needed_soon(store: Store, clock: Clock) -> None:
    w = Worker(store)
    sweep_all(store)
    w.deliver("t1.n", r("slow", "1/m"))
    w.deliver("t2.n", r("slow", "1/m"))
    assert names_in(store, "bell") == [], "a minute is no hurry"
    w.deliver("t3.n", r("api", "2/s"))
    w.deliver("t4.n", r("api", "2/s"))
    assert names_in(store, "bell") == ["bell"]
    store.listen(5)
    assert names_in(store, "bell") == []
    wind_up(clock, w)
