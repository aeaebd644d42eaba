"""Workers on `limits+redis://`: what is theirs stays theirs while they live, and comes back at once when they go.

Nothing here depends on limits: most tasks have none.
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
from tests.worker.stage import unread

pytestmark = pytest.mark.own_broker

BOTH = ("prefork", "threads")
PROMPT = 20.0
"""Seconds: much less than the lease, so it was no lapse that brought it back."""

LONG = 60.0
SHORT = 4.0


@pytest.fixture(autouse=True)
def on_our_transport(scene: Scene, broker: RedisServer) -> None:
    configure(scene, f"limits+redis+socket://{broker.socket}", LONG)


def configure(scene: Scene, url: str, lease: float) -> None:
    """What has an eta waits in a worker, as ever in Celery: see test_delays.py for the other way."""
    scene.configure(broker_url=url, limits_lease=lease, limits_delay_in_store=False)


@pytest.fixture
def wire(broker: RedisServer) -> Iterator[CuttingProxy]:
    """What the worker of the test reaches its Redis through; the test itself is not affected."""
    with cutting_proxy(broker.socket) as proxy:
        yield proxy


def start_behind(scene: Scene, wire: CuttingProxy, pool: str, *options: str, **conf: Any) -> Worker:
    worker = scene.start(pool, *options, broker_url=f"limits+redis+socket://{wire.path}", **conf)
    worker.wait_for_log("Connected to")
    return worker


def cut(wire: CuttingProxy, worker: Worker) -> None:
    """Returns when the worker consumes again."""
    before = worker.log.count("Connected to")
    wire.cut_all()
    worker.wait_for_log("Connected to", times=before + 1)


def unacked(scene: Scene) -> list[str]:
    """Deliveries under way, of all workers."""
    store = scene.limits.store
    client: Any = store.client
    names = client.scan_iter(match=f"{store.prefix}unacked:*")
    return [member.partition(b"\n")[0].decode() for name in names for member in client.zrange(name, 0, -1)]


def wait_all_acknowledged(scene: Scene) -> None:
    wait_until(lambda: not unacked(scene), "all is acknowledged")


# -- the connection breaks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", BOTH)
@pytest.mark.parametrize("task", ["late", "free.late"])
def test_what_runs_while_the_connection_breaks_is_acknowledged_when_it_ends(
    scene: Scene, wire: CuttingProxy, pool: str, task: str
) -> None:
    """It is neither run twice nor lost, and those that were only buffered come again."""
    worker = start_behind(scene, wire, pool, concurrency=1)
    sent = [scene.send(task, "first")]
    scene.wait_started("first")
    others = [f"other{i}" for i in range(3)]
    sent += [scene.send("free.late", name) for name in others]
    wait_until(lambda: len(unacked(scene)) == 4, "the others are buffered")
    cut(wire, worker)
    wait_until(lambda: len(unacked(scene)) == 4, "the others are buffered again")
    assert list(scene.stage.names()) == ["first"]
    scene.stage.open_all()
    for one in sent:
        one.get()
    wait_all_acknowledged(scene)
    assert sorted(scene.stage.names()) == ["first", *others]


@pytest.mark.parametrize("how", ["goes on", "dies"])
@pytest.mark.parametrize("task", ["late", "free.late"])
def test_what_a_process_was_sent_stays_its_own_while_the_connection_breaks(
    scene: Scene, wire: CuttingProxy, task: str, how: str
) -> None:
    """It may have begun, or even ended, and the worker has not read that yet."""
    worker = start_behind(scene, wire, "prefork", concurrency=1)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    first = scene.send(task, "first")
    wait_until(lambda: unread(child), "the job has been sent to the process")
    before = unacked(scene)
    cut(wire, worker)
    assert unacked(scene) == before
    os.kill(child, signal.SIGCONT if how == "goes on" else signal.SIGKILL)
    scene.stage.open_all()
    first.get()
    scene.send(task, "second").get()
    assert list(scene.stage.names()) == ["first", "second"]
    wait_all_acknowledged(scene)


@pytest.mark.parametrize("when", ["before", "between", "amid"])
@pytest.mark.parametrize("task", ["late", "free.late"])
def test_what_a_process_was_sent_that_dies_as_the_pool_is_flushed_comes_again(
    scene: Scene, wire: CuttingProxy, task: str, when: str
) -> None:
    """It was the process's own when the connection was closed, and the pool knows of neither when it is connected."""
    worker = start_behind(scene, wire, "prefork", concurrency=1, kills=when)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    first = scene.send(task, "first")
    wait_until(lambda: unread(child), "the job has been sent to the process")
    cut(wire, worker)
    scene.stage.open_all()
    first.get(PROMPT)
    scene.send(task, "second").get()
    assert list(scene.stage.names()) == ["first", "second"]
    wait_all_acknowledged(scene)
    scene.wait_quiet()


def test_what_is_cancelled_when_the_connection_breaks_comes_again(scene: Scene, wire: CuttingProxy) -> None:
    worker = start_behind(scene, wire, "prefork", worker_cancel_long_running_tasks_on_connection_loss=True)
    sent = [scene.send(task, task, key=task) for task in ("late", "free.late")]
    for task in ("late", "free.late"):
        scene.wait_started(task)
    cut(wire, worker)
    for task in ("late", "free.late"):
        scene.wait_started(task, times=2)
    scene.stage.open_all()
    for one in sent:
        one.get()
    wait_all_acknowledged(scene)


def end_with_the_far_one(scene: Scene, worker: Worker) -> None:
    """A task that waits for its time is under way, and goes back to its queue when its worker goes."""
    wait_until(lambda: len(unacked(scene)) == 1, "only the far one is under way")
    worker.stop()
    assert not unacked(scene)
    assert scene.app.control.purge() == 1


# -- the worker goes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", BOTH)
def test_a_warm_shutdown_finishes_what_runs_and_gives_back_the_rest(scene: Scene, pool: str) -> None:
    going = scene.start(pool, concurrency=1)
    sent = [scene.send("free.late", "first")]
    scene.wait_started("first")
    sent += [scene.send("free.late", "second"), scene.send("free.late", "far", countdown=3600)]
    wait_until(lambda: len(unacked(scene)) == 3, "all are fetched")
    going.signal(signal.SIGTERM)
    going.wait_for_log("Warm shutdown")
    scene.stage.open_all()
    going.wait_gone()
    assert "first" in scene.stage.names()
    other = scene.start(pool, concurrency=1)
    for one in sent[:2]:
        one.get(within=PROMPT)
    assert sorted(scene.stage.names()) == ["first", "second"]
    end_with_the_far_one(scene, other)


def test_a_cold_shutdown_gives_back_at_once(scene: Scene) -> None:
    going = scene.start("prefork", concurrency=1)
    sent = [scene.send("free.late", "first")]
    scene.wait_started("first")
    sent.append(scene.send("free.late", "second"))
    wait_until(lambda: len(unacked(scene)) == 2, "both are fetched")
    going.signal(signal.SIGQUIT)
    going.wait_gone()
    scene.start("prefork", concurrency=1)
    scene.stage.open_all()
    for one in sent:
        one.get(within=PROMPT)
    wait_all_acknowledged(scene)


@pytest.mark.long
@pytest.mark.parametrize("pool", BOTH)
def test_what_a_killed_worker_had_comes_back_when_its_lease_lapses(scene: Scene, pool: str) -> None:
    """In its order, and a task that waited for its time waits for it elsewhere."""
    configure(scene, scene.conf["broker_url"], SHORT)
    victim = scene.start(pool, concurrency=1)
    sent = [scene.send("free.late", "first")]
    scene.wait_started("first")
    sent += [scene.send("free.late", "second"), scene.send("free.late", "third")]
    scene.send("free.late", "far", countdown=3600)
    wait_until(lambda: len(unacked(scene)) == 4, "all are fetched")
    other = scene.start(pool, concurrency=1)
    victim.kill()
    scene.wait_started("first", times=2)
    scene.stage.open_all()
    for one in sent:
        one.get()
    assert list(scene.stage.names()) == ["first", "first", "second", "third"]
    end_with_the_far_one(scene, other)


@pytest.mark.long
@pytest.mark.parametrize("pool", BOTH)
def test_a_live_worker_keeps_what_it_has_for_many_leases(scene: Scene, pool: str) -> None:
    configure(scene, scene.conf["broker_url"], SHORT)
    keeper = scene.start(pool, concurrency=1)
    first, second = scene.send("free.late", "first"), scene.send("free.late", "second")
    scene.send("free.late", "far", countdown=3600)
    scene.wait_started("first")
    wait_until(lambda: len(unacked(scene)) == 3, "all are fetched")
    held = unacked(scene)
    scene.start(pool, "-Q", f"{scene.key}-other", concurrency=1)
    store = scene.limits.store
    client: Any = store.client

    def renewed_until() -> float:
        found = client.zrange(f"{store.prefix}leases", 0, -1, withscores=True)
        return float(min(score / 1e6 for name, score in found if name.decode().startswith(f"{keeper.name}/")))

    begun = renewed_until()
    wait_until(lambda: renewed_until() > begun + 2 * SHORT, "several leases pass")
    assert sorted(unacked(scene)) == sorted(held)
    scene.stage.open_all()
    for one in (first, second):
        one.get()
    assert list(scene.stage.names()) == ["first", "second"]
    end_with_the_far_one(scene, keeper)


@pytest.mark.parametrize("pool", BOTH)
def test_they_start_in_the_order_in_which_they_were_published(scene: Scene, pool: str) -> None:
    """The first are in the queue, since their key was free; the others went straight into the line."""
    names = [f"{number:02}" for number in range(12)]
    sent = [scene.send("early.quick", name) for name in names[:6]]
    scene.limits.pause(scene.key)
    sent += [scene.send("early.quick", name) for name in names[6:]]
    scene.wait_parked(6)
    scene.start(pool)
    scene.wait_parked(12)
    scene.limits.resume(scene.key)
    for each in sent:
        each.get()
    assert [entry.name for entry in scene.stage.starts()] == names
