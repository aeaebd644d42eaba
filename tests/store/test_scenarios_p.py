"""Scenarios P2, P3, P4 and P6 of docs/scenarios.md. P1 and P5 need a worker."""

from __future__ import annotations

from celery_limits.store import Store
from celery_limits.store.outcomes import Admitted, Full, Parked, Revoked
from tests.store.actors import ANY, Clock, Worker, c, line_at, names_in, raw_client, ready_in, used, wind_up

A, B = c("a", 1), c("b", 1)


def test_p2_five_hundred_waiters_of_one_key_do_not_delay_another(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for i in range(501):
        w.deliver(f"a{i}.n", A)
    assert isinstance(w.deliver("b.n", B), Admitted)
    assert len(line_at(store, "a")) == 500
    assert len(wind_up(clock, w)) == 500


def test_p3_a_smaller_size_on_the_same_key_does_not_bar_a_larger_one(store: Store, clock: Clock) -> None:
    w, plain, gold = Worker(store), c("a", 1), c("a", 3)
    assert isinstance(w.deliver("plain1.n", plain), Admitted)
    assert isinstance(w.deliver("plain2.n", plain), Parked)
    assert isinstance(w.deliver("gold1.n", gold), Admitted)
    assert isinstance(w.deliver("gold2.n", gold), Admitted)
    assert isinstance(w.deliver("gold3.n", gold), Parked)
    assert used(store, "a") == 3

    w.finish("gold1.n")  # two are in: no room for a plain one, room for a gold one
    assert w.pick_up(ANY) == ["gold3.n"]
    assert line_at(store, "a") == ["plain2.n"]
    for ticket in ("gold2.n", "gold3.n"):
        w.finish(ticket)
        assert ready_in(store) == [], "one is in, as many as plain ones may be"
    w.finish("plain1.n")
    assert w.pick_up(ANY) == ["plain2.n"]
    wind_up(clock, w)


def test_p3_the_elder_goes_first_where_both_could(store: Store, clock: Clock) -> None:
    w, plain, gold = Worker(store), c("a", 1), c("a", 3)
    for i in range(3):
        w.deliver(f"running{i}.n", gold)
    w.deliver("plain.n", plain)
    w.deliver("gold.n", gold)
    store.pause("a")
    for ticket in list(w.running):
        w.finish(ticket)
    store.resume("a")
    assert ready_in(store) == ["plain.n", "gold.n"]
    assert wind_up(clock, w) == ["plain.n", "gold.n"]


def _cost_of_a_pair(store: Store, worker: Worker) -> tuple[dict[str, int], float]:
    """Commands, and the least of several readings of server microseconds, for one admission and release on b."""
    client, best, calls = raw_client(store), float("inf"), {}
    for i in range(40):
        client.config_resetstat()
        worker.deliver(f"probe{i}.n", B)
        worker.finish(f"probe{i}.n")
        stats = client.info("commandstats")
        # CONFIG and INFO are the measuring itself.
        calls = {n: s["calls"] for n, s in stats.items() if not n.startswith(("cmdstat_config", "cmdstat_info"))}
        best = min(best, sum(s["usec"] for n, s in stats.items() if n == "cmdstat_evalsha"))
    return calls, best


def test_p4_twelve_thousand_waiters_on_one_key_cost_another_nothing(store: Store, clock: Clock) -> None:
    w, client = Worker(store), raw_client(store)
    for name in ("warm.n", "up.n"):
        w.deliver(name, B)
        w.finish(name)
    w.deliver("holder.n", A)
    quiet_calls, quiet = _cost_of_a_pair(store, w)
    for i in range(12_000):
        w.deliver(f"t{i}.n", A)
    busy_calls, busy = _cost_of_a_pair(store, w)
    assert len(line_at(store, "a")) == 12_000
    assert busy_calls == quiet_calls
    assert busy <= 2 * quiet + 20, f"{busy} µs with 12 000 waiters elsewhere, {quiet} µs without"
    client.flushall()
    assert names_in(store, "*") == []


def test_p6_revoked_between_refusal_and_parking(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("holder.n", A)
    assert isinstance(w.deliver("t.n", A, message=b"", delivery="d"), Full)
    store.cancel("t")
    assert isinstance(w.deliver("t.n", A, delivery="d"), Revoked)
    assert line_at(store, "a") == []
    assert wind_up(clock, w) == []
