"""Shares of a rate: nothing is held there, so groups take turns by virtual time."""

from __future__ import annotations

from typing import Any

from redis import Redis

from celery_limits.declare.chain import Link
from celery_limits.store import Policy, Store
from tests.store.actors import Clock, Worker, names_in, r, raw_client, sweep_all, wind_up
from tests.store.mutations import VIRTUAL_TIME
from tests.store.test_fairness import ask, flood, groups_of, worker

__all__ = ["worker"]


def api(group: str | None, **more: Any) -> Link:
    return r("api", "1/s", group=group, **more)


def passed(worker: Worker, clock: Clock, seconds: int) -> list[str]:
    """Who passes, second by second."""
    found = []
    for _ in range(seconds):
        clock.pass_(1)
        worker.store.beat(worker.name)
        sweep_all(worker.store)
        for ticket in worker.pick_up(api("any")):
            found.append(ticket)
            worker.finish(ticket)
    return found


def test_at_a_rate_a_newcomer_is_served_at_once(worker: Worker, clock: Clock) -> None:
    flood(worker, "a", 20, api)
    passed(worker, clock, 3)
    ask(worker, "b.0", api("b"))
    assert passed(worker, clock, 1) == ["b.0"]
    wind_up(clock, worker)


def test_at_a_rate_groups_take_turns(worker: Worker, clock: Clock) -> None:
    for group in ("a", "b", None):
        flood(worker, group, 8, api)
    turns = groups_of(passed(worker, clock, 9)).split()
    assert {group: turns.count(group) for group in ("a", "b", "None")} == {"a": 3, "b": 3, "None": 3}
    wind_up(clock, worker)


def test_at_a_rate_a_share_of_three_passes_three_times_as_often(worker: Worker, clock: Clock) -> None:
    flood(worker, "a", 20, api, share=3.0)
    flood(worker, "b", 20, api)
    assert groups_of(passed(worker, clock, 8)).split().count("a") == 6
    wind_up(clock, worker)


def test_at_a_rate_what_a_call_costs_counts(worker: Worker, clock: Clock) -> None:
    flood(worker, "a", 20, lambda group: r("api", "1/s", 2, cost=2, group=group))
    flood(worker, "b", 20, lambda group: r("api", "1/s", 2, group=group))
    turns = groups_of(passed(worker, clock, 12)).split()
    assert abs(turns.count("b") - 2 * turns.count("a")) <= 1
    wind_up(clock, worker)


def turns_with_a_late_group(worker: Worker, clock: Clock) -> dict[str, int]:
    """How often each of three groups is served, once the third has come late."""
    flood(worker, "a", 30, api)
    flood(worker, "b", 30, api)
    passed(worker, clock, 10)
    flood(worker, "c", 10, api)
    turns = groups_of(passed(worker, clock, 9)).split()
    return {group: turns.count(group) for group in "abc"}


def test_one_that_was_idle_has_not_saved_its_turns_up(worker: Worker, clock: Clock) -> None:
    """Virtual time: a group that comes late starts where the others are, not at zero."""
    assert turns_with_a_late_group(worker, clock) == {"a": 3, "b": 3, "c": 3}
    wind_up(clock, worker)


def test_virtual_time_from_zero_would_be_seen(redis: Redis, clock: Clock, policy: Policy) -> None:
    """The test above can fail: with that bug the late group is served again and again."""
    store = Store(redis, "test", policy, clock, VIRTUAL_TIME.scripts())
    assert turns_with_a_late_group(Worker(store), clock)["c"] > 5
    store.close()


def test_one_that_comes_again_at_once_has_had_its_turn(worker: Worker, clock: Clock) -> None:
    """A group that waits with one call at a time does not pass those who always wait."""
    flood(worker, None, 20, api)
    started = []
    for i in range(8):
        if not any(ticket.startswith("b") for ticket in names_waiting(worker.store)):
            ask(worker, f"b.{i}", api("b"))
        started += passed(worker, clock, 1)
    assert groups_of(started).split().count("b") == 4
    wind_up(clock, worker)


def names_waiting(store: Store) -> list[str]:
    client = raw_client(store)
    lines = names_in(store, "line:*")
    return [ticket.decode() for line in lines for ticket in client.zrange(store.prefix + line, 0, -1)]
