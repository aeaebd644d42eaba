"""Guarantee 12 at run time: limits that are taken in opposite orders. A sweep unties the whole knot, at once."""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.circles import victims_of
from celery_limits.store.outcomes import Parked, Swept
from tests.store.actors import (
    ANY,
    Clock,
    Worker,
    c,
    field_of,
    holders,
    line_at,
    live_on,
    names_in,
    r,
    raw_client,
    wind_up,
)

A, B, D = c("a", 1), c("b", 1), c("d", 1)


def knots(store: Store) -> list[str]:
    return [name.decode() for name in raw_client(store).zrange(f"{store.prefix}alarms", 0, -1) if b"knot|" in name]


def sweep(store: Store) -> Swept:
    swept = store.sweep()
    while store.sweep().after.more:
        pass
    return swept


def opposite(w: Worker, n: int = 1, first: str = "") -> list[str]:
    """Pairs that hold a<i> and wait at b<i>, and the other way round; the second of each has come last."""
    tickets = []
    for i in range(n):
        a, b = c(f"{first}a{i}", 1), c(f"{first}b{i}", 1)
        names = [f"{first}in-a{i}.n", f"{first}in-b{i}.n", f"{first}ab{i}.n", f"{first}ba{i}.n"]
        for name, links in zip(names, ((a,), (b,), (a, b), (b, a)), strict=True):
            w.deliver(name, *links)
        w.finish(names[1])
        w.finish(names[0])
        tickets += names[2:]
    return tickets


def test_two_that_wait_for_each_other_are_untied_by_the_next_sweep(store: Store, clock: Clock) -> None:
    w = Worker(store)
    assert opposite(w) == ["ab0.n", "ba0.n"]
    assert holders(store, "a0") == {"ab0.n"}
    assert holders(store, "b0") == {"ba0.n"}
    assert knots(store)
    assert raw_client(store).exists(f"{store.prefix}bell"), "a sweeper is woken"
    arrival = field_of(store, "ba0.n", "arrival")
    (untied,) = sweep(store).untied
    assert untied.ticket == "ba0.n", "the last in line"
    assert untied.key == "a0"
    assert "ab0.n waits at b0" in untied.stuck
    assert "ba0.n waits at a0" in untied.stuck
    assert field_of(store, "ab0.n", "state") == "granted"
    assert line_at(store, "b0") == ["ba0.n"], "it waits from its first link on"
    assert field_of(store, "ba0.n", "arrival") == arrival
    assert audit(store) == []
    assert sweep(store).untied == (), "and it is said once"
    assert wind_up(clock, w) == ["ab0.n", "ba0.n"]


def test_the_audit_finds_it_too(store: Store, clock: Clock) -> None:
    w = Worker(store)
    opposite(w)
    (finding,) = audit(store)
    assert (finding.code, finding.subject) == ("deadlock", "ba0.n")
    wind_up(clock, w)


@pytest.mark.parametrize("repair", ["sweep", "audit"])
def test_a_knot_of_many_circles_is_untied_at_once(store: Store, clock: Clock, repair: str) -> None:
    """Twelve tickets that hold all of three keys between them, each waiting for the next key."""
    w, keys = Worker(store), [c(f"k{i}", 4) for i in range(3)]
    for i in range(3):
        for n in range(4):
            w.deliver(f"in{i}{n}.n", keys[i])
    tickets = []
    for n in range(4):
        for i in range(3):
            tickets.append(f"t{n}{i}.n")
            assert isinstance(w.deliver(tickets[-1], keys[i], keys[(i + 1) % 3]), Parked)
    for key in keys:
        store.pause(key.key)
    for ticket in list(w.running):
        w.finish(ticket)
    for key in keys:
        store.resume(key.key)
    stuck = [t for t in tickets if field_of(store, t, "state") == "waiting" and field_of(store, t, "at") == "2"]
    if repair == "audit":
        audit(store, repair=True)
    else:
        untied = sweep(store).untied
        assert len(stuck) < 12 or untied
    assert audit(store) == []
    assert sorted(wind_up(clock, w)) == tickets


def test_many_pairs_are_untied_by_one_repair(store: Store, clock: Clock) -> None:
    w = Worker(store)
    tickets = opposite(w, 10)
    found = audit(store, repair=True)
    assert sorted(finding.subject for finding in found) == sorted(t for t in tickets if t.startswith("ba"))
    assert audit(store) == []
    assert sorted(wind_up(clock, w)) == sorted(tickets)


def test_paid_tokens_are_not_paid_again(store: Store, clock: Clock) -> None:
    w, rate = Worker(store), r("api", "1/h", burst=2)
    w.deliver("in-a.n", A)
    w.deliver("in-b.n", B)
    w.deliver("ab.n", A, B)
    w.deliver("ba.n", B, rate, A)
    w.finish("in-b.n")
    w.finish("in-a.n")
    paid = raw_client(store).zscore(f"{store.prefix}rates", "api")
    assert paid
    (untied,) = sweep(store).untied
    assert untied.ticket == "ba.n"
    assert wind_up(clock, w) == ["ab.n", "ba.n"]
    assert raw_client(store).zscore(f"{store.prefix}rates", "api") in (paid, None)


def test_a_heavy_one_needs_several_to_give_way(store: Store, clock: Clock) -> None:
    w, pool = Worker(store), c("pool", 2)
    w.deliver("in-a.n", A)
    w.deliver("heavy.n", A, c("pool", 2, weight=2))
    w.deliver("in-pool.n", c("pool", 2, weight=2))
    w.deliver("one.n", pool, A)
    w.deliver("two.n", pool, A)
    w.finish("in-pool.n")
    w.finish("in-a.n")
    assert holders(store, "a") == {"heavy.n"}
    assert holders(store, "pool") == {"one.n", "two.n"}
    assert {untied.ticket for untied in sweep(store).untied} == {"one.n", "two.n"}
    assert wind_up(clock, w)[0] == "heavy.n"


def test_a_heavy_one_is_stuck_once_the_last_who_ran_has_gone(store: Store, clock: Clock) -> None:
    """While one of the pool runs it might fit; when that ends, one that waits for it is left."""
    w, pool = Worker(store), c("pool", 2)
    w.deliver("in-a.n", A)
    w.deliver("heavy.n", A, c("pool", 2, weight=2))
    w.deliver("runs.n", pool)
    w.deliver("one.n", pool, A)
    w.finish("in-a.n")
    assert holders(store, "a") == {"heavy.n"}
    assert holders(store, "pool") == {"one.n", "runs.n"}
    w.finish("runs.n")
    (untied,) = sweep(store).untied
    assert untied.ticket == "one.n"
    assert wind_up(clock, w) == ["heavy.n", "one.n"]


def test_a_limit_that_is_lowered_ties_one_when_the_last_who_ran_has_gone(store: Store, clock: Clock) -> None:
    w, pool = Worker(store), c("pool", 2)
    w.deliver("in-a.n", A)
    w.deliver("two.n", A, pool)
    w.deliver("runs.n", pool)
    w.deliver("one.n", pool, A)
    w.finish("in-a.n")
    assert (holders(store, "a"), holders(store, "pool")) == ({"two.n"}, {"one.n", "runs.n"})
    assert sweep(store).untied == (), "when the one that runs has ended there is room"
    store.resize("pool", 1)
    w.finish("runs.n")
    (untied,) = sweep(store).untied
    assert untied.ticket == "one.n"
    assert wind_up(clock, w) == ["two.n", "one.n"]
    store.reset("pool")


def test_order_that_agrees_is_never_untied(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("runs.n", D)
    for i in range(6):
        w.deliver(f"t{i}.n", A, B, D)
        w.deliver(f"u{i}.n", B, D)
    assert sweep(store).untied == ()
    live_on(clock, 30, w)
    assert audit(store) == []
    w.finish("runs.n")
    assert len(wind_up(clock, w)) == 12


def test_one_that_waits_for_a_rate_is_not_stuck(store: Store, clock: Clock) -> None:
    w, rate = Worker(store), r("api", "1/s")
    w.deliver("first.n", rate)
    w.deliver("in-a.n", A)
    w.deliver("ab.n", A, B)
    w.deliver("ba.n", B, rate, A)
    assert field_of(store, "ba.n", "at") == "2"
    w.finish("in-a.n")
    assert sweep(store).untied == ()
    assert audit(store) == []
    wind_up(clock, w)


def test_a_knot_that_is_too_large_for_a_script_is_named(store: Store, clock: Clock) -> None:
    w, many = Worker(store), c("many", 150)
    w.deliver("in-a.n", A)
    for i in range(150):
        w.deliver(f"in{i}.n", many)
    assert isinstance(w.deliver("am.n", A, many), Parked)
    for i in range(150):
        assert isinstance(w.deliver(f"ma{i}.n", many, A), Parked)
    for i in range(150):
        w.finish(f"in{i}.n")
    w.finish("in-a.n")
    assert len(holders(store, "many")) == 150
    untied = sweep(store).untied
    assert [one.key for one in untied if not one.ticket] != []
    audit(store, repair=True)
    assert audit(store) == []
    assert len(wind_up(clock, w)) == 151


def test_the_work_is_bounded(store: Store, clock: Clock) -> None:
    """A look at a knot reads no more tickets than it says, however many wait."""
    w = Worker(store)
    opposite(w)
    for i in range(500):
        w.deliver(f"more{i}.n", c("a0", 1))
    (untied,) = sweep(store).untied
    assert untied.ticket == "ba0.n"
    assert untied.stuck.count("waits at") <= 10
    wind_up(clock, w)
    assert names_in(store, "task:*") == []


def test_the_victims_of_two_circles_that_share_a_key() -> None:
    stuck = {"1": "b", "2": "a", "3": "a", "4": "b"}
    held = {"a": {"1", "4"}, "b": {"2", "3"}}
    places = {ticket: (0, int(ticket)) for ticket in stuck}
    assert victims_of(stuck, held, places.__getitem__) == ["4"]
    assert victims_of({"1": "b", "2": "a"}, {"a": {"1"}, "b": {"2"}}, places.__getitem__) == ["2"]
    assert victims_of({}, {}, places.__getitem__) == []


def test_a_repeated_sweep_changes_nothing(store: Store, clock: Clock) -> None:
    w = Worker(store)
    opposite(w)
    sweep(store)
    before = {name: raw_client(store).dump(store.prefix + name) for name in names_in(store, "[hlt]*")}
    sweep(store)
    assert {name: raw_client(store).dump(store.prefix + name) for name in names_in(store, "[hlt]*")} == before
    assert wind_up(clock, w) == ["ab0.n", "ba0.n"]
    assert w.pick_up(ANY) == []
