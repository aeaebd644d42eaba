"""Scenarios T1 to T5 of docs/scenarios.md, as far as the store decides them."""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Duplicate, Parked, Released
from tests.store.actors import ANY, Clock, Worker, c, holders, line_at, live_on, raw_client, ready_in, used, wind_up
from tests.store.interleaving import Choices, Stage, every_way

A, B = c("a", 1), c("b", 1)


def _three_tasks(worker: Worker) -> None:
    """Six calls: three tasks after each other, or parked."""
    for i in range(3):
        ticket = f"{worker.name}-{i}.n"
        if isinstance(worker.deliver(ticket, A), Admitted):
            worker.finish(ticket)


def test_t1_two_workers_and_one_slot_in_every_merge(store: Store, clock: Clock) -> None:
    def scene(choices: Choices) -> None:
        raw_client(store).flushall()
        w1, w2 = Worker(store, "w1"), Worker(store, "w2")

        def story(worker: Worker, gated: Store) -> None:
            gated.beat(worker.name)
            worker.through(gated).deliver(f"{worker.name}.n", A)

        def one_slot() -> None:
            assert holders(store, "a") == {*w1.running, *w2.running}
            assert len(w1.running) + len(w2.running) <= 1

        with Stage(store, w1=lambda s: story(w1, s), w2=lambda s: story(w2, s)) as stage:
            stage.play(choices, after_each=one_slot)
        assert sorted([len(w1.running), len(w2.running)]) == [0, 1]
        assert len(line_at(store, "a")) == 1
        assert len(wind_up(clock, w1, w2)) == 1

    assert every_way(scene) == 6


def test_t1_two_workers_of_six_calls_each_in_every_merge(store: Store, clock: Clock) -> None:
    def scene(choices: Choices) -> None:
        raw_client(store).flushall()
        w1, w2 = Worker(store, "w1"), Worker(store, "w2")

        def never_over() -> None:
            assert len(w1.running) + len(w2.running) <= 1
            assert used(store, "a") <= 1

        first, second = (lambda s: _three_tasks(w1.through(s))), (lambda s: _three_tasks(w2.through(s)))
        with Stage(store, w1=first, w2=second) as stage:
            stage.play(choices, after_each=never_over)
        assert used(store, "a") == min(1, len(line_at(store, "a")) + len(ready_in(store)))
        started = wind_up(clock, w1, w2)
        assert len(set(started)) == len(started)
        assert audit(store) == []

    assert every_way(scene) > 100


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
def test_t2_exactly_as_many_run_as_the_limit_says(store: Store, clock: Clock, limit: int) -> None:
    workers = [Worker(store, name) for name in ("w1", "w2", "w3")]
    for i in range(limit + 3):
        workers[i % 3].deliver(f"t{i}.n", c("k", limit))
    started = limit
    while started < limit + 3:
        assert sum(len(w.running) for w in workers) == used(store, "k") == limit
        busy = next(w for w in workers if w.running)
        busy.finish(next(iter(busy.running)))
        assert used(store, "k") == limit
        started += len(busy.pick_up(ANY))
    assert wind_up(clock, *workers) == []


def test_t3_parked_25_times_and_the_message_is_the_same(store: Store, clock: Clock) -> None:
    message = b'{"headers": {"retries": 0, "id": "t"}, "body": "W1tdLCB7fV0="}'
    w = Worker(store)
    w.deliver("holder.n", A)
    w.deliver("t.n", A, message=message)
    for _ in range(25):
        store.pause("a")
        w.finish("holder.n")
        store.resume("a")
        assert w.fetch() == [("t.n", message)]
        live_on(clock, store.policy.grant_timeout + 3, w)  # it waits for a place of the pool: the grant is taken back
        assert isinstance(w.deliver("holder.n", A), Admitted)
        assert isinstance(w.deliver("t.n", A), Parked)
    assert wind_up(clock, w) == ["t.n"]


def test_t4_refused_at_link_2_and_delivered_twice_never_blocks_itself(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("in-b.n", B)
    assert isinstance(w1.deliver("t.n", A, B), Parked)
    assert isinstance(w2.deliver("t.n", A, B), Duplicate)
    assert holders(store, "a") == {"t.n"}
    w1.finish("in-b.n")
    assert w2.pick_up(ANY) == ["t.n"]
    assert wind_up(clock, w1, w2) == []


def test_t5_the_pool_closes_between_admission_and_hand_off(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("t.n", A)
    w1.deliver("next.n", A)
    released = w1.finish("t.n", back=True)
    assert isinstance(released, Released)
    assert not released.kept, "the broker has the message; the worker gives it back there"
    assert holders(store, "a") == {"next.n"}
    assert w2.pick_up(ANY) == ["next.n"]
    assert isinstance(w2.deliver("t.n", A), Parked)
    assert wind_up(clock, w2, w1) == ["t.n"]


def test_t5_what_came_from_the_store_goes_back_with_the_same_message(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("first.n", A)
    w1.deliver("t.n", A, message=b"the very same", late=True)
    w1.finish("first.n")
    assert w1.pick_up(ANY, late=True) == ["t.n"]
    released = w1.finish("t.n", back=True)
    assert isinstance(released, Released)
    assert not released.kept
    assert holders(store, "a") == set()
    assert w2.fetch() == [("t.n", b"the very same")]
    assert isinstance(w2.deliver("t.n", A, late=True), Admitted)
    assert wind_up(clock, w2, w1) == []
