"""Pools without processes: a task that is terminated before its body has begun ends as revoked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer
from tests.waiting import DEADLINE, wait_until
from tests.worker.harness import Scene, Sent, Worker


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def terminate(scene: Scene, worker: Worker, sent: Sent, times: int = 1) -> None:
    """As a worker is told; the store is not, which may be away. Returns when the worker has heard of it. A green one is
    ready a moment before it listens."""
    wait_until(lambda: scene.app.control.ping(destination=[worker.name], timeout=1), "the worker listens")
    scene.app.control.broadcast("revoke", arguments={"task_id": sent.id, "terminate": True, "signal": "SIGTERM"})
    worker.wait_for_log(f"Terminating {sent.id}", times)


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
    terminate(scene, worker, second, times=2)
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


def test_one_whose_end_could_not_be_stored_comes_again(store: RedisServer, scene: Scene, broker: RedisServer) -> None:
    """It was admitted, and is to be revoked, and nobody can be told: it must neither hold its slot nor be kept."""
    with RedisServer() as results:
        scene.configure(
            broker_url=f"limits+redis+socket://{broker.socket}",
            limits_store_url=store.url,
            limits_store_timeout=3 * DEADLINE,
            result_backend=f"redis+socket://{results.socket}",
            result_backend_transport_options={"retry_policy": {"max_retries": 0}},
        )
        worker = scene.start("threads", concurrency=1)
        store.pause()
        first = scene.send("late", "first")
        worker.wait_for_log(f"[{first.id}] received")
        terminate(scene, worker, first)
        results.stop()
        store.resume()
        worker.wait_for_log(f"[{first.id}] received", times=2)
        results.start()
        first.wait("REVOKED", within=3 * DEADLINE)
        scene.stage.open_all()
        scene.send("late", "second").get()
        assert list(scene.stage.names()) == ["second"]
