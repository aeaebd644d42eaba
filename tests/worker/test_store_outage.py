"""A store that is away, apart from the broker: limited tasks wait for it, others go on, and nothing runs over.

In each test the store is a Redis of its own. One that was stopped refuses connections, a paused one keeps silent.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer
from tests.worker.harness import Scene

AWAY = "Limited tasks wait until it is back"
BACK = "the limit store is reachable again"
NOT_TOLD = "is not released yet"


@pytest.fixture
def store() -> Iterator[RedisServer]:
    """It keeps what it was told when it is stopped, as a store should."""
    with RedisServer(appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def apart(store: RedisServer, scene: Scene) -> Scene:
    """A scene whose limits are in that store, and whose workers end before it does."""
    scene.configure(limits_store_url=store.url, limits_store_timeout=0.5)
    return scene


@pytest.fixture(params=["stopped", "paused"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def go_away(store: RedisServer, how: str) -> None:
    if how == "stopped":
        store.stop()
    else:
        store.pause()


def come_back(store: RedisServer, how: str) -> None:
    if how == "stopped":
        store.start()
    else:
        store.resume()


def test_limited_tasks_wait_and_others_go_on(store: RedisServer, apart: Scene, how: str) -> None:
    """More of them than the worker may prefetch; the holder holds on all the while."""
    worker = apart.start("prefork")
    holder = apart.send("early", "holder")
    apart.wait_started("holder")
    go_away(store, how)
    worker.wait_for_log(AWAY)
    waiting = [apart.send("early.quick", f"task{number}") for number in range(18)]
    assert apart.send("plain", "free").get() == "free"
    assert list(apart.stage.names()) == ["holder", "free"]
    come_back(store, how)
    worker.wait_for_log(BACK)
    apart.wait_parked(18)
    assert list(apart.stage.names()) == ["holder", "free"]
    apart.stage.open_all()
    for sent in (holder, *waiting):
        sent.get()
    assert len(apart.stage.starts()) == 20


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_body_ends_meanwhile(store: RedisServer, apart: Scene, how: str, pool: str) -> None:
    """Its slot is given back when the store can be told, long before the next beat would be due."""
    worker = apart.start(pool)
    holder = apart.send("early", "holder")
    apart.wait_started("holder")
    waiting = []
    for number in range(3):
        waiting.append(apart.send("early.quick", f"task{number}"))
        apart.wait_parked(number + 1)
    go_away(store, how)
    worker.wait_for_log(AWAY)
    apart.stage.open_all()
    holder.get()
    worker.wait_for_log(NOT_TOLD)
    come_back(store, how)
    for sent in waiting:
        sent.get()
    assert list(apart.stage.names()) == ["holder", "task0", "task1", "task2"]


def test_it_is_away_when_the_worker_starts(store: RedisServer, apart: Scene, how: str) -> None:
    go_away(store, how)
    worker = apart.start("prefork")
    waiting = [apart.send("early.quick", f"task{number}") for number in range(3)]
    assert apart.send("plain", "free").get() == "free"
    assert list(apart.stage.names()) == ["free"]
    come_back(store, how)
    worker.wait_for_log(BACK)
    for sent in waiting:
        sent.get()
    assert len(apart.stage.starts()) == 4


def test_a_body_puts_its_message_back_meanwhile(store: RedisServer, apart: Scene, how: str) -> None:
    """That is made up for too: the task keeps its place, and runs again before those behind it."""
    worker = apart.start("prefork")
    first = apart.send("late", "first", "requeue")
    apart.wait_started("first")
    second = apart.send("early.quick", "second")
    apart.wait_parked(1)
    go_away(store, how)
    worker.wait_for_log(AWAY)
    apart.stage.open_all()
    apart.wait_ended("first")
    worker.wait_for_log(NOT_TOLD)
    come_back(store, how)
    for sent in (first, second):
        sent.get()
    assert sorted(apart.stage.names()) == ["first", "first", "second"]
