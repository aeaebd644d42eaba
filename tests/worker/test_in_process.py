"""Pools without processes: a task that is terminated before its body has begun ends as revoked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer
from tests.waiting import DEADLINE
from tests.worker.harness import Scene, Sent, Worker


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def terminate(scene: Scene, worker: Worker, sent: Sent) -> None:
    """As a worker is told; the store is not, which may be away. Returns when the worker has heard of it."""
    scene.app.control.broadcast("revoke", arguments={"task_id": sent.id, "terminate": True, "signal": "SIGTERM"})
    worker.wait_for_log(f"Terminating {sent.id}")


@pytest.mark.own_broker
@pytest.mark.parametrize("task", ["late", "free", "free.late"])
def test_one_that_is_terminated_while_it_waits_for_a_thread(scene: Scene, broker: RedisServer, task: str) -> None:
    """Celery would drop it, without a result, and never acknowledge it."""
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}")
    worker = scene.start("threads", concurrency=1)
    first = scene.send("free", "first")
    scene.wait_started("first")
    second = scene.send(task, "second")
    worker.wait_for_log(f"[{second.id}] received")
    terminate(scene, worker, second)
    scene.stage.open_all()
    first.get()
    second.wait("REVOKED")
    scene.send(task, "third").get()
    assert list(scene.stage.names()) == ["first", "third"]
    scene.wait_quiet()


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
@pytest.mark.parametrize("task", ["early", "late"])
def test_one_that_is_terminated_while_it_is_admitted(store: RedisServer, scene: Scene, task: str, pool: str) -> None:
    """It has a slot when its thread, or its greenlet, is told that it is not to run."""
    scene.configure(limits_store_url=store.url, limits_store_timeout=3 * DEADLINE)
    worker = scene.start(pool, concurrency=2)
    store.pause()
    first = scene.send(task, "first")
    worker.wait_for_log(f"[{first.id}] received")
    terminate(scene, worker, first)
    store.resume()
    first.wait("REVOKED")
    scene.stage.open_all()
    scene.send(task, "second").get()
    assert list(scene.stage.names()) == ["second"]
    scene.wait_quiet()
