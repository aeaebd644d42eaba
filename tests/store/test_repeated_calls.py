"""Calls whose answers were lost, made again, or arriving, when the world has moved on. Found by the simulation."""

from __future__ import annotations

from celery_limits.store import Store
from celery_limits.store.outcomes import Admitted, Duplicate, Parked
from tests.store.actors import Clock, Worker, c, field_of, live_on, settle, wind_up


def test_4_a_repeated_call_leaves_the_grant_to_the_parked_message_that_was_fetched(store: Store) -> None:
    """t parks, but the answer is lost; it is granted; its worker fetches it, and then repeats the first call."""
    worker = Worker(store)
    worker.deliver("other.1", c("a", 1))
    assert isinstance(worker.deliver("t.1", c("a", 1), delivery="first"), Parked)
    worker.finish("other.1")
    assert [ticket for ticket, _ in worker.fetch()] == ["t.1"]
    assert worker.deliver("t.1", c("a", 1), delivery="first", field="") == Duplicate()
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


def test_what_expired_while_its_worker_was_dead_ends_with_the_recovery(store: Store, clock: Clock) -> None:
    """It neither joins a line again nor takes a slot that another could have."""
    first, second = Worker(store, "w1"), Worker(store, "w2")
    expires = clock.now + 5_000_000
    assert isinstance(first.deliver("t.1", c("a", 1), expires=expires, late=True), Admitted)
    assert second.deliver("t.1", c("a", 1), expires=expires, late=True) == Duplicate()
    assert isinstance(second.deliver("other.1", c("a", 1)), Parked)
    assert live_on(clock, 15, second) == ["w1"]
    assert field_of(store, "t.1", "reason") == "expired"
    assert second.pick_up(c("a", 1)) == ["other.1"]
    (claimed,) = store.claim()
    assert (claimed.ticket, claimed.reason) == ("t.1", "expired")
    store.settle([claimed])
    second.finish("other.1")


def test_5_a_call_of_before_that_arrives_late_does_not_take_the_message_along(store: Store) -> None:
    """w1 asks, and gives up waiting; its broker delivers to w2 instead, where t is parked. t is granted and about to be
    published when the first call is carried out after all: nobody runs it, and the store must keep its message."""
    w1, w2 = Worker(store, "w1", queue=""), Worker(store, "w2", queue="")
    w2.deliver("other.1", c("a", 1))
    assert isinstance(w2.deliver("t.1", c("a", 1), new=True), Parked)
    w2.finish("other.1")
    (claimed,) = store.claim()
    assert w1.deliver("t.1", c("a", 1), new=True) == Duplicate()
    assert store.messages_of(["t.1"]) == {"t.1": b"message of t.1"}
    settle(store, [claimed])  # it is published, and comes with what the store has written into it
    assert isinstance(w2.deliver("t.1", c("a", 1)), Admitted)
    w2.finish("t.1")


def test_6_a_worker_that_comes_back_late_with_the_copy_that_was_parked_does_not_run_it_beside_the_one_that_was_sent(
    store: Store, clock: Clock
) -> None:
    """The answer to w1 is lost, so it does not acknowledge; it stands still until it is taken for dead. t is granted
    and sent meanwhile. w1 joins under a new name, asks once more, and is told that the sent one comes."""
    w1, w2 = Worker(store, "w1", queue=""), Worker(store, "w2", queue="")
    w2.deliver("other.1", c("a", 1))
    assert isinstance(w1.deliver("t.1", c("a", 1), new=True), Parked)
    w2.finish("other.1")
    assert live_on(clock, 15, w2) == ["w1"]
    settle(store, store.claim())
    back = Worker(store, "w1-again", queue="")
    assert back.deliver("t.1", c("a", 1), new=True) == Duplicate()
    assert isinstance(w2.deliver("t.1", c("a", 1)), Admitted)
    w2.finish("t.1")
    wind_up(clock, w2, back)


def test_5_a_call_of_before_does_not_drop_what_came_out_of_the_store_and_went_back(store: Store) -> None:
    """t was parked once, was sent, came, and ran; it goes back, and then its admission is carried out once more."""
    w = Worker(store, queue="")
    w.deliver("other.1", c("a", 1))
    w.deliver("t.1", c("a", 1), delivery="parked")
    w.finish("other.1")
    settle(store, store.claim())
    assert isinstance(w.deliver("t.1", c("a", 1), delivery="came", late=True), Admitted)
    w.finish("t.1", back=True)
    assert isinstance(w.deliver("t.1", c("a", 1), delivery="came", late=True), Admitted)
    w.finish("t.1")


def test_4_a_repeated_call_does_not_run_what_its_worker_has_given_back_meanwhile(store: Store) -> None:
    """The answer to w1 is lost. It loses its connection and gives the delivery back; then a request that was deferred
    asks once more. Were it told that it is admitted, its body would run, and so would the copy that went back."""
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("other.1", c("a", 1))
    assert isinstance(w1.deliver("t.1", c("a", 1), late=True), Parked)
    w1.finish("other.1")
    w1.fetch()
    field = w1.fields["t.1"]
    first = w1.deliver("t.1", c("a", 1), delivery="first", late=True)
    assert isinstance(first, Admitted)
    again = w1.deliver("t.1", c("a", 1), delivery="first", late=True)
    assert isinstance(again, Admitted)
    assert again.fence == first.fence  # the worker has the delivery still: the same answer
    w1.post.requeue("w1", [field], "front")
    assert w1.deliver("t.1", c("a", 1), delivery="first", field=field, late=True) == Duplicate()
    store.release("t.1", "w1", first.fence, back=True)  # as its housekeeping does, which knows of no body
    assert w2.pick_up(c("a", 1)) == ["t.1"]
    w2.finish("t.1")
