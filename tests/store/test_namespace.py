"""A name never leaves its namespace, nor its hash slot, whatever is in it; and two names never meet."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from redis import Redis
from redis.crc import key_slot

from celery_limits.store import Policy, Store
from celery_limits.store.keys import prefix_of
from celery_limits.store.outcomes import Admitted, Parked
from tests.store.actors import Clock, Worker, c, f, r, raw_client

ODD = [
    "}",
    "{",
    "{other}",
    "a}:hold:b",
    "}:limits:{other}:hold:b",
    "limits:{other}:hold:b",
    "*",
    "?[a-z]",
    "a:b",
    "c:1:a",
    "a|b",
    "a#2",
    "..",
    "%s%n",
    "'; return redis.call('FLUSHALL') --",
    "]]..redis.call('FLUSHALL')..[[",
    "ключ",
    "🔑",
    "a b",
]


def names(client: Any) -> set[str]:
    return {raw.decode() for raw in client.keys("*")}


@pytest.mark.leaves_traces
@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_every_key_is_in_the_namespace_and_in_its_slot(store: Store, odd: str) -> None:
    """Waiting, granted, recovered and cancelled under an odd key, an odd task id and an odd queue."""
    worker = Worker(store, "w1", queue=odd)
    links = (c(odd, 1), f(f"f{odd}", 1), r(f"r{odd}", "1/s"))
    assert isinstance(worker.deliver(f"{odd}.1", *links), Admitted)
    assert isinstance(worker.deliver(f"{odd}.2", *links), Parked)
    store.pause(odd)
    store.resume(odd)
    store.resize(odd, 1)
    store.cancel(f"{odd}x")
    worker.finish(f"{odd}.1")
    found = names(raw_client(store))
    assert found
    assert [name for name in found if not name.startswith(store.prefix)] == []
    assert {key_slot(name.encode()) for name in found} == {key_slot(store.prefix.encode())}


def test_two_keys_never_share_a_counter(store: Store) -> None:
    """Full is full for the very same name alone."""
    worker = Worker(store)
    for number, odd in enumerate(ODD):
        assert isinstance(worker.deliver(f"t{number}.1", c(odd, 1)), Admitted), odd
    for ticket in list(worker.running):
        worker.finish(ticket)


def test_two_namespaces_never_meet(redis: Redis, clock: Clock, policy: Policy) -> None:
    """Nor where one is the beginning of the other."""
    stores = [Store(redis, name, policy, clock) for name in ("a", "a:hold", "a.b", "b")]
    workers = [Worker(store) for store in stores]
    for worker in workers:
        assert isinstance(worker.deliver("t.1", c("hold:k", 1)), Admitted)
    for one, other in itertools.permutations(stores, 2):
        assert not one.prefix.startswith(other.prefix)
    for worker in workers:
        worker.finish("t.1")
        worker.store.close()


@pytest.mark.parametrize("name", ["", "a}b", "{a", "a b", "a*", "a\n", "ä", "x" * 101, "a/b", "a'b"])
def test_a_namespace_that_could_break_out_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        prefix_of(name)
