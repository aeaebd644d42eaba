"""A worker that trusts no header resolves each chain itself: that one is in force, whatever the store has recorded."""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Full, Parked
from tests.store.actors import Clock, Worker, c, field_of, holders, line_at, r, raw_client, ready_in, wind_up
from tests.store.model_message import Message
from tests.store.post import QUEUE, Post, list_of

OWN = c("own", 1)
FORGED = c("forged", 1)


def granted(store: Store, w: Worker) -> None:
    """One that stood in the line of a chain that no task declares, and whose turn has come."""
    w.deliver("holds.n", FORGED)
    w.deliver("t.n", FORGED, c("forged-2", 5))
    w.finish("holds.n")
    assert field_of(store, "t.n", "state") == "granted"
    w.fetch()


def test_a_granted_ticket_walks_the_resolved_chain(store: Store, clock: Clock) -> None:
    w = Worker(store)
    granted(store, w)
    w.deliver("first.n", OWN)
    assert isinstance(w.deliver("t.n", OWN, resolved=True), Parked)
    assert (holders(store, "forged"), holders(store, "forged-2"), holders(store, "own")) == (set(), set(), {"first.n"})
    assert line_at(store, "own") == ["t.n"]
    assert audit(store) == []
    w.finish("first.n")
    assert w.pick_up(OWN, resolved=True) == ["t.n"]
    assert holders(store, "own") == {"t.n"}
    w.finish("t.n")
    wind_up(clock, w)


def test_with_room_it_runs_under_the_resolved_chain_alone(store: Store, clock: Clock) -> None:
    w = Worker(store)
    granted(store, w)
    w.deliver("waits.n", FORGED)
    assert isinstance(w.deliver("t.n", OWN, resolved=True), Admitted)
    assert holders(store, "own") == {"t.n"}
    assert ready_in(store) == ["waits.n"], "who waits for the forged key gets it"
    assert audit(store) == []
    w.finish("t.n")
    wind_up(clock, w)


def test_the_recorded_chain_stays_where_it_is_the_same(store: Store, clock: Clock) -> None:
    """And no token is paid twice."""
    w, chain = Worker(store), (c("a", 1), r("rate", "1/h", burst=2))
    w.deliver("holds.n", *chain)
    w.deliver("t.n", *chain)
    w.finish("holds.n")
    before = raw_client(store).zscore(f"{store.prefix}rates", "rate")
    assert w.pick_up(*chain, resolved=True) == ["t.n"]
    assert raw_client(store).zscore(f"{store.prefix}rates", "rate") == before
    w.finish("t.n")
    wind_up(clock, w)


def test_another_broker_is_asked_for_the_message_before_anything_is_freed(store: Store, clock: Clock) -> None:
    w = Worker(store, queue="")
    w.deliver("holds.n", FORGED)
    w.deliver("t.n", FORGED)
    w.finish("holds.n")
    (entry,) = store.claim()
    store.settle([entry])
    assert w.deliver("t.n", OWN, message=b"", resolved=True) == Full(0)
    assert holders(store, "forged") == {"t.n"}
    assert isinstance(w.deliver("t.n", OWN, resolved=True), Admitted)
    assert (holders(store, "forged"), holders(store, "own")) == (set(), {"t.n"})
    w.finish("t.n")
    wind_up(clock, w)


def test_a_damaged_key_fails_before_anything_is_freed(store: Store, clock: Clock) -> None:
    w, client = Worker(store), raw_client(store)
    granted(store, w)
    client.set(f"{store.prefix}hold:own", "not a hash")
    with pytest.raises(Exception, match="WRONGTYPE"):
        w.deliver("t.n", OWN, resolved=True)
    assert holders(store, "forged") == {"t.n"}
    client.delete(f"{store.prefix}hold:own")
    assert isinstance(w.deliver("t.n", OWN, resolved=True), Admitted)
    w.finish("t.n")
    wind_up(clock, w)


def test_nothing_waits_in_a_line_before_a_gate_has_seen_it(store: Store, clock: Clock) -> None:
    """The publisher's own chain would be recorded, hold what it names, and be walked."""
    strict = Store(store.client, store.namespace, store.policy, clock, trust=False)
    w, client = Worker(strict, queue=QUEUE), raw_client(store)
    w.deliver("holds.n", FORGED)
    w.deliver("waits.n", FORGED)
    message = Message("t.n", (FORGED,), 0, False, QUEUE, None, None)
    assert not Post(strict).publish(QUEUE, list_of(0), message.body, *message.stamp(0))
    fetched = (w.post.fetch("w1", 1, flags="rs") or [])[0]
    assert line_at(store, "forged") == ["waits.n"]
    w.post.acknowledge("w1", [fetched.field])
    assert client.llen(list_of(0)) == 0
    wind_up(clock, w)
