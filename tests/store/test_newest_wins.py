"""Newest wins: `on_full="replace"`, `on_full="preempt"` and `Debounce`, with the time passed in."""

from __future__ import annotations

from typing import Any

import pytest

from celery_limits.declare.chain import DebounceLink, Link
from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Parked, Released, Superseded
from tests.store.actors import (
    ANY,
    Clock,
    Worker,
    c,
    f,
    holders,
    line_at,
    live_on,
    names_in,
    r,
    raw_client,
    ready_in,
    sweep_all,
    wind_up,
)


@pytest.fixture
def worker(store: Store) -> Worker:
    return Worker(store)


def replace(limit: int = 1, most: int = 1, **more: Any) -> Link:
    return c("doc", limit, on_full="replace", max_waiting=most, **more)


def preempt(limit: int = 1, most: int = 1, **more: Any) -> Link:
    return c("doc", limit, on_full="preempt", max_waiting=most, **more)


def debounce(quiet: float = 5.0, at_most: float | None = None, **more: Any) -> DebounceLink:
    return DebounceLink(key="doc", quiet=quiet, at_most=at_most, **more)


def ended(store: Store) -> dict[str, str]:
    """What ended in the store, and why; it is told, and settled."""
    claimed = [entry for entry in store.claim(1000) if entry.reason is not None]
    store.settle(claimed)
    return {entry.ticket: entry.reason or "" for entry in claimed}


def is_sound(store: Store) -> bool:
    assert audit(store) == []
    return True


# -- replace ------------------------------------------------------------------------------------------------------


def test_a_newcomer_takes_the_place_of_the_one_that_has_waited_longest(
    store: Store, worker: Worker, clock: Clock
) -> None:
    for i in range(5):
        worker.deliver(f"t{i}.n", replace())
        assert is_sound(store)
    assert list(worker.running) == ["t0.n"]
    assert line_at(store, "doc") == ["t4.n"]
    assert ended(store) == {f"t{i}.n": f"superseded t{i + 1}" for i in (1, 2, 3)}
    assert wind_up(clock, worker) == ["t4.n"]


def test_as_many_wait_as_max_waiting_says(store: Store, worker: Worker, clock: Clock) -> None:
    for i in range(6):
        worker.deliver(f"t{i}.n", replace(most=2))
    assert line_at(store, "doc") == ["t4.n", "t5.n"]
    assert ended(store) == {"t1.n": "superseded t3", "t2.n": "superseded t4", "t3.n": "superseded t5"}
    assert wind_up(clock, worker) == ["t4.n", "t5.n"]


def test_a_lower_bound_ends_all_who_are_too_many(store: Store, worker: Worker, clock: Clock) -> None:
    for i in range(6):
        worker.deliver(f"t{i}.n", replace(most=5))
    worker.deliver("last.n", replace(most=1))
    assert line_at(store, "doc") == ["last.n"]
    assert set(ended(store).values()) == {"superseded last"}
    wind_up(clock, worker)


def test_one_that_waits_as_ever_is_never_replaced_nor_counted(store: Store, worker: Worker, clock: Clock) -> None:
    """So a publisher or worker tells the store of a member of a canvas, and of a retry."""
    worker.deliver("runs.n", replace())
    worker.deliver("member.n", c("doc", 1))
    for i in range(3):
        worker.deliver(f"t{i}.n", replace())
    assert line_at(store, "doc") == ["member.n", "t2.n"]
    assert wind_up(clock, worker) == ["member.n", "t2.n"]


def test_granted_ones_are_never_replaced(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("t0.n", replace())
    worker.deliver("t1.n", replace())
    worker.finish("t0.n")
    assert ready_in(store) == ["t1.n"]
    worker.deliver("t2.n", replace())
    worker.deliver("t3.n", replace())
    assert ended(store) == {"t2.n": "superseded t3"}
    assert wind_up(clock, worker) == ["t1.n", "t3.n"]


def test_one_that_has_begun_and_comes_back_is_never_replaced(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("t0.n", replace(), queue="")
    worker.finish("t0.n", back=True)
    worker.deliver("t1.n", replace())
    worker.deliver("t0.n", replace(), queue="")
    worker.deliver("t2.n", replace())
    worker.deliver("t3.n", replace())
    assert line_at(store, "doc") == ["t0.n", "t3.n"]
    assert ended(store) == {"t2.n": "superseded t3"}
    assert wind_up(clock, worker) == ["t0.n", "t3.n"]


def test_what_a_superseded_one_held_goes_to_others(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("t0.n", c("a", 2), replace())
    worker.deliver("t1.n", c("a", 2), replace())
    worker.deliver("other.n", c("a", 2))
    assert line_at(store, "a") == ["other.n"]
    worker.deliver("t2.n", replace())
    assert holders(store, "a") == {"t0.n", "other.n"}
    assert wind_up(clock, worker) == ["other.n", "t2.n"]


def test_one_that_arrived_earlier_does_not_take_the_place_of_a_later_one(
    store: Store, worker: Worker, clock: Clock
) -> None:
    """Its message was in a queue or a buffer, while that of the later one was put straight into the line."""
    first, second, third = (arrival_of(store, f"t{i}.n") for i in (1, 2, 3))
    worker.deliver("t0.n", replace())
    worker.deliver("t2.n", replace(), arrival=second)
    outcome = worker.deliver("t1.n", replace(), arrival=first)
    assert isinstance(outcome, Superseded)
    assert outcome.by == "t2"
    assert line_at(store, "doc") == ["t2.n"]
    worker.deliver("t3.n", replace(), arrival=third)
    assert ended(store) == {"t2.n": "superseded t3"}
    assert wind_up(clock, worker) == ["t3.n"]


def test_one_that_comes_when_a_later_one_has_run_is_superseded_too(store: Store, worker: Worker, clock: Clock) -> None:
    late = arrival_of(store, "late.n")
    for i in range(3):
        worker.deliver(f"t{i}.n", replace())
    wind_up_without_leaving(clock, worker)
    assert holders(store, "doc") == set()
    outcome = worker.deliver("late.n", replace(), arrival=late)
    assert isinstance(outcome, Superseded)
    assert outcome.reason == "superseded by t2"
    assert isinstance(worker.deliver("new.n", replace()), Admitted)
    wind_up(clock, worker)


def test_a_late_one_runs_where_nobody_was_superseded(store: Store, worker: Worker, clock: Clock) -> None:
    late = arrival_of(store, "late.n")
    worker.deliver("t0.n", replace())
    assert isinstance(worker.deliver("late.n", replace(), arrival=late), Parked)
    assert wind_up(clock, worker) == ["late.n"]


def test_a_superseded_answer_may_be_lost_and_asked_again(store: Store, worker: Worker, clock: Clock) -> None:
    first, second = arrival_of(store, "t1.n"), arrival_of(store, "t2.n")
    worker.deliver("t0.n", replace())
    worker.deliver("t2.n", replace(), arrival=second)
    for _ in range(2):
        assert isinstance(worker.deliver("t1.n", replace(), arrival=first, delivery="same"), Superseded)
    assert is_sound(store)
    wind_up(clock, worker)


def test_groups_replace_their_own_only(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("a0.n", replace(group="a"))
    for name in ("a1", "b1", "a2", "b2"):
        worker.deliver(f"{name}.n", replace(group=name[0]))
        assert is_sound(store)
    assert sorted(line_at(store, "doc")) == ["a2.n", "b2.n"]
    assert ended(store) == {"a1.n": "superseded a2", "b1.n": "superseded b2"}
    wind_up(clock, worker)


def test_a_floating_limit_replaces_too(store: Store, worker: Worker, clock: Clock) -> None:
    link = f("doc", 1, on_full="replace", max_waiting=1)
    for i in range(4):
        worker.deliver(f"t{i}.n", link)
    assert line_at(store, "doc") == ["t3.n"]
    ended(store)
    wind_up(clock, worker)


def test_a_cancelled_or_expired_one_leaves_its_place(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("t0.n", replace())
    worker.deliver("t1.n", replace())
    store.settle(store.cancel("t1").ended)
    worker.deliver("t2.n", replace(), expires=clock.now + 1_000_000)
    live_on(clock, 2, worker)
    assert ended(store) == {"t2.n": "expired"}
    worker.deliver("t3.n", replace())
    assert ended(store) == {}
    assert wind_up(clock, worker) == ["t3.n"]


def test_explain_follows_the_trail(store: Store, worker: Worker, clock: Clock) -> None:
    for i in range(5):
        worker.deliver(f"t{i}.n", replace())
    told = store.explain("t1")
    assert (told.superseded_by, told.successor, told.steps) == ("t2", "t4", 3)
    assert told.successors[0].state == "waiting"
    assert "superseded by t2" in str(told)
    assert "t4.n: waits at 'doc'" in str(told)
    ended(store)
    assert store.explain("t1").successor == "t4", "after its end was told, too"
    assert told.tickets[0].reason == "superseded by t2"
    live_on(clock, store.policy.revoke_ttl + 1, worker)
    assert store.explain("t1").superseded_by is None, "not for ever"
    wind_up(clock, worker)


def test_trails_are_bounded_in_number(store: Store, worker: Worker, clock: Clock) -> None:
    client = raw_client(store)
    pipe = client.pipeline()
    for i in range(50_000):
        pipe.zadd(f"{store.prefix}trails", {f"task x{i}": clock.now + 10**9 + i})
        pipe.hset(f"{store.prefix}successors", f"task x{i}", "y")
    pipe.execute()
    for i in range(4):
        worker.deliver(f"t{i}.n", replace())
    assert client.zcard(f"{store.prefix}trails") == client.hlen(f"{store.prefix}successors") == 50_000
    assert client.hexists(f"{store.prefix}successors", "task t1")
    ended(store)
    wind_up(clock, worker)


# -- preempt ------------------------------------------------------------------------------------------------------


def orders(store: Store, worker: Worker) -> dict[str, str]:
    return dict(store.sweep(worker.name).orders)


def test_the_longest_running_is_to_be_ended_and_keeps_its_slot_until_it_is_gone(
    store: Store, worker: Worker, clock: Clock
) -> None:
    for i in range(2):
        worker.deliver(f"t{i}.n", preempt(limit=2))
    assert orders(store, worker) == {}
    worker.deliver("t2.n", preempt(limit=2))
    for _ in range(3):
        assert orders(store, worker) == {"t0.n": "t2"}, "told again until it is gone"
        assert holders(store, "doc") == {"t0.n", "t1.n"}
        assert is_sound(store)
    assert store.superseded_by("t0.n") == "t2"
    assert store.superseded_by("t1.n") is None
    assert ready_in(store) == []
    worker.finish("t0.n")
    assert ready_in(store) == ["t2.n"]
    assert orders(store, worker) == {}
    assert wind_up(clock, worker) == ["t2.n"]


def test_the_bell_of_its_own_worker_rings(store: Store, worker: Worker, clock: Clock) -> None:
    other = Worker(store, "w2")
    other.deliver("t0.n", preempt())
    worker.deliver("t1.n", preempt())
    assert names_in(store, "bell:*") == ["bell:w2"]
    assert orders(store, worker) == {}
    assert orders(store, other) == {"t0.n": "t1"}
    wind_up(clock, worker, other)


def test_a_newcomer_supersedes_one_that_waits_and_ends_no_second_body(
    store: Store, worker: Worker, clock: Clock
) -> None:
    worker.deliver("t0.n", preempt(limit=2))
    worker.deliver("t1.n", preempt(limit=2))
    for i in range(2, 5):
        worker.deliver(f"t{i}.n", preempt(limit=2))
    assert orders(store, worker) == {"t0.n": "t2"}
    assert ended(store) == {"t2.n": "superseded t3", "t3.n": "superseded t4"}
    assert wind_up(clock, worker) == ["t4.n"]


def test_a_heavy_newcomer_ends_one_after_the_other(store: Store, worker: Worker, clock: Clock) -> None:
    for i in range(3):
        worker.deliver(f"t{i}.n", preempt(limit=3))
    worker.deliver("heavy.n", preempt(limit=3, weight=2))
    assert orders(store, worker) == {"t0.n": "heavy"}
    worker.finish("t0.n")
    assert orders(store, worker) == {"t1.n": "heavy"}
    worker.finish("t1.n")
    assert ready_in(store) == ["heavy.n"]
    wind_up(clock, worker)


def test_one_that_waits_as_ever_is_never_preempted(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("member.n", c("doc", 1))
    worker.deliver("t0.n", preempt())
    assert orders(store, worker) == {}
    assert is_sound(store)
    worker.finish("member.n")
    assert ready_in(store) == ["t0.n"]
    wind_up(clock, worker)


def test_a_holder_that_has_not_begun_ends_at_once(store: Store, worker: Worker, clock: Clock) -> None:
    """It waits at a later link, or its message is at the front of its queue."""
    worker.deliver("x.n", c("b", 1))
    worker.deliver("t0.n", preempt(), c("b", 1))
    assert line_at(store, "b") == ["t0.n"]
    worker.deliver("t1.n", preempt())
    assert ended(store) == {"t0.n": "superseded t1"}
    assert ready_in(store) == ["t1.n"]
    worker.deliver("t2.n", preempt())
    assert ended(store) == {"t1.n": "superseded t2"}
    assert ready_in(store) == ["t2.n"]
    assert is_sound(store)
    assert wind_up(clock, worker) == ["t2.n"]


def test_a_granted_one_whose_message_is_under_way_is_refused_when_it_comes(
    store: Store, worker: Worker, clock: Clock
) -> None:
    worker.deliver("t0.n", preempt())
    worker.deliver("t1.n", preempt())
    worker.finish("t0.n")
    worker.fetch()
    worker.deliver("t2.n", preempt())
    assert is_sound(store)
    assert isinstance(worker.deliver("t1.n", preempt()), Superseded)
    assert ready_in(store) == ["t2.n"]
    assert wind_up(clock, worker) == ["t2.n"]


def test_a_preempted_body_whose_worker_dies_does_not_run_again(store: Store, worker: Worker, clock: Clock) -> None:
    other = Worker(store, "w2")
    other.deliver("t0.n", preempt(), late=True, queue="")
    worker.deliver("t1.n", preempt())
    assert live_on(clock, 30, worker) == ["w2"]
    assert ready_in(store) == ["t1.n"]
    assert isinstance(worker.deliver("t0.n", preempt(), late=True, queue=""), Superseded), "the broker redelivers it"
    assert is_sound(store)
    assert names_in(store, "orders:*") == []
    wind_up(clock, worker)


def test_a_preempted_body_with_a_spare_ends_when_its_worker_dies(store: Store, worker: Worker, clock: Clock) -> None:
    other = Worker(store, "w2")
    other.deliver("t0.n", preempt(), late=True, queue="")
    worker.deliver("t0.n", preempt(), late=True, queue="")
    worker.deliver("t1.n", preempt())
    live_on(clock, 30, worker)
    assert ended(store) == {"t0.n": "superseded t1"}
    wind_up(clock, worker)


def test_nothing_is_preempted_while_the_key_is_paused(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("t0.n", preempt())
    store.pause("doc")
    worker.deliver("t1.n", preempt())
    assert orders(store, worker) == {}
    store.resume("doc")
    assert orders(store, worker) == {"t0.n": "t1"}
    wind_up(clock, worker)


def test_an_earlier_one_does_not_preempt_a_later_one(store: Store, worker: Worker, clock: Clock) -> None:
    early, late = arrival_of(store, "early.n"), arrival_of(store, "late.n")
    worker.deliver("late.n", preempt(), arrival=late)
    outcome = worker.deliver("early.n", preempt(), arrival=early)
    assert isinstance(outcome, Superseded)
    assert outcome.by == "late"
    assert orders(store, worker) == {}
    wind_up(clock, worker)


def test_groups_preempt_their_own_only(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("a0.n", preempt(limit=2, group="a"))
    worker.deliver("b0.n", preempt(limit=2, group="b"))
    worker.deliver("b1.n", preempt(limit=2, group="b"))
    assert orders(store, worker) == {"b0.n": "b1"}
    assert is_sound(store)
    wind_up(clock, worker)


def test_a_preempted_one_that_ends_by_itself_is_released_once(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("t0.n", preempt())
    worker.deliver("t1.n", preempt())
    assert isinstance(worker.finish("t0.n"), Released)
    assert names_in(store, "orders:*") == []
    assert store.superseded_by("t0.n") is None
    wind_up(clock, worker)


# -- debounce -----------------------------------------------------------------------------------------------------


def test_only_the_newest_passes_when_it_has_been_quiet(store: Store, worker: Worker, clock: Clock) -> None:
    for i in range(4):
        assert isinstance(worker.deliver(f"t{i}.n", debounce()), Parked)
        assert is_sound(store)
        live_on(clock, 2, worker)
    assert ended(store) == {f"t{i}.n": f"superseded t{i + 1}" for i in range(3)}
    live_on(clock, 2.9, worker)
    assert ready_in(store) == []
    live_on(clock, 0.2, worker)
    assert ready_in(store) == ["t3.n"]
    assert wind_up(clock, worker) == ["t3.n"]


def test_under_steady_traffic_one_passes_every_at_most_seconds(store: Store, worker: Worker, clock: Clock) -> None:
    start, passed = clock.now, list[float]()
    for i in range(130):
        worker.deliver(f"t{i}.n", debounce(5, 60))
        for _ in range(10):
            live_on(clock, 0.1, worker)
            for ticket in worker.pick_up(ANY):
                passed.append((clock.now - start) / 1e6)
                worker.finish(ticket)
    assert [round(at) for at in passed] == [60, 120]
    wind_up(clock, worker)


def test_a_link_behind_it_is_walked_as_ever(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("x.n", c("a", 1))
    worker.deliver("t0.n", debounce(), c("a", 1), r("rate", "1/s"))
    live_on(clock, 6, worker)
    assert line_at(store, "a") == ["t0.n"]
    assert is_sound(store)
    worker.deliver("t1.n", debounce(), c("a", 1), r("rate", "1/s"))
    assert line_at(store, "doc") == ["t1.n"]
    assert ended(store) == {}, "one that has passed is not superseded"
    assert wind_up(clock, worker) == ["t0.n", "t1.n"]


def test_one_that_is_kept_passes_with_the_newest_in_line(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("t0.n", debounce())
    worker.deliver("m0.n", debounce(keep=True))
    worker.deliver("m1.n", debounce(keep=True))
    worker.deliver("t1.n", debounce())
    assert ended(store) == {"t0.n": "superseded t1"}
    assert line_at(store, "doc") == ["m0.n", "m1.n", "t1.n"]
    live_on(clock, 5.1, worker)
    assert ready_in(store) == ["m0.n", "m1.n", "t1.n"]
    wind_up(clock, worker)


def test_one_that_comes_when_the_time_is_up_opens_a_time_of_its_own(store: Store, worker: Worker, clock: Clock) -> None:
    """Nobody has swept in the meantime."""
    worker.deliver("t0.n", debounce())
    clock.pass_(6)
    store.beat(worker.name)
    worker.deliver("t1.n", debounce())
    assert ready_in(store) == ["t0.n"]
    assert line_at(store, "doc") == ["t1.n"]
    assert ended(store) == {}
    assert wind_up(clock, worker) == ["t0.n", "t1.n"]


def test_one_that_arrived_earlier_is_superseded_and_moves_nothing(store: Store, worker: Worker, clock: Clock) -> None:
    early = arrival_of(store, "early.n")
    worker.deliver("t0.n", debounce())
    live_on(clock, 4, worker)
    assert isinstance(worker.deliver("early.n", debounce(), arrival=early), Superseded)
    live_on(clock, 1.1, worker)
    assert ready_in(store) == ["t0.n"]
    wind_up(clock, worker)


def test_a_pause_holds_it_back(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("t0.n", debounce())
    store.pause("doc")
    live_on(clock, 10, worker)
    assert line_at(store, "doc") == ["t0.n"]
    store.resume("doc")
    assert ready_in(store) == ["t0.n"]
    wind_up(clock, worker)


def test_explain_and_status_know_a_debounce(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("t0.n", debounce())
    told, status = store.explain("t0"), store.status("doc")
    assert "it may pass in 5.0 s" in str(told)
    assert (status.kind, status.limit, status.waiting) == ("debounce", "5s quiet", 1)
    wind_up(clock, worker)


def test_two_chains_through_one_debounce_take_no_more_than_there_is(store: Store, worker: Worker, clock: Clock) -> None:
    """Who passes while another is being walked may take what that one has been promised."""
    worker.deliver("t0.n", debounce(), c("a", 1))
    clock.pass_(6)
    store.beat(worker.name)
    worker.deliver("t1.n", c("a", 1), debounce())
    assert holders(store, "a") == {"t0.n"}
    assert line_at(store, "a") == ["t1.n"]
    assert is_sound(store)
    wind_up(clock, worker)


# -- the audit ----------------------------------------------------------------------------------------------------


def test_the_audit_names_and_repairs_what_is_lost(store: Store, worker: Worker, clock: Clock) -> None:
    worker.deliver("t0.n", preempt())
    worker.deliver("t1.n", preempt())
    client, prefix = raw_client(store), store.prefix
    client.zrem(f"{prefix}newest:doc", "t1.n")
    client.zrem(f"{prefix}orders:w1", "t0.n")
    client.zadd(f"{prefix}newest:doc", {"ghost.n": 1})
    client.zadd(f"{prefix}runs:doc", {"ghost.n": 1})
    client.zadd(f"{prefix}orders:w1", {"ghost.n": 1})
    found = {(finding.code, finding.subject) for finding in audit(store)}
    assert found >= {("lost-waiter", "t1.n"), ("unforgotten", "t0.n"), ("stray-entry", "doc"), ("stray-entry", "w1")}
    audit(store, repair=True)
    assert is_sound(store)
    assert orders(store, worker) == {"t0.n": "t1"}
    wind_up(clock, worker)


# -- helpers ------------------------------------------------------------------------------------------------------


def arrival_of(store: Store, ticket: str) -> str:
    """As `publish` writes it into a message."""
    client = raw_client(store)
    script = (
        "local s = redis.call('HGET', KEYS[1] .. 'config', 'seal') local n = redis.call('INCR', KEYS[1] .. 'serial') "
        "return n .. '-' .. string.sub(redis.sha1hex(s .. redis.sha1hex(s .. n .. ':' .. ARGV[1])), 1, 20)"
    )
    return str(client.eval(script, 1, store.prefix, ticket).decode())


def wind_up_without_leaving(clock: Clock, worker: Worker) -> None:
    for _ in range(10):
        for ticket in list(worker.running):
            worker.finish(ticket)
        worker.pick_up(ANY)
        live_on(clock, 0.1, worker)
    ended(worker.store)
    sweep_all(worker.store)
