"""The broker's connection breaks, or the one Redis that is broker and store restarts, while bodies run and others wait.

Whatever the worker had been given holds its slots exactly once: nothing is lost, nothing is leaked, nobody is over.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.redis_server import RedisServer
from tests.store.cutting_proxy import CuttingProxy, cutting_proxy
from tests.waiting import wait_until
from tests.worker.harness import Scene, Worker
from tests.worker.lines import Line
from tests.worker.stage import is_alive, unread

BOTH = ("prefork", "threads")
AGAIN = 40.0
"""Seconds in which a worker is connected again and goes on."""


@pytest.fixture(params=["early", "late"])
def acks(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wire(broker: RedisServer) -> Iterator[CuttingProxy]:
    """What the worker of the test reaches its broker through. The test itself, and the store, are not affected."""
    with cutting_proxy(broker.socket) as proxy:
        yield proxy


def start(scene: Scene, wire: CuttingProxy, pool: str, *options: str, **conf: Any) -> Worker:
    through = f"redis+socket://{wire.path}"
    worker = scene.start(pool, *options, broker_url=through, **conf)
    worker.wait_for_log("Connected to")
    return worker


def cut(wire: CuttingProxy, worker: Worker) -> None:
    """Returns when the worker consumes again."""
    before = worker.log.count("Connected to")
    wire.cut_all()
    worker.wait_for_log("Connected to", times=before + 1)


def apart(scene: Scene, broker: RedisServer, **conf: Any) -> None:
    scene.configure(limits_store_url=broker.url, **conf)


def has_spare(scene: Scene, task_id: str) -> bool:
    return any(found == task_id for found, _ in scene.limits.store.messages())


# -- the connection breaks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", BOTH)
def test_while_a_body_runs(scene: Scene, broker: RedisServer, wire: CuttingProxy, pool: str, acks: str) -> None:
    apart(scene, broker)
    worker = start(scene, wire, pool)
    line = Line(scene, acks)
    cut(wire, worker)
    assert [entry.name for entry in scene.stage.running(scene.key)] == ["first"]
    scene.stage.open("first")
    line.one_goes_on(within=AGAIN)
    line.first.get()


@pytest.mark.parametrize("task", ["late", "late.deaf"])
def test_and_the_body_is_cancelled(scene: Scene, broker: RedisServer, wire: CuttingProxy, task: str) -> None:
    """Its message comes again. It may be there before the body has ended: then it waits for that, and is not lost."""
    apart(scene, broker)
    worker = start(scene, wire, "prefork", worker_cancel_long_running_tasks_on_connection_loss=True)
    line = Line(scene, task, "leave")
    cut(wire, worker)
    if task == "late.deaf":
        wait_until(lambda: any(entry.what == "signalled" for entry in scene.stage.entries()), "it was told to end")
        scene.redeliver()
        wait_until(lambda: has_spare(scene, line.first.id), "the message that came again is kept as a spare")
        assert [entry.name for entry in scene.stage.starts()] == ["first"]
    else:
        wait_until(lambda: not is_alive(scene.stage.starts("first")[0].pid), "the body's process ends")
        scene.redeliver()
    scene.stage.open_all()
    for sent in (line.first, line.second, line.third):
        sent.get()
    assert sorted(scene.stage.names()) == ["first", "first", "second", "third"]


@pytest.mark.parametrize("how", ["goes on", "dies"])
def test_while_a_process_has_not_begun(
    scene: Scene, broker: RedisServer, wire: CuttingProxy, acks: str, how: str
) -> None:
    """It was sent the job, and runs it whatever the worker does; until it is dead the slot is its own."""
    apart(scene, broker)
    worker = start(scene, wire, "prefork", concurrency=1)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    first = scene.send(acks, "first")
    wait_until(lambda: scene.limits.status(scene.key).holders, "it is admitted")
    wait_until(lambda: unread(child), "the job has been sent to the process")
    cut(wire, worker)
    scene.redeliver()
    wait_until(lambda: has_spare(scene, first.id), "the message that came again is kept as a spare")
    assert len(scene.limits.status(scene.key).holders) == 1
    os.kill(child, signal.SIGCONT if how == "goes on" else signal.SIGKILL)
    scene.stage.open_all()
    first.get()
    scene.send(acks, "second").get()
    assert list(scene.stage.names()) == ["first", "second"]


@pytest.mark.parametrize("when", ["before", "between", "amid"])
def test_and_a_process_that_has_not_begun_dies_with_it(
    scene: Scene, broker: RedisServer, wire: CuttingProxy, when: str
) -> None:
    """Nobody will ever report the job's end: its slot must not be held until the worker's own."""
    apart(scene, broker)
    worker = start(scene, wire, "prefork", concurrency=1, kills=when)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    first = scene.send("late", "first")
    wait_until(lambda: scene.limits.status(scene.key).holders, "it is admitted")
    wait_until(lambda: unread(child), "the job has been sent to the process")
    cut(wire, worker)
    wait_until(lambda: not scene.limits.status(scene.key).holders, "its slot is free")
    scene.redeliver()
    scene.stage.open_all()
    first.get()
    scene.send("late", "second").get()
    assert list(scene.stage.names()) == ["first", "second"]


def test_while_no_process_is_up(scene: Scene, broker: RedisServer, wire: CuttingProxy, acks: str) -> None:
    """The job was sent to none, and the pool drops it: its slot must not be held until the worker ends."""
    apart(scene, broker)
    door = f"{scene.stage.directory}/door"
    scene.stage.open("door")
    worker = start(scene, wire, "prefork", concurrency=1, door=door, worker_proc_alive_timeout=90.0)
    (child,) = worker.children()
    scene.send("plain", "the process is up").get()
    scene.stage.close("door")
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: worker.children() - {child}, "another process is started")
    first = scene.send(acks, "first")
    wait_until(lambda: scene.limits.status(scene.key).holders, "it is admitted")
    cut(wire, worker)
    wait_until(lambda: not scene.limits.status(scene.key).holders, "its slot is free")
    scene.redeliver()
    scene.stage.open_all()
    first.get()
    scene.send(acks, "second").get()
    assert list(scene.stage.names())[1:] == ["first", "second"]


# -- the Redis restarts that is both -----------------------------------------------------------------------------


@pytest.fixture
def one_redis() -> Iterator[RedisServer]:
    with RedisServer(appendonly="yes", appendfsync="always") as server:
        yield server


def restart(server: RedisServer, worker: Worker, how: str) -> None:
    if how == "killed":
        server.kill()
    else:
        server.stop()
    worker.wait_for_log("Limited tasks wait until it is back")
    server.start()


@pytest.mark.parametrize("pool", BOTH)
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_redis_restarts(one_redis: RedisServer, scene: Scene, pool: str, how: str) -> None:
    """Body and line are what they were before."""
    use(scene, one_redis)
    worker = scene.start(pool)
    line = Line(scene, "early")
    wait_until(lambda: not scene.unacked(), "it is acknowledged")
    restart(one_redis, worker, how)
    worker.wait_for_log("Connected to", times=2)
    assert [entry.name for entry in scene.stage.running(scene.key)] == ["first"]
    assert scene.limits.status(scene.key).waiting == 2
    scene.stage.open("first")
    line.one_goes_on(within=AGAIN)
    line.first.get()
    assert sorted(scene.stage.names()) == ["first", "second", "third"]


@pytest.mark.parametrize("pool", BOTH)
def test_redis_restarts_with_deliveries_under_way(one_redis: RedisServer, scene: Scene, pool: str) -> None:
    """Celery's worker may end when it can't give them back to a broker that is away: then another goes on."""
    use(scene, one_redis)
    worker = scene.start(pool)
    line = Line(scene, "late")
    restart(one_redis, worker, "killed")
    scene.start(pool)
    assert [entry.name for entry in scene.stage.running(scene.key)] == ["first"]
    assert not scene.stage.starts("second")
    scene.stage.open_all()
    line.first.get()
    scene.redeliver()
    for sent in (line.second, line.third):
        sent.get()
    wait_until(lambda: not scene.unacked(), "what came again is acknowledged")


def use(scene: Scene, server: RedisServer) -> None:
    """Everything on one server: broker, store and results."""
    url = f"redis+socket://{server.socket}"
    scene.configure(broker_url=url, result_backend=f"{url}?virtual_host=1", limits_store_timeout=1.0)
