"""Several calls in one exchange: each is carried out and answered as if it had been made alone, whatever fails."""

from __future__ import annotations

from typing import Any

import pytest

from celery_limits.declare.chain import ConcurrencyLink
from celery_limits.store import Store, StoreUnavailable
from celery_limits.store.batch import Batch
from celery_limits.store.outcomes import Admitted, Parked, Released, Stale
from tests.redis_server import RedisServer
from tests.store.cutting_proxy import cutting_proxy

LINKS = (ConcurrencyLink(key="k", limit=1),)


def first_in(store: Store) -> Admitted:
    store.beat("w")
    outcome = store.admit("first.n", LINKS, "w", delivery="1")
    assert isinstance(outcome, Admitted)
    return outcome


def a_turn(store: Store, fence: int) -> list[Any]:
    """The first is released, the second gets its slot and the third waits; and the first is released once more."""
    together = Batch(store)
    together.release("first.n", "w", fence)
    together.admit("second.n", LINKS, "w", delivery="2")
    together.admit("third.n", LINKS, "w", delivery="3", message=b"m", queue="q")
    together.release("first.n", "w", fence)
    return together.exchange()


def end(store: Store, outcomes: list[Any]) -> None:
    assert [type(outcome) for outcome in outcomes] == [Released, Admitted, Parked, Stale]
    store.cancel("third", settle_within=0)
    store.settle(store.claim())
    store.release("second.n", "w", outcomes[1].fence)
    store.leave("w")


def test_they_are_carried_out_in_their_order(store: Store) -> None:
    end(store, a_turn(store, first_in(store).fence))


def test_in_one_exchange(store: Store) -> None:
    """From the second time on: at the first the server may not know the scripts."""
    fence = first_in(store).fence
    twice = Batch(store)
    twice.release("nobody.n", "w", 1)
    twice.admit("nobody.n", LINKS, "nobody", delivery="0")
    twice.exchange()
    client: Any = store.client
    a = client.info("stats")["total_reads_processed"]
    b = client.info("stats")["total_reads_processed"]
    outcomes = a_turn(store, fence)
    c = client.info("stats")["total_reads_processed"]
    assert c - b == (b - a) + 1
    end(store, outcomes)


def test_a_server_that_has_forgotten_the_scripts_is_told_them(store: Store) -> None:
    fence = first_in(store).fence
    client: Any = store.client
    client.script_flush()
    end(store, a_turn(store, fence))


def test_a_connection_that_breaks_is_opened_again(redis_server: RedisServer, store: Store) -> None:
    fence = first_in(store).fence
    with cutting_proxy(redis_server.socket) as wire:
        behind = Store.from_url(f"unix://{wire.path}", store.namespace)
        assert isinstance(behind.release("nobody.n", "w", 1), Stale)
        wire.cut_all()
        end(store, a_turn(behind, fence))


def test_a_store_that_is_away_is_asked_once_and_every_call_says_so(store: Store) -> None:
    nowhere = Store.from_url("unix:///nonexistent/redis.sock", store.namespace)
    outcomes = a_turn(nowhere, 1)
    assert len(outcomes) == 4
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)


@pytest.mark.leaves_traces
def test_what_fails_by_itself_fails_alone(store: Store) -> None:
    fence = first_in(store).fence
    client: Any = store.client
    client.set(f"{store.prefix}hold:odd", "not a set")
    together = Batch(store)
    together.admit("odd.n", (ConcurrencyLink(key="odd", limit=1),), "w", delivery="2")
    together.release("first.n", "w", fence)
    odd, released = together.exchange()
    assert isinstance(odd, Exception)
    assert isinstance(released, Released)
