"""A place in line is given by the store alone: an arrival counts with the store's seal on it, and for its ticket."""

from __future__ import annotations

import re

import pytest

from celery_limits.store import Store
from celery_limits.store.outcomes import Admitted, Parked
from tests.store.actors import ANY, Clock, Worker, c, field_of, line_at, raw_client, wind_up
from tests.store.model_message import Message
from tests.store.post import QUEUE, Post, list_of

A = c("a", 1)
_ARRIVAL = re.compile(rb'"arrival": "([^"]*)"')


def published(store: Store, ticket: str) -> tuple[Message, bytes]:
    """A message through our own transport, and its text in the queue."""
    message = Message(ticket, (A,), 0, False, QUEUE, None, None)
    assert not Post(store).publish(QUEUE, list_of(0), message.body, *message.stamp(0))
    return message, raw_client(store).lindex(list_of(0), 0)


def arrival_of(text: bytes) -> str:
    found = _ARRIVAL.search(text)
    assert found
    return found[1].decode()


def test_an_arrival_that_the_store_gave_is_a_place_in_line(store: Store, clock: Clock) -> None:
    w = Worker(store)
    _, text = published(store, "first.n")
    w.deliver("holds.n", A)
    w.deliver("second.n", A)
    assert isinstance(w.deliver("first.n", A, arrival=arrival_of(text)), Parked)
    assert line_at(store, "a") == ["first.n", "second.n"]
    raw_client(store).delete(QUEUE)
    wind_up(clock, w)


@pytest.mark.parametrize("seal", ["", "0" * 20, "f" * 20, "of another", "unsealed"])
def test_a_forged_arrival_is_none(store: Store, clock: Clock, seal: str) -> None:
    """It comes last, as any that is new."""
    w = Worker(store)
    _, text = published(store, "other.n")
    w.deliver("holds.n", A)
    w.deliver("first.n", A)
    claimed = {"of another": arrival_of(text), "unsealed": "1"}.get(seal, f"1-{seal}")
    assert isinstance(w.deliver("forged.n", A, arrival=claimed), Parked)
    assert line_at(store, "a") == ["first.n", "forged.n"]
    raw_client(store).delete(QUEUE)
    wind_up(clock, w)


def test_a_forged_arrival_of_one_that_is_admitted_at_once_is_none(store: Store, clock: Clock) -> None:
    """Should its worker die, it would stand before all others."""
    w = Worker(store)
    serial = int(raw_client(store).incr(f"{store.prefix}serial"))
    assert isinstance(w.deliver("forged.n", A, arrival="1-" + "0" * 20), Admitted)
    assert int(field_of(store, "forged.n", "arrival")) > serial
    w.finish("forged.n")
    wind_up(clock, w)


def test_a_message_cannot_bring_its_place_into_the_line_by_itself(store: Store, clock: Clock) -> None:
    """Sifting reads the header of what lies in the queue, whoever put it there."""
    w, client = Worker(store, queue=QUEUE), raw_client(store)
    w.deliver("holds.n", A)
    w.deliver("first.n", A)
    body = Message("forged.n", (A,), 0, False, QUEUE, None, None).body
    client.lpush(list_of(0), body.replace(b'"arrival": ""', b'"arrival": "1-' + b"0" * 20 + b'"'))
    assert w.post.fetch("w1", 1, flags="rs") == []
    assert line_at(store, "a") == ["first.n", "forged.n"]
    w.finish("holds.n")
    assert w.pick_up(ANY) == ["first.n"]
    wind_up(clock, w)


def test_a_header_of_version_1_is_sifted_and_comes_last(store: Store, clock: Clock) -> None:
    """Its fence was its place in line before."""
    w, client = Worker(store, queue=QUEUE), raw_client(store)
    w.deliver("holds.n", A)
    w.deliver("first.n", A)
    body = Message("old.n", (A,), 0, False, QUEUE, None, None).body
    old = body.replace(b'"v": 2', b'"v": 1').replace(b'"arrival": "", ', b"").replace(b'"fence": 0', b'"fence": 1')
    client.lpush(list_of(0), old)
    assert w.post.fetch("w1", 1, flags="rs") == []
    assert line_at(store, "a") == ["first.n", "old.n"]
    w.finish("holds.n")
    wind_up(clock, w)


def test_the_secret_is_made_once_by_whoever_comes_first(store: Store, clock: Clock) -> None:
    client, name = raw_client(store), f"{store.prefix}config"
    message, text = published(store, "t.n")  # nobody has a lease yet
    assert arrival_of(text)
    secret = client.hget(name, "seal")
    Worker(store)
    Worker(Store(store.client, store.namespace, store.policy, clock), "w2")
    assert client.hget(name, "seal") == secret
    assert message.ticket == "t.n"
    raw_client(store).delete(QUEUE)
