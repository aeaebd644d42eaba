"""Pools without processes: a task that is terminated before its body has begun ends as revoked."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.concurrency.thread import TaskPool
from celery.worker.request import Request

from celery_limits.patches import apply
from celery_limits.patches import request as patched_request
from tests.redis_server import RedisServer
from tests.waiting import DEADLINE, wait_until
from tests.worker.harness import Scene, Sent, Worker


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def terminate(scene: Scene, worker: Worker, sent: Sent) -> None:
    """As a worker is told; the store is not, which may be away. Returns when the worker has heard of it. A green one is
    ready a moment before it listens."""
    wait_until(lambda: scene.app.control.ping(destination=[worker.name], timeout=1), "the worker listens")
    scene.app.control.broadcast("revoke", arguments={"task_id": sent.id, "terminate": True, "signal": "SIGTERM"})
    worker.wait_for_log(f"Terminating {sent.id}")


def wait_asked(scene: Scene, worker: Worker) -> None:
    """Until a thread waits for the store's answer: it has seen that its task is not revoked."""
    inspect = scene.app.control.inspect(destination=[worker.name], timeout=2)
    wait_until(lambda: (inspect.limits() or {}).get(worker.name, {}).get("running"), "the store is asked")


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
    wait_asked(scene, worker)
    terminate(scene, worker, first)
    store.resume()
    first.wait("REVOKED")
    scene.stage.open_all()
    scene.send(task, "second").get()
    assert list(scene.stage.names()) == ["second"]
    scene.wait_quiet()


@pytest.mark.parametrize("how", ["terminated", "expired"])
def test_one_whose_end_could_not_be_stored_comes_again(
    store: RedisServer, scene: Scene, broker: RedisServer, how: str
) -> None:
    """It is admitted and to be revoked, or has expired, and nobody can be told: it holds no slot, and is not kept."""
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
        expires = datetime.now(timezone.utc) + timedelta(seconds=5 if how == "expired" else 600)
        first = scene.send("late", "first", expires=expires)
        wait_asked(scene, worker)
        if how == "terminated":
            terminate(scene, worker, first)
        results.stop()
        wait_until(lambda: how == "terminated" or datetime.now(timezone.utc) > expires, "it has expired")
        store.resume()
        worker.wait_for_log(f"[{first.id}] received", times=2)
        results.start()
        first.wait("REVOKED", within=3 * DEADLINE)
        scene.stage.open_all()
        scene.send("late", "second").get()
        assert list(scene.stage.names()) == ["second"]


def test_who_is_told_again_while_it_is_accepted_gets_the_pools_own_answer() -> None:
    """Commands are read in another thread than the one that accepts: what keeps a body from beginning would end it."""
    apply(patched_request)
    pool = TaskPool(1)
    request: Any = Request.__new__(Request)
    request.time_start = request._terminate_on_ack = request._apply_result = None
    request.terminate(pool, "TERM")
    assert request._terminate_on_ack[1] == signal.SIGTERM
    request.time_start, request.worker_pid = 1.0, os.getpid()
    with pytest.raises(NotImplementedError):
        request.terminate(pool, "TERM")
    pool.stop()
