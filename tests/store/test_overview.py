"""What the store tells of all its keys: which there are, of what kind and size, who waits longest, how fast it goes."""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from celery_limits.store.keys import limit_key, split_line
from celery_limits.store.status import rate_text
from tests.store.actors import ANY, Clock, Worker, c, f, live_on, r, raw_client, wind_up


def test_keys_are_those_in_use_steered_or_passed_of_late(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("a.n", c("held:with:colons", 1))
    w.deliver("b.n", c("held:with:colons", 1))
    w.deliver("c.n", r("api", "1/m"))
    w.deliver("d.n", r("queue:of:rate", "0/s"))
    w.deliver("e.n", f("float", 0))
    store.pause("paused")
    store.resize("resized", 3)
    assert store.keys() == ["api", "float", "held:with:colons", "paused", "queue:of:rate", "resized"]
    for ticket in ("d", "e"):
        store.settle(store.cancel(ticket).ended)
    store.resume("paused")
    store.reset("resized")
    wind_up(clock, w)


def test_many_keys_are_told_in_their_order_and_in_batches(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for i in range(123):
        w.deliver(f"t{i}.n", c(f"k{i}", 2))
    keys = [*store.keys(), "nobody"]
    told = list(store.statuses(keys))
    assert [status.key for status in told] == keys
    assert {(status.running, status.known) for status in told[:-1]} == {(1, True)}
    assert (told[-1].running, told[-1].known, told[-1].kind, told[-1].limit) == (0, False, None, None)
    assert all(status.holders == status.waiters == () for status in told), "no page was asked for"
    assert list(store.statuses([])) == []
    wind_up(clock, w)


def test_kind_and_limit_are_as_those_at_the_key_declare(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("a.n", c("heavy", 7, weight=3))
    w.deliver("b.n", c("gold", 3), r("api", "100/m", burst=20))
    w.deliver("c.n", f("float", 1))
    w.deliver("d.n", f("float", 1))
    told = {status.key: (status.kind, status.limit, status.burst) for status in store.statuses(store.keys())}
    assert told == {
        "heavy": ("concurrency", 7, None),
        "gold": ("concurrency", 3, None),
        "float": ("floating", 1, None),
        "api": ("rate", None, None),  # it has passed, and nobody is there to tell
    }
    store.resize("heavy", 1)
    store.resize("api", "6/m", burst=4)
    (token,) = raw_client(store).hmget(f"{store.prefix}note:float", "f.token")
    store.refreshed("float", w.name, int(token), 5)
    told = {status.key: (status.kind, status.limit, status.burst) for status in store.statuses(store.keys())}
    assert told["heavy"] == ("concurrency", 1, None)
    assert told["api"] == ("rate", "6/m", 4)
    assert told["float"] == ("floating", 5, None)
    store.reset("heavy")
    store.reset("api")
    wind_up(clock, w)


def test_the_oldest_wait_is_found_behind_higher_priorities_and_in_every_class(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("runs.n", c("k", 1))
    assert store.status("k").oldest_wait is None
    w.deliver("oldest.n", c("k", 1), rank=200)
    clock.pass_(5)
    w.deliver("b.n", c("k", 1), rank=3)
    w.deliver("c.n", c("k", 0), rank=0)
    clock.pass_(2)
    w.deliver("d.n", c("k", 1), rank=0)
    assert store.status("k").oldest_wait == pytest.approx(7, abs=0.001)
    store.settle(store.cancel("oldest").ended)
    assert store.status("k").oldest_wait == pytest.approx(2, abs=0.001)
    store.settle(store.cancel("c").ended)
    wind_up(clock, w)


def test_rate_now_is_the_pace_of_the_line_and_falls_when_it_stands_still(store: Store, clock: Clock) -> None:
    w = Worker(store)
    for i in range(6):
        w.deliver(f"t{i}.n", c("k", 1))
    assert store.status("k").rate_now is None, "nobody has left the line yet"
    for i in range(3):
        live_on(clock, 4, w)
        w.finish(f"t{i}.n")
        w.pick_up(ANY)
    assert store.status("k").rate_now == pytest.approx(1 / 4, rel=0.01)
    live_on(clock, 36, w)
    assert store.status("k").rate_now == pytest.approx(1 / 36, rel=0.01)
    wind_up(clock, w)


def test_tokens_are_what_could_pass_at_once(store: Store, clock: Clock) -> None:
    w = Worker(store)
    link = r("api", "1/s", burst=5)
    store.resize("api", "1/s", burst=5)  # so that the key tells its rate with nobody there
    seen = []
    for i in range(3):
        w.deliver(f"t{i}.n", link)
        seen.append(store.status("api").tokens)
    assert seen == [4, 3, 2]
    clock.pass_(2)
    assert store.status("api").tokens == 4
    store.resize("api", "0/s")
    assert (store.status("api").tokens, store.status("api").limit) == (0, "0/s")
    store.reset("api")
    wind_up(clock, w)


def test_messages_of_those_that_wait(store: Store, clock: Clock) -> None:
    w = Worker(store)
    w.deliver("runs.n", c("k", 1))
    w.deliver("waits.n", c("k", 1), message=b"mine")
    assert store.messages_of(["runs.n", "waits.n", "unknown.n"]) == {"waits.n": b"mine"}
    assert store.messages_of([]) == {}
    wind_up(clock, w)


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (600_000.0, "100/m"),
        (1e6, "1/s"),
        (500_000.0, "2/s"),
        (720e6, "5/h"),
        (2e6, "30/m"),
        (0.0, "0/s"),
        (86.4e6, "1000/d"),
        (120.96e6, "5000/w"),
        (7e9, "0.0001429/s"),
    ],
)
def test_a_rate_reads_as_it_is_declared(interval: float, text: str) -> None:
    assert rate_text(interval) == text


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("hold:a:b", "a:b"),
        ("note:a", "a"),
        ("line:c:3:a:b", "a:b"),
        ("line:f:10:x", "x"),
        ("line:r:600000.0:20:api:x", "api:x"),
        ("task:a", None),
        ("leases", None),
    ],
)
def test_the_key_of_a_limit_is_in_the_names_of_its_redis_keys(name: str, key: str | None) -> None:
    assert limit_key(name) == key


def test_a_line_is_split_into_class_and_key() -> None:
    assert split_line("r:600000.0:20:api:x") == ("r:600000.0:20", "api:x")
    assert split_line("c:3:a:b") == ("c:3", "a:b")
