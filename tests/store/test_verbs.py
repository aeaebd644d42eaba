"""What release, cancel and fetch answer, and what they leave in the store, also when a ticket comes again.

Admission, outbox, liveness, floating limits, steering and reading have files of their own.
"""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import (
    Admitted,
    Duplicate,
    Parked,
    Released,
    Revoked,
    Stale,
)
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
    ready_in,
    settle,
    wind_up,
)

A, B = c("a", 1), c("b", 1)


# -- release ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waited", [False, True])
def test_release_again_is_stale(store: Store, clock: Clock, waited: bool) -> None:
    w = Worker(store)
    w.deliver("t.n", A, r("api", "9/s"), c("k", 3, weight=2))
    if waited:
        w.deliver("next.n", A)
    fence = w.running["t.n"]
    assert isinstance(w.finish("t.n"), Released)
    assert isinstance(store.release("t.n", w.name, fence), Stale)
    assert isinstance(store.release("t.n", w.name, fence, back=True), Stale)
    wind_up(clock, w)


def test_a_chain_of_rates_alone_is_released_too(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t.n", r("api", "9/s"))
    assert isinstance(w.finish("t.n"), Released)
    assert names_in(store, "task:*") == []
    wind_up(clock, w)


def test_back_keeps_place_and_paid_tokens(store: Store, clock: Clock) -> None:
    w, rate = Worker(store), r("api", "1/h")
    w.deliver("t.n", A, rate)
    w.deliver("younger.n", A)
    w.finish("t.n", back=True)
    assert isinstance(w.deliver("t.n", A, rate), Parked)
    w.deliver("youngest.n", A)
    assert wind_up(clock, w) == ["younger.n", "t.n", "youngest.n"]


def test_back_and_never_seen_again_is_forgotten(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("t.n", A)
    w.finish("t.n", back=True)
    live_on(clock, store.policy.place_ttl - 5, w)
    assert names_in(store, "task:*") == ["task:t"]
    live_on(clock, 10, w)
    assert names_in(store, "task:*") == []
    wind_up(clock, w)


# -- spares -----------------------------------------------------------------------------------------------


def test_a_redelivery_of_what_runs_is_kept_as_its_spare_and_dropped_with_it(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("t.n", A)
    assert isinstance(w2.deliver("t.n", A), Duplicate)
    assert isinstance(w2.deliver("t.n", A), Duplicate), "one spare is enough"
    assert field_of(store, "t.n", "kept") == "spare"
    assert audit(store) == []
    w1.finish("t.n")
    assert names_in(store, "task:*") == []
    assert wind_up(clock, w1, w2) == []


@pytest.mark.parametrize("queue", ["q", ""])
def test_a_spare_whose_acknowledgement_another_broker_did_not_hear_does_not_run(
    store: Store, clock: Clock, queue: str
) -> None:
    """It comes again, when the first has ended. Ours is acknowledged in the step that keeps it, and is forgotten."""
    w1, w2 = Worker(store, "w1", queue), Worker(store, "w2", queue)
    w1.deliver("t.n", A)
    w2.deliver("t.n", A)
    w1.finish("t.n")
    if queue:
        assert names_in(store, "task:*") == []
    else:
        assert isinstance(w2.deliver("t.n", A), Duplicate)
        live_on(clock, store.policy.revoke_ttl + 5, w1, w2)
    assert names_in(store, "task:*") == []
    assert wind_up(clock, w1, w2) == []


def test_a_spare_goes_on_when_its_worker_dies(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("t.n", A)
    w2.deliver("younger.n", A)
    w2.deliver("t.n", A, message=b"the spare")
    assert live_on(clock, store.policy.lease + 2, w2) == ["w1"]
    assert holders(store, "a") == {"t.n"}, "in its old place, before the younger"
    assert w2.fetch() == [("t.n", b"the spare")]
    assert isinstance(w2.deliver("t.n", A), Admitted)
    assert wind_up(clock, w2) == ["younger.n"]


def test_a_spare_of_a_cancelled_task_ends_when_its_worker_dies(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("t.n", A)
    w2.deliver("t.n", A)
    assert store.cancel("t").running == 1
    live_on(clock, store.policy.lease + 2, w2)
    assert [(entry.ticket, entry.reason) for entry in store.claim()] == [("t.n", "revoked")]
    settle(store, ["t.n"])
    assert wind_up(clock, w2) == []


@pytest.mark.parametrize("queue", ["q", ""])
def test_a_ticket_with_a_spare_that_goes_back_runs_once_more_whichever_copy_comes(
    store: Store, clock: Clock, queue: str
) -> None:
    w1, w2 = Worker(store, "w1", queue), Worker(store, "w2", queue)
    w1.deliver("t.n", A)
    w2.deliver("t.n", A)
    w1.finish("t.n", back=True)
    first = w2.deliver("t.n", A)  # the copy that w1 gave back to the broker
    started = wind_up(clock, w2, w1)
    assert isinstance(first, Admitted) + started.count("t.n") == 1


def test_a_line_that_nobody_can_read_does_not_keep_the_others_of_its_key_waiting(store: Store, clock: Clock) -> None:
    w, client = Worker(store), raw_client(store)
    w.deliver("first.n", A)
    w.deliver("second.n", A)
    client.hset(f"{store.prefix}note:a", "class:junk", "1")
    client.zadd(f"{store.prefix}line:junk:a", {"gone.n": 1})
    w.finish("first.n")
    assert names_in(store, "line:*") == []
    assert wind_up(clock, w) == ["second.n"]


# -- fetch and grants -------------------------------------------------------------------------------------


def test_fetch_hands_out_in_turn_and_each_once(store: Store, clock: Clock) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    for i in range(6):
        w1.deliver(f"t{i}.n", c("k", 3))
    for i in range(3):
        w1.finish(f"t{i}.n")
    assert w1.post.fetch("nobody", 1) is None
    assert w1.fetch(queue="another queue") == []
    assert [t.ticket for t in w1.fetch(2)] == ["t3.n", "t4.n"]
    assert [t.ticket for t in w2.fetch(2)] == ["t5.n"]
    for worker, ticket in ((w1, "t3.n"), (w1, "t4.n"), (w2, "t5.n")):
        assert isinstance(worker.deliver(ticket, ANY), Admitted)
    wind_up(clock, w1, w2)


def test_a_grant_not_picked_up_in_time_goes_to_the_next_without_losing_its_place(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for i in range(4):
        w.deliver(f"t{i}.n", A)
    w.finish("t0.n")
    live_on(clock, store.policy.grant_timeout - 1, w)
    assert holders(store, "a") == {"t1.n"}
    live_on(clock, 2, w)
    assert holders(store, "a") == {"t2.n"}
    assert ready_in(store) == ["t1.n", "t2.n"], "its message stays where it was"
    assert audit(store) == []
    assert w.pick_up(ANY) == ["t2.n"], "t1 has no slot any more, and waits"
    assert line_at(store, "a") == ["t1.n", "t3.n"]
    assert wind_up(clock, w) == ["t1.n", "t3.n"]


def test_a_grant_fetched_and_not_picked_up_in_time_frees_its_slot_and_stays_its_workers(
    store: Store, clock: Clock
) -> None:
    w1, w2 = Worker(store, "w1"), Worker(store, "w2")
    w1.deliver("first.n", A)
    w1.deliver("t.n", A)
    w1.deliver("next.n", A)
    w1.finish("first.n")
    w1.fetch()
    live_on(clock, store.policy.grant_timeout + 1, w1, w2)
    assert holders(store, "a") == {"next.n"}
    assert audit(store) == []
    assert w2.pick_up(ANY) == ["next.n"]
    assert isinstance(w1.deliver("t.n", A), Parked)
    assert wind_up(clock, w2, w1) == ["t.n"]


# -- cancel -----------------------------------------------------------------------------------------------


def test_a_cancelled_id_is_refused_until_it_is_forgotten(store: Store, clock: Clock) -> None:
    w = Worker(store)
    cancelled = store.cancel("t")
    assert (cancelled.running, cancelled.ended) == (0, ())
    live_on(clock, store.policy.revoke_ttl - 5, w)
    assert isinstance(w.deliver("t.n", A), Revoked)
    assert store.explain("t").cancelled
    live_on(clock, 10, w)
    assert not store.explain("t").cancelled
    assert isinstance(w.deliver("t.n", A), Admitted)
    wind_up(clock, w)


def test_cancel_says_what_runs_and_ends_what_does_not(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for nonce in ("runs", "waits", "waits2"):
        w.deliver(f"t.{nonce}", A, message=nonce.encode())
    cancelled = store.cancel("t")
    assert cancelled.running == 1
    assert sorted((ended.ticket, ended.message) for ended in cancelled.ended) == [
        ("t.waits", b"waits"),
        ("t.waits2", b"waits2"),
    ]
    assert store.cancel("t").ended == (), "told once; if the teller dies, the outbox tells it"
    assert store.claim() == ()
    live_on(clock, 31, w)
    assert sorted(entry.reason or "" for entry in store.claim()) == ["revoked", "revoked"]
    settle(store, ["t.waits", "t.waits2"])
    assert isinstance(w.finish("t.runs"), Released)
    wind_up(clock, w)
