"""The size WORKERS: as many as the live workers that consume the task's queue have places, as the store knows them."""

from __future__ import annotations

from typing import Any

import pytest

from celery_limits.declare.chain import ConcurrencyLink, Link
from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Discarded, Parked
from celery_limits.store.serving import Serving
from tests.store.actors import Clock, Worker, c, names_in, raw_client, ready_in, sweep_all, wind_up
from tests.store.test_fairness import published

ODD = "q:1%3A 50%"


def pool(group: str | None = None, **more: Any) -> Link:
    return ConcurrencyLink(key="pool", limit="workers", group=group, **more)


def serve(worker: Worker, places: int, *queues: str) -> None:
    worker.store.beat(worker.name, serving=Serving(places, queues or (worker.queue,)))


@pytest.fixture(params=["q", ODD])
def worker(store: Store, request: pytest.FixtureRequest) -> Worker:
    return Worker(store, queue=request.param)


def ask(worker: Worker, *tickets: str, **more: Any) -> list[bool]:
    """Whether each is admitted."""
    outcomes = [worker.deliver(ticket, pool(**more)) for ticket in tickets]
    assert all(isinstance(outcome, (Admitted, Parked)) for outcome in outcomes)
    return [isinstance(outcome, Admitted) for outcome in outcomes]


def test_as_many_run_as_the_workers_have_places(worker: Worker, clock: Clock) -> None:
    serve(worker, 2)
    assert ask(worker, "a.1", "a.2", "a.3") == [True, True, False]
    worker.finish("a.1")
    assert worker.pick_up(pool()) == ["a.3"]
    wind_up(clock, worker)


def test_with_no_worker_of_the_queue_tasks_wait_for_the_first_beat(worker: Worker, clock: Clock, store: Store) -> None:
    """The beat rings for a sweep, which is due at once."""
    assert ask(worker, "a.1", "a.2") == [False, False]
    serve(worker, 8, "another")
    sweep_all(store)
    assert ready_in(store, worker.queue) == []
    serve(worker, 1)
    assert raw_client(store).exists(f"{store.prefix}bell")
    sweep_all(store)
    assert ready_in(store, worker.queue) == ["a.1"]
    assert worker.pick_up(pool()) == ["a.1"]
    assert audit(store) == []
    serve(worker, 2)
    wind_up(clock, worker)


def test_it_follows_workers_that_join_and_leave(store: Store, clock: Clock) -> None:
    stays, goes = Worker(store, "stays"), Worker(store, "goes")
    serve(stays, 2)
    assert ask(stays, "a.1", "a.2", "a.3", "a.4", "a.5", "a.6") == [True, True, False, False, False, False]
    serve(goes, 1)
    sweep_all(store)
    assert goes.pick_up(pool()) == ["a.3"]
    goes.finish("a.3")
    assert ready_in(store, "q") == ["a.4"]
    stays.pick_up(pool())
    store.leave("goes")
    stays.finish("a.1")
    assert ready_in(store, "q") == [], "two of two are held"
    stays.finish("a.2")
    assert stays.pick_up(pool()) == ["a.5"]
    wind_up(clock, stays)


def test_it_follows_a_worker_that_dies(store: Store, clock: Clock) -> None:
    """What it held is given back in the same sweep, and nobody is given its places."""
    lives, dies = Worker(store, "lives"), Worker(store, "dies")
    serve(lives, 1)
    serve(dies, 2)
    assert ask(dies, "d.1", "d.2") == [True, True]
    assert ask(lives, "l.1", "l.2") == [True, False]
    for _ in range(8):
        clock.pass_(4)
        store.beat("lives", renew=True)
        sweep_all(store, "lives")
    assert store.status("pool").limit == 1
    assert store.status("pool").running == 1
    assert ready_in(store, "q") == []
    lives.finish("l.1")
    assert lives.pick_up(pool()) == ["l.2"]
    wind_up(clock, lives)


def test_it_follows_a_pool_that_grows_and_shrinks(worker: Worker, clock: Clock, store: Store) -> None:
    serve(worker, 1)
    assert ask(worker, "a.1", "a.2", "a.3") == [True, False, False]
    serve(worker, 3)
    sweep_all(store)
    assert worker.pick_up(pool()) == ["a.2", "a.3"]
    serve(worker, 1)
    sweep_all(store)
    assert ask(worker, "a.4") == [False]
    worker.finish("a.1")
    worker.finish("a.2")
    assert ready_in(store, worker.queue) == [], "nobody was evicted, and one still holds the only slot"
    worker.finish("a.3")
    assert worker.pick_up(pool()) == ["a.4"]
    wind_up(clock, worker)


def test_of_two_queues_at_one_key_each_is_admitted_by_its_own(store: Store, clock: Clock) -> None:
    one, two = Worker(store, "one", queue="one"), Worker(store, "two", queue="two")
    serve(one, 1)
    serve(two, 3)
    assert ask(one, "a.1", "a.2") == [True, False]
    assert ask(two, "b.1", "b.2", "b.3") == [True, True, False]
    serve(one, 4)
    sweep_all(store)
    assert ready_in(store, "one") == ["a.2"]
    assert ready_in(store, "two") == []
    assert one.pick_up(pool()) == ["a.2"]
    wind_up(clock, one, two)


def test_groups_share_the_workers(worker: Worker, clock: Clock) -> None:
    serve(worker, 2)
    for i in range(6):
        worker.deliver(f"a.{i}", pool("a"))
    worker.deliver("b.0", pool("b"))
    worker.finish("a.0")
    assert worker.pick_up(pool("any")) == ["b.0"]
    wind_up(clock, worker)


def test_resize_and_reset(worker: Worker, clock: Clock, store: Store) -> None:
    serve(worker, 1)
    assert ask(worker, "a.1", "a.2", "a.3") == [True, False, False]
    store.resize("pool", 2)
    assert worker.pick_up(pool()) == ["a.2"]
    assert (store.status("pool").limit, store.status("pool").steered) == (2, True)
    store.reset("pool")
    worker.finish("a.1")
    assert ready_in(store, worker.queue) == []
    assert store.status("pool").limit == 1
    wind_up(clock, worker)


def test_a_key_may_be_used_with_a_number_too(worker: Worker, clock: Clock) -> None:
    """Whoever declares the larger size passes those who wait for the smaller one; also when places go."""
    serve(worker, 3)
    assert ask(worker, "a.1", "a.2") == [True, True]
    assert isinstance(worker.deliver("n.1", c("pool", 2)), Parked)
    assert ask(worker, "a.3") == [True]
    wind_up(clock, worker)


def test_places_that_go_may_let_another_pass(worker: Worker, clock: Clock, store: Store) -> None:
    serve(worker, 2)
    assert ask(worker, "a.1", "a.2", "a.3") == [True, True, False]
    store.resize("pool", 0)
    assert isinstance(worker.deliver("n.1", c("pool", 2)), Parked)
    store.reset("pool")
    worker.finish("a.1")
    worker.finish("a.2")
    assert ready_in(store, worker.queue) == ["a.3", "n.1"]
    wind_up(clock, worker)


def test_lines_may_be_bounded(worker: Worker, clock: Clock) -> None:
    serve(worker, 1)
    assert isinstance(worker.deliver("a.1", pool()), Admitted)
    assert isinstance(worker.deliver("a.2", pool(on_full="discard")), Discarded)
    assert isinstance(worker.deliver("a.3", pool(max_waiting=1)), Parked)
    assert isinstance(worker.deliver("a.4", pool(max_waiting=1)), Discarded)
    wind_up(clock, worker)


def test_what_is_sifted_at_a_fetch_joins_the_line_of_its_queue(worker: Worker, clock: Clock, store: Store) -> None:
    serve(worker, 1)
    assert ask(worker, "a.1", "a.2") == [True, False]
    raw_client(store).lpush(worker.queue, published("late.1", pool("b")))
    assert worker.post.fetch(worker.name, 5, flags="rs", queue=worker.queue) == []
    assert len(names_in(store, "line:gw:*")) == 1
    assert audit(store) == []
    wind_up(clock, worker)


def test_many_keys_follow_within_the_budget_of_a_sweep(worker: Worker, clock: Clock, store: Store) -> None:
    keys = [f"k{i}" for i in range(150)]
    for key in keys:
        assert isinstance(worker.deliver(f"{key}.1", ConcurrencyLink(key=key, limit="workers")), Parked)
    serve(worker, 1)
    sweeps = 0
    while store.sweep(batch=20).after.more:
        sweeps += 1
    assert sweeps > 1
    assert len(ready_in(store, worker.queue)) == len(keys)
    assert names_in(store, "followers:*") == []
    wind_up(clock, worker)


def test_the_audit_finds_a_key_that_does_not_follow(worker: Worker, clock: Clock, store: Store) -> None:
    assert ask(worker, "a.1") == [False]
    assert audit(store) == []
    raw_client(store).delete(f"{store.prefix}followers:{worker.queue}")
    assert [finding.code for finding in audit(store)] == ["hidden-line"]
    audit(store, repair=True)
    assert audit(store) == []
    serve(worker, 1)
    sweep_all(store)
    assert worker.pick_up(pool()) == ["a.1"]
    wind_up(clock, worker)


def test_status_says_how_many_that_is(worker: Worker, clock: Clock, store: Store) -> None:
    serve(worker, 3)
    ask(worker, "a.1")
    status = store.status("pool")
    assert (status.kind, status.limit, status.follows_workers) == ("concurrency", 3, True)
    wind_up(clock, worker)
