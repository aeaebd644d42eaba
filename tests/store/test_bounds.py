"""No script works without bound, whatever it is given: weights, sizes, tickets of one task, a dead worker's messages.

Work is counted in the commands that Redis has carried out for one call, which is the same on every machine; what only
time shows, matching text, has a bound that no machine should come near.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Parked
from tests.store.actors import (
    ANY,
    Clock,
    Worker,
    c,
    holders,
    line_at,
    names_in,
    r,
    raw_client,
    ready_in,
    settle,
    unacked_by,
    used,
    weights,
    wind_up,
)
from tests.store.model_message import Message
from tests.store.post import QUEUE, Post, list_of

MOST = 2000
"""Commands in one script. The budget is 1000 units; a part that is done whole may overdraw it."""


def commands(store: Store) -> int:
    """All that the server has carried out so far, by a script or not."""
    stats = raw_client(store).info("commandstats")
    return sum(int(one["calls"]) for name, one in stats.items() if name != "cmdstat_info")


@contextmanager
def bounded(store: Store, most: int = MOST) -> Iterator[None]:
    """One call, in few commands."""
    before = commands(store)
    yield
    spent = commands(store) - before
    assert spent <= most, f"{spent} commands"


def sweep_bounded(store: Store, worker: str = "") -> int:
    """Sweeps until nothing is left to do, each time within the bound; how often that was."""
    for n in range(1, 10_000):
        with bounded(store):
            swept = store.sweep(worker)
        if not swept.after.more:
            return n
    raise AssertionError("there is always more")


def heavy(n: int, weight: int) -> tuple[Any, ...]:
    return tuple(c(f"k{i:02}", 10**9, weight=weight) for i in range(n))


# -- weights ---------------------------------------------------------------------------------------------------


def test_an_admission_costs_the_same_whatever_its_weight(store: Store, clock: Clock) -> None:
    w, cost = Worker(store), list[int]()
    for weight in (2, 10_000):
        w.deliver("warm.n", *heavy(15, weight))
        w.finish("warm.n")
        before = commands(store)
        w.deliver("t.n", *heavy(15, weight))
        w.finish("t.n")
        cost.append(commands(store) - before)
    assert cost[0] == cost[1]
    wind_up(clock, w)


def test_a_line_of_heavy_chains_is_resumed_in_pieces(store: Store, clock: Clock) -> None:
    """64 waiters with 15 links of weight 10 000 took 17.8 s and 702 MB in one script."""
    w = Worker(store)
    store.pause("first")
    for i in range(64):
        outcome = w.deliver(f"t{i}.n", c("first", 10**9), *heavy(14, 10_000), message=b"m")
        assert isinstance(outcome, Parked)
    with bounded(store):
        store.resume("first")
    sweep_bounded(store)
    assert ready_in(store) == [f"t{i}.n" for i in range(64)]
    assert used(store, "k00") == 64 * 10_000
    assert store.status("k00").running == 64 * 10_000
    assert audit(store) == []
    wind_up(clock, w)


def test_a_weight_counts_for_those_who_weigh_less(store: Store, clock: Clock) -> None:
    w = Worker(store)
    assert isinstance(w.deliver("heavy.n", c("k", 5, weight=4)), Admitted)
    assert isinstance(w.deliver("light.n", c("k", 5)), Admitted)
    assert isinstance(w.deliver("more.n", c("k", 5)), Parked)
    w.finish("heavy.n")
    assert weights(store, "k") == {"light.n": 1, "more.n": 1}
    assert "extra" not in raw_client(store).hgetall(f"{store.prefix}note:k")
    wind_up(clock, w)


# -- sizes -----------------------------------------------------------------------------------------------------


def test_many_sizes_on_one_key_stand_in_few_lines(store: Store, clock: Clock) -> None:
    """Each is admitted by its own size all the same, and none overtakes one that came before it in the mixed line."""
    w, n = Worker(store), 200
    w.deliver("holds.n", c("k", 1))
    store.pause("k")
    for i in range(n):
        with bounded(store):
            assert isinstance(w.deliver(f"t{i:03}.n", c("k", 2 + i % 40)), Parked)
    assert len(names_in(store, "line:*:k")) == 17
    assert len(line_at(store, "k")) == n
    assert audit(store) == []
    with bounded(store):
        store.resume("k")
    sweep_bounded(store)
    sizes = {f"t{i:03}.n": 2 + i % 40 for i in range(n)}
    started = list[str]()
    while names_in(store, "line:*") or w.running:
        started += w.pick_up(ANY, count=100)
        assert w.running, f"nobody runs, and {line_at(store, 'k')} wait"
        assert len(w.running) <= max(sizes.get(ticket, 1) for ticket in w.running)
        first = min(w.running)
        with bounded(store):
            w.finish(first)
        sweep_bounded(store)
    assert sorted(started) == sorted(sizes)
    wind_up(clock, w)


# -- tickets of one task -----------------------------------------------------------------------------------------


def test_a_task_with_thousands_of_tickets_is_cancelled_in_pieces(store: Store, clock: Clock) -> None:
    """The script failed when it had ended all of them, since it could not return them."""
    w, n = Worker(store), 3000
    w.deliver("holds.n", c("k", 1))
    for i in range(n):
        w.deliver(f"many.n{i}", c("k", 1), message=b"m")
    ended, cursor, calls = set[str](), 0, 0
    while not calls or cursor:
        with bounded(store):
            outcome = store.cancel("many", cursor=cursor)
        ended |= {one.ticket for one in outcome.ended}
        settle(store, outcome.ended)
        cursor, calls = outcome.cursor, calls + 1
    assert len(ended) == n
    assert line_at(store, "k") == []
    with bounded(store):
        assert not store.explain("many").tickets
    w.finish("holds.n")
    wind_up(clock, w)


def test_an_explanation_names_some_of_thousands(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("holds.n", c("k", 1))
    for i in range(500):
        w.deliver(f"many.n{i}", c("k", 1), message=b"m")
    with bounded(store):
        told = store.explain("many")
    assert 0 < len(told.tickets) < 500
    assert told.more
    assert "and more tickets" in str(told)
    w.finish("holds.n")
    wind_up(clock, w)


def test_cancelled_ids_are_remembered_up_to_a_bound(
    store: Store, clock: Clock, few_remembered: Callable[[], Store]
) -> None:
    small = few_remembered()
    for i in range(8):
        small.cancel(f"unknown{i}")
        clock.pass_(1)
    client = raw_client(store)
    assert client.zrange(f"{store.prefix}remembered", 0, -1) == [f"unknown{i}".encode() for i in range(3, 8)]
    assert names_in(store, "cancelled:*") == [f"cancelled:unknown{i}" for i in range(3, 8)]


@pytest.fixture
def few_remembered(store: Store) -> Callable[[], Store]:
    from tests.store.mutations import Mutation  # noqa: PLC0415  (a change of one number)

    change = Mutation("few", ("cancel",), (("MOST_REMEMBERED = 50000", "MOST_REMEMBERED = 5"),), "")
    return lambda: Store(store.client, store.namespace, store.policy, store._clock, change.scripts())


# -- a dead worker ---------------------------------------------------------------------------------------------


def test_what_a_dead_worker_had_fetched_goes_back_in_pages_and_in_order(store: Store, clock: Clock) -> None:
    """Each call read and sorted all that was left: 1.3 s a call at 100 000."""
    n = 2000
    post, client = Post(store), raw_client(store)
    store.beat("dies")
    for i in range(0, n, 100):
        client.lpush(QUEUE, *(f"message {j}".encode() for j in range(i, i + 100)))
        assert len(post.fetch("dies", 100) or ()) == 100
    assert len(unacked_by(store, "dies")) == n
    dead: tuple[str, ...] = ()
    while not dead:
        clock.pass_(store.policy.lease / 4)
        store.beat("lives")
        with bounded(store):
            dead = store.sweep("lives").dead
    calls = sweep_bounded(store, "lives")
    assert 2 <= calls < n / 50
    assert client.lrange(QUEUE, 0, -1)[::-1] == [f"message {i}".encode() for i in range(n)]
    assert unacked_by(store, "dies") == {}
    client.delete(QUEUE)


# -- reads -----------------------------------------------------------------------------------------------------


def test_reads_of_many_keys_and_ranks_are_bounded(store: Store, clock: Clock) -> None:
    w, keys = Worker(store), [f"k{i:02}" for i in range(50)]
    for key in keys:
        w.deliver(f"holds-{key}.n", c(key, 1))
        for rank in range(0, 256, 16):
            w.deliver(f"{key}-{rank}.n", c(key, 1), message=b"m", rank=rank)
    before, calls = commands(store), 0
    for status in store.statuses(keys, 20):
        calls += 1
        assert (status.waiting, len(status.waiters)) == (16, 16)
        assert status.oldest is not None
    assert calls == 50
    assert (commands(store) - before) / calls < 200
    assert audit(store) == []
    wind_up(clock, w)


# -- text ------------------------------------------------------------------------------------------------------

LONGEST = 0.25
"""Seconds of the server for what took 23; a linear search takes a few milliseconds."""

HEADS = (
    '"limits": {"v": 1, "ticket": "x.1", "links": [{"kind": "concurrency", "key": "k", ',
    '"limits": {"v": 2, "ticket": "x.1", "links": [[[[[[[[',
    '"at": 0, "held": [[[[[[[[[[',
    '"at": 0, "held": [], "fence": 1',
    '"headers": {"limits": {"v": 2, ',
    '"routing_key": "aaaaaaaaaa',
)


def seconds_of_scripts(store: Store) -> float:
    stats = raw_client(store).info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("usec", 0)) for name in ("eval", "evalsha")) / 1e6


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("where", ["header", "property"])
def test_text_that_looks_like_a_header_does_not_stop_the_server(
    store: Store, clock: Clock, head: str, where: str
) -> None:
    w, client = Worker(store, queue=QUEUE), raw_client(store)
    w.deliver("holds.n", c("k", 1))
    w.deliver("waits.n", c("k", 1), message=b"m")
    poison = head * (571_000 // len(head))
    message = Message("t.n", (c("k", 1),), 0, False, QUEUE, None, None)
    at = b'"headers": {' if where == "header" else b'"properties": {'
    text = message.body.replace(at, at + b'"odd": "' + poison.encode() + b'", ')
    before = seconds_of_scripts(store)
    client.lpush(list_of(0), text)
    for fetched in w.post.fetch("w1", 1, flags="rs") or ():
        w.fields["t.n"] = fetched.field
        assert isinstance(w.deliver("t.n", c("k", 1), message=fetched.text, cut=0), Parked)
    w.finish("holds.n")
    w.pick_up(ANY)
    w.finish("waits.n")
    w.pick_up(ANY)
    assert holders(store, "k") == {"t.n"}
    w.finish("t.n")
    assert seconds_of_scripts(store) - before < LONGEST
    wind_up(clock, w)


def test_a_rate_key_with_many_rates_is_one_line_in_the_end(store: Store, clock: Clock) -> None:
    w = Worker(store)
    store.pause("rate")
    for i in range(60):
        assert isinstance(w.deliver(f"t{i:02}.n", r("rate", f"{i + 1}/s")), Parked)
    assert len(names_in(store, "line:*:rate")) == 17
    store.resume("rate")
    assert wind_up(clock, w) == [f"t{i:02}.n" for i in range(60)]
