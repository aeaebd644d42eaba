"""Workers on `limits+redis://` and tasks with an eta: they wait in the store, cost a worker nothing, and survive it."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import psutil
import pytest
from celery import Celery, chord, group, states

from celery_limits.store.later import count_delayed
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import Scene, Worker

pytestmark = pytest.mark.own_broker

LEASE = 4.0
MEBIBYTE = 2**20


@pytest.fixture(autouse=True)
def on_our_transport(scene: Scene, broker: RedisServer) -> None:
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}", limits_lease=LEASE)


def delayed(scene: Scene) -> int:
    return count_delayed(scene.limits.store)


def wait_delayed(scene: Scene, count: int, within: float = 30.0) -> None:
    wait_until(lambda: delayed(scene) == count, f"{count} are delayed, not {delayed(scene)}", within=within)


def scheduled(scene: Scene, worker: Worker) -> list[Any]:
    return list(scene.app.control.inspect([worker.name], timeout=5.0, limit=1).scheduled()[worker.name])


def memory(worker: Worker) -> float:
    return psutil.Process(worker.pid).memory_info().rss / MEBIBYTE


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
@pytest.mark.parametrize("task", ["free", "early", "late"])
def test_starts_when_it_is_due(scene: Scene, pool: str, task: str) -> None:
    worker = scene.start(pool, concurrency=1)
    scene.stage.open_all()
    begun = time.monotonic()
    sent = scene.send(task, "first", countdown=2.0)
    assert delayed(scene) == 1
    assert scheduled(scene, worker) == []
    sent.get()
    late = scene.stage.starts("first")[0].at - begun - 2.0
    assert 0 <= late < 1.0, late
    assert len(scene.stage.starts("first")) == 1


def test_on_time(scene: Scene) -> None:
    """The best of some: a machine that has other things to do may be late with the others."""
    scene.start("threads", concurrency=4)
    scene.stage.open_all()
    due = []
    for n in range(9):
        begun = time.monotonic()
        scene.send("free", f"b{n}", countdown=2.0 + n / 5)
        due.append((begun + 2.0 + n / 5, time.monotonic() + 2.0 + n / 5))
    starts = [scene.wait_started(f"b{n}").at for n in range(9)]
    assert all(start >= earliest for start, (earliest, _) in zip(starts, due, strict=True))
    assert min(start - latest for start, (_, latest) in zip(starts, due, strict=True)) < 0.05


@pytest.mark.parametrize("task", ["free", "early"])
def test_a_retry_with_a_countdown_waits_in_the_store(scene: Scene, task: str) -> None:
    scene.start("prefork", concurrency=1)
    scene.stage.open_all()
    sent = scene.send(task, "first", "retry-much-later")
    wait_delayed(scene, 1)
    sent.wait(states.RETRY)
    sent.get()
    assert [entry.more["retries"] for entry in scene.stage.starts("first")] == [0, 1]


@pytest.mark.parametrize("task", ["free", "early"])
def test_revoked_without_a_worker(scene: Scene, task: str) -> None:
    worker = scene.start("prefork", concurrency=1)
    sent = scene.send(task, "first", countdown=60)
    worker.stop()
    scene.app.control.revoke(sent.id)
    sent.wait(states.REVOKED)
    assert delayed(scene) == 0
    scene.forget_revoked(sent.id)


def test_revoked_with_a_worker(scene: Scene) -> None:
    scene.start("prefork", concurrency=1)
    sent = scene.send("free", "first", countdown=60)
    scene.app.control.revoke(sent.id)
    sent.wait(states.REVOKED)
    ended = {"revoked": "first"}
    wait_until(lambda: {entry.what: entry.name for entry in scene.stage.entries()} == ended, "its handler is called")


@pytest.mark.parametrize("task", ["free", "early"])
def test_one_that_expires_before_it_is_due(scene: Scene, task: str) -> None:
    scene.start("prefork", concurrency=1)
    sent = scene.send(task, "first", countdown=2.5, expires=1.5)
    assert delayed(scene) == 1
    sent.wait(states.REVOKED)
    assert scene.stage.starts("first") == []


def test_a_canvas_with_countdowns(scene: Scene) -> None:
    scene.start("prefork", concurrency=2)
    tasks = scene.app.tasks
    members = [tasks["plain"].si(key=scene.key, name=f"m{n}").set(countdown=1.5, queue=scene.queue) for n in range(3)]
    body = tasks["plain"].si(key=scene.key, name="body").set(countdown=1.5, queue=scene.queue)
    result = chord(group(members), body).apply_async()
    wait_until(lambda: scene.app.AsyncResult(result.id).state == states.SUCCESS, "the chord ends")
    assert [entry.name for entry in scene.stage.starts()][-1] == "body"


def test_a_plain_worker_gets_what_is_due(scene: Scene, broker: RedisServer) -> None:
    """Ours only sweeps: it consumes another queue."""
    queue, scene.queue = scene.queue, f"{scene.key}-sweeper"
    scene.start("threads", concurrency=1)
    scene.queue = queue
    scene.start("prefork", concurrency=1, plain=True, broker_url=f"redis+socket://{broker.socket}")
    sent = scene.send("plain", "first", countdown=2.0)
    assert delayed(scene) == 1
    sent.get()
    assert len(scene.stage.starts("first")) == 1


def publish_many(scene: Scene, count: int, eta: datetime, broker_url: str = "") -> None:
    """Through one producer, as a program that has many to publish."""
    app = scene.app
    if broker_url:
        app = Celery("plain", broker=broker_url, set_as_current=False)
    with app.producer_or_acquire() as producer:
        for n in range(count):
            kwargs = {"key": scene.key, "name": f"n{n}"}
            app.send_task("plain", kwargs=kwargs, eta=eta, queue=scene.queue, task_id=f"n{n}", producer=producer)


def costs_nothing(scene: Scene, count: int) -> None:
    worker = scene.start("prefork", concurrency=1)
    scene.send("plain", "before").get()
    before = memory(worker)
    publish_many(scene, count, datetime.now(timezone.utc) + timedelta(hours=1))
    assert delayed(scene) == count
    began = time.monotonic()
    scene.send("plain", "now")
    assert scene.wait_started("now").at - began < 1.0
    assert memory(worker) - before < 10
    assert scheduled(scene, worker) == []
    purge_by_hand(scene)


def purge_by_hand(scene: Scene) -> None:
    """A revoke of each would be told to the result backend, which takes its time."""
    store = scene.limits.store
    client: Any = store.client
    client.delete(f"{store.prefix}later", *client.scan_iter(match=f"{store.prefix}task:n*", count=10_000))


def test_many_etas_cost_a_worker_no_memory(scene: Scene) -> None:
    costs_nothing(scene, 20_000)


@pytest.mark.long
@pytest.mark.timeout(600)  # a busy machine publishes a thousand in a second
def test_very_many_etas_cost_a_worker_no_memory(scene: Scene) -> None:
    costs_nothing(scene, 100_000)


def test_what_plain_producers_published_goes_into_the_store(scene: Scene, broker: RedisServer) -> None:
    """And what ours published before there was any worker."""
    eta = datetime.now(timezone.utc) + timedelta(hours=1)
    publish_many(scene, 300, eta, f"redis+socket://{broker.socket}")
    early = scene.send("early", "first", countdown=3600)
    assert delayed(scene) == 0
    worker = scene.start("prefork", concurrency=1)
    wait_delayed(scene, 301)
    assert scheduled(scene, worker) == []
    scene.limits.cancel(early.id)
    scene.forget_revoked(early.id)
    purge_by_hand(scene)


@pytest.mark.parametrize("count", [300])
def test_all_workers_are_killed_meanwhile(scene: Scene, count: int) -> None:
    """None is lost, none runs twice."""
    workers = [scene.start("prefork", concurrency=2) for _ in range(2)]
    publish_many(scene, count, datetime.now(timezone.utc) + timedelta(seconds=6))
    assert delayed(scene) == count
    for worker in workers:
        worker.kill()
    scene.start("prefork", concurrency=2)
    wait_until(lambda: len(scene.stage.starts()) >= count, f"all {count} have run", within=60)
    wait_delayed(scene, 0)
    names = [entry.name for entry in scene.stage.starts()]
    assert sorted(names) == sorted({*names})
    assert len(names) == count
