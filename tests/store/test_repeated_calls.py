"""Calls whose answers were lost, made again when the world has moved on. Found by the simulation."""

from __future__ import annotations

from celery_limits.store import Store
from celery_limits.store.outcomes import Admitted, Duplicate, Parked
from tests.store.actors import Worker, c, settle


def test_4_a_repeated_call_leaves_the_grant_to_the_parked_message_that_was_taken(store: Store) -> None:
    """t parks, but the answer is lost; it is granted; the worker takes its message, and then repeats the first call."""
    worker = Worker(store)
    worker.deliver("other.1", c("a", 1))
    assert isinstance(worker.deliver("t.1", c("a", 1), delivery="first"), Parked)
    worker.finish("other.1")
    taken = store.take("w1", "q")
    assert isinstance(taken, tuple)
    assert [ticket for ticket, _ in taken] == ["t.1"]
    assert worker.deliver("t.1", c("a", 1), delivery="first") == Duplicate()
    assert isinstance(worker.deliver("t.1", c("a", 1), delivery="second"), Admitted)
    worker.finish("t.1")


def test_4_a_repeated_call_leaves_the_grant_to_the_parked_message_that_was_published(store: Store) -> None:
    worker = Worker(store, queue="")
    worker.deliver("other.1", c("a", 1))
    assert isinstance(worker.deliver("t.1", c("a", 1), delivery="first"), Parked)
    worker.finish("other.1")
    (claimed,) = store.claim()
    assert worker.deliver("t.1", c("a", 1), delivery="first") == Duplicate()
    settle(store, [claimed])
    assert worker.deliver("t.1", c("a", 1), delivery="first") == Duplicate()
    assert isinstance(worker.deliver("t.1", c("a", 1), delivery="second"), Admitted)
    worker.finish("t.1")


def test_a_message_that_returned_to_the_broker_is_its_own_again(store: Store) -> None:
    """What ran and went back was never parked: its next delivery is walked, whatever it is called."""
    worker = Worker(store, queue="")
    worker.deliver("t.1", c("a", 1), delivery="first")
    worker.finish("t.1", back=True)
    assert isinstance(worker.deliver("t.1", c("a", 1), delivery="first"), Admitted)
    worker.finish("t.1")
