"""What workers say of their queues and places: one hash, exact through beat, leave, lapse and repair."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Lost, Renewed
from celery_limits.store.serving import Served, Serving, queues_served
from tests.store.actors import Clock


def serves(store: Store, worker: str, places: int, *queues: str, stalled: bool = False) -> None:
    store.beat(worker, serving=Serving(places, queues, stalled))


def test_places_are_summed_over_the_live_workers_of_a_queue(store: Store) -> None:
    serves(store, "w1", 4, "a", "b")
    serves(store, "w2", 2, "b", stalled=True)
    assert queues_served(store) == {"a": Served(4, 1, 1), "b": Served(6, 2, 1)}


def test_a_worker_that_reports_anew_replaces_what_it_said(store: Store) -> None:
    serves(store, "w1", 4, "a", "b")
    serves(store, "w1", 8, "b", "c")
    assert queues_served(store) == {"b": Served(8, 1, 1), "c": Served(8, 1, 1)}
    serves(store, "w1", 8, "b", "c")
    assert queues_served(store) == {"b": Served(8, 1, 1), "c": Served(8, 1, 1)}, "the same again changes nothing"


def test_a_renewal_that_says_nothing_keeps_what_was_said(store: Store) -> None:
    serves(store, "w1", 4, "a")
    assert isinstance(store.beat("w1", renew=True), Renewed)
    assert queues_served(store) == {"a": Served(4, 1, 1)}


def test_what_a_worker_said_goes_when_it_leaves(store: Store, redis: Redis) -> None:
    serves(store, "w1", 4, "a")
    serves(store, "w2", 1, "a")
    store.leave("w1")
    assert queues_served(store) == {"a": Served(1, 1, 1)}
    store.leave("w2")
    assert not redis.exists(f"{store.prefix}places")


def test_what_a_worker_said_goes_with_its_lapsed_lease(store: Store, clock: Clock) -> None:
    serves(store, "w1", 4, "a")
    clock.pass_(4)
    serves(store, "w2", 1, "a")
    clock.pass_(4)
    store.beat("w2", renew=True)
    clock.pass_(4)
    store.sweep("w2")
    assert queues_served(store) == {"a": Served(1, 1, 1)}
    late = Serving(4, ("a",))
    assert isinstance(store.beat("w1", renew=True, serving=late), Lost)
    assert queues_served(store) == {"a": Served(1, 1, 1)}, "a renewal that comes too late counts nothing"


def test_queue_names_that_limits_can_not_be_kept_for_are_left_out(store: Store) -> None:
    serves(store, "w1", 4, "a\nb", "", "c\td", "e f")
    assert queues_served(store) == {"e f": Served(4, 1, 1)}


@pytest.mark.parametrize(
    ("field", "value"), [("q:a", "7 1 1"), ("q:gone", "1 1 1"), ("all", "5 5"), ("w:nobody", "3 1\na")]
)
def test_the_audit_counts_places_anew(store: Store, redis: Redis, field: str, value: str) -> None:
    serves(store, "w1", 4, "a", "b")
    assert audit(store) == []
    name: Any = f"{store.prefix}places"
    before = redis.hgetall(name)
    redis.hset(name, field, value)
    assert [finding.code for finding in audit(store)] == ["wrong-places"]
    audit(store, repair=True)
    assert redis.hgetall(name) == before
