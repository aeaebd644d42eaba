"""Fair shares: groups of one key take turns by what they hold, or at a rate by what they were served."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

from celery_limits.declare.chain import Link
from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Parked
from tests.store.actors import Clock, Worker, c, f, live_on, names_in, raw_client, ready_in, wind_up


@pytest.fixture
def worker(store: Store) -> Worker:
    return Worker(store)


def ask(worker: Worker, ticket: str, link: Link, **more: Any) -> bool:
    """Whether it is admitted; else it waits."""
    outcome = worker.deliver(ticket, link, **more)
    assert isinstance(outcome, (Admitted, Parked))
    return isinstance(outcome, Admitted)


def gpu(group: str | None, limit: int = 2, **more: Any) -> Link:
    return c("gpu", limit, group=group, **more)


def flood(worker: Worker, group: str | None, count: int, link: Any = gpu, **more: Any) -> list[str]:
    """The tickets, the first of which may be admitted."""
    tickets = [f"{group}.{i}" for i in range(count)]
    for ticket in tickets:
        ask(worker, ticket, link(group, **more))
    return tickets


def next_ones(worker: Worker, count: int) -> list[str]:
    """Who is admitted next, one by one, each time that the body which ran for longest ends."""
    started = []
    for _ in range(count):
        worker.finish(next(iter(worker.running)))
        started += worker.pick_up(gpu("any"))
    return started


def groups_of(tickets: list[str]) -> str:
    return " ".join(ticket.partition(".")[0] for ticket in tickets)


# -- concurrency ----------------------------------------------------------------------------------------------


def test_a_newcomer_is_next_behind_a_flood_of_another(worker: Worker, clock: Clock) -> None:
    flood(worker, "a", 30)
    ask(worker, "b.0", gpu("b"))
    assert next_ones(worker, 1) == ["b.0"]
    wind_up(clock, worker)


def test_equal_shares_hold_equally_whatever_the_bodies_take(worker: Worker, clock: Clock) -> None:
    """Starts do not count: b's bodies end at once, a's never do, and each has its half of the slots."""
    flood(worker, "a", 20, limit=4)
    flood(worker, "b", 20, limit=4)
    next_ones(worker, 2)
    assert sorted(groups_of(list(worker.running)).split()) == ["a", "a", "b", "b"]
    for _ in range(6):
        worker.finish(next(ticket for ticket in worker.running if ticket.startswith("b")))
        assert groups_of(worker.pick_up(gpu("any"))) == "b"
    wind_up(clock, worker)


def test_a_share_of_three_holds_three_times_as_much(worker: Worker, clock: Clock) -> None:
    flood(worker, "a", 20, limit=4, share=3.0)
    flood(worker, "b", 20, limit=4)
    next_ones(worker, 8)
    assert sorted(groups_of(list(worker.running)).split()) == ["a", "a", "a", "b"]
    wind_up(clock, worker)


def test_groups_that_hold_alike_are_served_in_turn(worker: Worker, clock: Clock) -> None:
    for group in "abc":
        flood(worker, group, 4, limit=1)
    assert groups_of(next_ones(worker, 6)) == "b c a b c a"
    wind_up(clock, worker)


def test_one_who_comes_and_goes_is_served_no_more_often_than_those_who_wait(worker: Worker, clock: Clock) -> None:
    """A group that was served, and neither holds nor waits for a moment, is not taken for one that never was."""
    flood(worker, "a", 6, limit=1)
    flood(worker, "b", 6, limit=1)
    started = []
    for i in range(9):
        if "c" not in groups_of(list(worker.running)) and f"c.{i - 1}" not in ready_in(worker.store):
            ask(worker, f"c.{i}", gpu("c", limit=1))
        started += next_ones(worker, 1)
    assert groups_of(started) in ("b c a b c a b c a", "c b a c b a c b a")
    wind_up(clock, worker)


def test_within_a_group_it_is_priority_and_arrival(worker: Worker, clock: Clock) -> None:
    ask(worker, "a.0", gpu("a", limit=1))
    for ticket, rank in (("a.1", 3), ("a.2", 0), ("a.3", 3), ("a.4", 0)):
        ask(worker, ticket, gpu("a", limit=1), rank=rank)
    assert next_ones(worker, 4) == ["a.2", "a.4", "a.1", "a.3"]
    wind_up(clock, worker)


def test_priority_comes_before_shares(worker: Worker, clock: Clock) -> None:
    ask(worker, "a.0", gpu("a"))
    ask(worker, "b.0", gpu("b"))
    ask(worker, "b.1", gpu("b"), rank=3)
    ask(worker, "a.1", gpu("a"), rank=0)
    ask(worker, "a.2", gpu("a"), rank=0)
    worker.finish("b.0")
    assert worker.pick_up(gpu("any")) == ["a.1"]
    wind_up(clock, worker)


def test_one_group_alone_uses_every_slot(worker: Worker, clock: Clock) -> None:
    flood(worker, "a", 10, limit=4)
    assert len(worker.running) == 4
    wind_up(clock, worker)


def test_weights_count_as_held(worker: Worker, clock: Clock) -> None:
    ask(worker, "a.0", gpu("a", limit=4, weight=3))
    ask(worker, "b.0", gpu("b", limit=4))
    ask(worker, "a.1", gpu("a", limit=4))
    ask(worker, "b.1", gpu("b", limit=4))
    ask(worker, "b.2", gpu("b", limit=4))
    worker.finish("a.0")  # then nobody of a holds: a, b, b
    assert worker.pick_up(gpu("any")) == ["a.1", "b.1", "b.2"]
    wind_up(clock, worker)


def test_a_slot_held_by_one_who_waits_at_a_later_link_counts(worker: Worker, clock: Clock) -> None:
    ask(worker, "x.0", c("door", 1))
    for i in range(2):
        assert isinstance(worker.deliver(f"a.{i}", gpu("a", limit=3), c("door", 1)), Parked)
    ask(worker, "b.0", gpu("b", limit=3))
    ask(worker, "a.2", gpu("a", limit=3))
    ask(worker, "b.1", gpu("b", limit=3))
    worker.finish("b.0")
    assert worker.pick_up(gpu("any")) == ["b.1"]
    wind_up(clock, worker)


def test_those_without_a_group_are_one_group(worker: Worker, clock: Clock) -> None:
    for i in range(12):
        ask(worker, f"none.{i}", gpu(None))
    flood(worker, "a", 12)
    assert groups_of(next_ones(worker, 6)) == "a none a none a none"
    wind_up(clock, worker)


def test_of_different_shares_the_latest_counts(worker: Worker, clock: Clock) -> None:
    flood(worker, "a", 10, limit=4)
    flood(worker, "b", 10, limit=4)
    ask(worker, "a.last", gpu("a", limit=4, share=3.0))
    next_ones(worker, 8)
    assert sorted(groups_of(list(worker.running)).split()) == ["a", "a", "a", "b"]
    wind_up(clock, worker)


def test_a_larger_declared_size_passes_those_of_a_smaller_one_in_other_groups(worker: Worker, clock: Clock) -> None:
    flood(worker, "a", 3, limit=1)
    assert ask(worker, "b.0", gpu("b", limit=2))
    ask(worker, "c.0", gpu("c", limit=1))
    ask(worker, "b.1", gpu("b", limit=2))
    worker.finish("b.0")
    assert worker.pick_up(gpu("any")) == ["b.1"]
    wind_up(clock, worker)


def test_a_waiter_that_is_cancelled_leaves_its_group(worker: Worker, clock: Clock, store: Store) -> None:
    flood(worker, "a", 4, limit=1)
    ask(worker, "b.0", gpu("b", limit=1))
    ask(worker, "b.1", gpu("b", limit=1))
    store.settle(store.cancel("b").ended)
    assert groups_of(next_ones(worker, 2)) == "a a"
    assert audit(store) == []
    wind_up(clock, worker)


def test_the_slots_of_a_dead_worker_are_given_back_to_its_groups(store: Store, clock: Clock) -> None:
    dies, lives = Worker(store, "dies"), Worker(store, "lives")
    flood(dies, "a", 2)
    for i in range(4):
        ask(lives, f"b.{i}", gpu("b"))
    ask(lives, "a.9", gpu("a"))
    live_on(clock, 30, lives)
    assert sorted(groups_of(lives.pick_up(gpu("any"))).split()) == ["a", "b"]
    assert audit(store) == []
    wind_up(clock, lives)


def test_a_floating_limit_is_shared_too(worker: Worker, clock: Clock) -> None:
    def link(group: str) -> Link:
        return f("gpu", 1, group=group)

    flood(worker, "a", 4, link)
    ask(worker, "b.0", link("b"))
    assert next_ones(worker, 1) == ["b.0"]
    wind_up(clock, worker)


def test_a_raised_limit_is_filled_in_turn(worker: Worker, clock: Clock, store: Store) -> None:
    flood(worker, "a", 6, limit=1)
    flood(worker, "b", 6, limit=1)
    store.resize("gpu", 4)
    worker.pick_up(gpu("any"))
    assert sorted(groups_of(list(worker.running)).split()) == ["a", "a", "b", "b"]
    store.reset("gpu")
    wind_up(clock, worker)


def test_a_group_may_have_any_characters_that_can_be_seen(worker: Worker, clock: Clock, store: Store) -> None:
    for group in ("a|b|3", "größe ü", "|", "1 2 3 4 5"):
        for i in range(2):
            ask(worker, f"{abs(hash(group))}.{i}", gpu(group, limit=1))
    assert audit(store) == []
    wind_up(clock, worker)


# -- straight into the line -----------------------------------------------------------------------------------


def published(ticket: str, link: Link) -> bytes:
    """As our publishers write it."""
    task_id, _, _ = ticket.rpartition(".")
    limits = {"v": 2, "ticket": ticket, "links": [dict(link.wire)], "arrival": "", "at": 0, "held": [], "fence": 0}
    headers = {"id": task_id, "eta": None, "expires": None, "limits": limits}
    return json.dumps({"body": "", "headers": headers, "properties": {"priority": 0}}).encode()


def test_what_is_sifted_at_a_fetch_joins_its_group(worker: Worker, clock: Clock, store: Store) -> None:
    flood(worker, "a", 3, limit=1)
    raw_client(store).lpush("q", published("late.1", gpu("b", limit=1, share=2.5)))
    assert worker.post.fetch(worker.name, 5, flags="rs") == []
    assert names_in(store, "group:*\tb") == ["group:gc:1:gpu\tb"]
    assert b"0 2.5 " in raw_client(store).hget(f"{store.prefix}groups:gpu", "b")
    worker.finish("a.0")
    assert [ticket.partition(".")[0] for ticket in ready_in(store)] == ["late"]
    wind_up(clock, worker)


# -- bounds and traces ----------------------------------------------------------------------------------------


def test_a_key_without_groups_has_no_trace_of_them(worker: Worker, clock: Clock, store: Store) -> None:
    for i in range(4):
        ask(worker, f"none.{i}", gpu(None))
    assert names_in(store, "group*") == names_in(store, "turns*") == names_in(store, "idle*") == []
    wind_up(clock, worker)


def test_groups_that_were_served_are_not_remembered_without_end(store: Store, clock: Clock, redis: Redis) -> None:
    worker = Worker(store)
    ask(worker, "a.0", gpu("a", limit=3))
    for i in range(1100):
        ask(worker, f"x.{i}", gpu(f"x{i}", limit=3))
        worker.finish(f"x.{i}")
    assert redis.zcard(f"{store.prefix}idle:gpu") == 1000
    worker.finish("a.0")
    assert names_in(store, "idle*") == []
    wind_up(clock, worker)


# -- what people see ------------------------------------------------------------------------------------------


def test_explain_says_the_place_in_the_group_and_when_its_turn_comes(
    worker: Worker, clock: Clock, store: Store
) -> None:
    flood(worker, "a", 5)
    flood(worker, "b", 3)
    (story,) = [s for s in store.explain("a").tickets if s.ticket == "a.3"]
    assert story.fair is not None
    place = (story.fair.group, story.fair.place, story.fair.waiting, story.fair.groups, story.fair.ahead)
    assert place == ("a", 2, 3, 2, 1)
    assert "2 of 3 in the group 'a', whose turn is after 1 other group;" in str(story)
    wind_up(clock, worker)


def test_status_names_groups_those_that_wait_first_in_turn(worker: Worker, clock: Clock, store: Store) -> None:
    ask(worker, "h.0", gpu("h", limit=3))
    flood(worker, "a", 5, limit=3, share=2.0)
    flood(worker, "b", 3, limit=3)
    told = [(group.group, group.held, group.share, group.waiting) for group in store.status("gpu").groups]
    assert told == [("b", 0, 1.0, 3), ("a", 2, 2.0, 3), ("h", 1, 1.0, 0)]
    assert len(store.status("gpu", page=1).groups) == 1
    assert store.status("other").groups == ()
    wind_up(clock, worker)


# -- the audit ------------------------------------------------------------------------------------------------


def fair_scene(worker: Worker) -> None:
    flood(worker, "a", 5)
    flood(worker, "b", 3)
    flood(worker, None, 3)


DAMAGE = {
    "held": lambda client, p: client.hset(f"{p}groups:gpu", "a", "7 1 3 3 9"),
    "waiting": lambda client, p: client.hset(f"{p}groups:gpu", "a", "2 1 3 9 9"),
    "no turn": lambda client, p: client.delete(f"{p}turns:gc:2:gpu"),
    "stray turn": lambda client, p: client.zadd(f"{p}turns:gc:2:gpu", {"000|0.5|1|1|nobody": 0}),
    "no line": lambda client, p: client.delete(f"{p}group:gc:2:gpu\tb"),
    "stray waiter": lambda client, p: client.zadd(f"{p}group:gc:2:gpu\tb", {"no.one": 1}),
    "sum": lambda client, p: client.hset(f"{p}note:gpu", "fair", "c 9 5"),
    "no note": lambda client, p: client.hdel(f"{p}note:gpu", "fair"),
    "no groups": lambda client, p: client.delete(f"{p}groups:gpu"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_audit_finds_and_repairs_what_is_wrong_with_groups(
    worker: Worker, clock: Clock, store: Store, damage: str
) -> None:
    fair_scene(worker)
    assert audit(store) == []
    DAMAGE[damage](raw_client(store), store.prefix)
    assert audit(store) != []
    audit(store, repair=True)
    assert audit(store) == []
    assert sorted(groups_of(wind_up(clock, worker)).split()) == ["None"] * 3 + ["a"] * 3 + ["b"] * 3


def test_the_audit_counts_more_holders_than_one_script_does(worker: Worker, clock: Clock, store: Store) -> None:
    flood(worker, "a", 510, limit=600)
    assert audit(store) == []
    raw_client(store).hset(f"{store.prefix}groups:gpu", "a", "7 1 3 0 9")
    assert [finding.code for finding in audit(store)] == ["wrong-group"]
    audit(store, repair=True)
    assert audit(store) == []
    wind_up(clock, worker)
