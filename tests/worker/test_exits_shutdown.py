"""A worker that goes, in whatever way, leaves no slot behind: others go on with its line.

Each test has workers of its own. The first worker holds the key when it is ended; the second, which consumes the same
queue, goes on: at once after a clean leave, when the lease has lapsed after a SIGKILL. Where it must not have been the
lease, that is longer than any test waits.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

import pytest
from celery import states

from celery_limits import Concurrency
from tests.redis_server import RedisServer
from tests.store.cutting_proxy import cutting_proxy
from tests.waiting import DEADLINE, wait_until
from tests.worker.harness import Scene, Worker
from tests.worker.lines import Line

BOTH = ("prefork", "threads")
LEASE = 4.0
"""Seconds. A worker that a busy machine keeps from running for so long is taken for dead, and others get its slots."""
LONG_LEASE = 300.0
TAKEN_OVER = 30.0


@pytest.fixture(params=["early", "late"])
def acks(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def two_workers(
    scene: Scene, pool: str, task: str, lease: float = LONG_LEASE, **conf: Any
) -> tuple[Worker, Worker, Line]:
    """One that runs the first task and another that will run what comes after."""
    scene.configure(limits_lease=lease, limits_place_ttl=3.0, **conf)
    both = [scene.launch(pool), scene.launch(pool)]
    for worker in both:
        worker.wait_ready()
    line = Line(scene, task)
    where = scene.stage.starts("first")[0].more["worker"]
    goes, stays = sorted(both, key=lambda worker: worker.name != where)
    return goes, stays, line


def lease_of(scene: Scene, worker: Worker) -> float:
    """When the worker's lease lapses, in seconds; 0 when it has none."""
    client: Any = scene.limits.store.client
    found = client.zrange(f"{scene.limits.store.prefix}leases", 0, -1, withscores=True)
    return max((score / 1e6 for name, score in found if name.decode().startswith(f"{worker.name}/")), default=0.0)


@pytest.mark.parametrize("pool", [*BOTH, "gevent", "eventlet", "solo"])
def test_warm_shutdown_waits_for_the_body_and_keeps_the_lease(scene: Scene, pool: str, acks: str) -> None:
    """S8."""
    goes, _, line = two_workers(scene, pool, acks, LEASE)
    goes.signal(signal.SIGTERM)
    goes.wait_for_log("Warm shutdown")
    until = lease_of(scene, goes)
    if pool != "solo":  # its body stops the event loop, so there is nothing to see until it ends
        # Thrice in a lease: this was the second time since it was told to stop.
        wait_until(lambda: lease_of(scene, goes) > until + LEASE / 2, "the lease is renewed while the pool drains")
    assert not scene.stage.starts("second")
    scene.stage.open("first")
    line.one_goes_on(within=TAKEN_OVER)
    assert goes.wait_gone() == 0
    line.first.get()
    assert lease_of(scene, goes) == 0


@pytest.mark.parametrize("pool", BOTH)
def test_another_goes_on_after_a_clean_leave(scene: Scene, pool: str) -> None:
    """It was not the lease, which is longer than the test."""
    goes, _, line = two_workers(scene, pool, "early")
    goes.signal(signal.SIGTERM)
    goes.wait_for_log("Warm shutdown")
    scene.stage.open("first")
    line.one_goes_on(in_turn=False)  # a worker that was just told to go may still fetch the second, and gives it back
    assert goes.wait_gone() == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_twenty_rounds_of_shutdown_lose_no_slot(scene: Scene) -> None:
    """S6: long tasks, three at once, and twenty workers in turn that are told to stop and then to hurry, each when the
    next one is there. The lease is long."""
    scene.configure(limits_lease=LONG_LEASE)
    scene.sizes[scene.key] = 3
    tasks = [scene.send("late", f"long{number}", limits=[Concurrency(scene.key, 3)]) for number in range(5)]
    here = scene.start("prefork")
    for round_number in range(1, 21):
        wait_until(lambda: len(scene.stage.running(scene.key)) == 3, f"three run in round {round_number}", within=40)
        follows = scene.start("prefork")
        here.signal(signal.SIGTERM)
        here.wait_for_log("Warm shutdown")
        here.signal(signal.SIGQUIT)
        here.wait_gone(within=60)
        here = follows
    wait_until(lambda: len(scene.stage.running(scene.key)) == 3, "three run at the end", within=40)
    scene.stage.open_all()
    for sent in tasks:
        sent.get()


@pytest.mark.parametrize("pool", BOTH)
def test_cold_shutdown(scene: Scene, pool: str, acks: str) -> None:
    goes, _, line = two_workers(scene, pool, acks)
    goes.signal(signal.SIGQUIT)
    if pool == "threads":  # nobody can end a thread: it keeps its slot until it has ended by itself
        until = time.monotonic() + 3
        wait_until(lambda: scene.stage.starts("second") or time.monotonic() > until, "somebody goes on, or nobody")
        assert not scene.stage.starts("second")
        scene.stage.open("first")
    line.one_goes_on(within=TAKEN_OVER)
    goes.wait_gone()
    if acks == "late":
        line.first.get()


@pytest.mark.parametrize("transport", ["", "limits+"])
def test_cold_shutdown_of_a_body_whose_time_is_up_before_it_has_ended(
    scene: Scene, broker: RedisServer, transport: str
) -> None:
    """It was cancelled first, so its message comes again, as that of any other."""
    scene.configure(broker_url=f"{transport}redis+socket://{broker.socket}")
    goes = scene.start("prefork")
    sent = scene.send("late.deaf", "first", time_limit=3)
    scene.wait_started("first")
    goes.signal(signal.SIGQUIT)
    wait_until(lambda: any(entry.what == "signalled" for entry in scene.stage.entries()), "it was told to end")
    goes.wait_gone()
    scene.stage.open_all()
    scene.start("prefork")
    sent.get()
    assert list(scene.stage.names()) == ["first", "first"]


def test_hard_shutdown_while_a_thread_asks(scene: Scene, broker: RedisServer) -> None:
    """The store has given it the slot and the answer is under way, so its body may still begin: nobody gets the slot
    before the process has ended. (Told for the third time, Celery does not wait for its threads.)"""
    scene.configure(limits_lease=2 * LEASE, limits_store_timeout=60.0)
    with cutting_proxy(broker.socket) as wire:
        goes = scene.launch("threads", limits_store_url=f"unix://{wire.path}")
        scene.launch("threads", "-Q", f"{scene.key}-other").wait_ready()
        goes.wait_ready()
        scene.send("early.quick", "nobody").get()  # so that Redis knows the script, and answers once
        wire.about, wire.plan = b"\r\nfirst-id\r\n", ["hold"]
        scene.send("early", "first", task_id="first-id")
        wait_until(lambda: scene.limits.status(scene.key).holders, "the store has admitted it")
        second = scene.send("early", "second", queue=f"{scene.key}-other")
        scene.wait_parked(1)
        for said in ("Hitting Ctrl+C again", "Waiting gracefully", ""):
            goes.signal(signal.SIGQUIT)
            goes.wait_for_log(said)
        if sys.version_info >= (3, 13):  # which waits for its threads, however often it is told to go
            assert not scene.stage.starts("second")
            wire.hand_on()
        else:
            wait_until(lambda: scene.stage.starts("second") or not goes.is_running, "it ends, or another goes on")
            assert not goes.is_running
    scene.stage.open_all()
    second.get(within=TAKEN_OVER)


def test_soft_shutdown(scene: Scene, acks: str) -> None:
    goes, _, line = two_workers(scene, "prefork", acks, worker_soft_shutdown_timeout=1.0)
    goes.signal(signal.SIGQUIT)
    line.one_goes_on(within=TAKEN_OVER)
    goes.wait_gone()
    if acks == "late":
        line.first.get()


@pytest.mark.parametrize("pool", [*BOTH, "solo"])
def test_killed(scene: Scene, pool: str, acks: str) -> None:
    """A pool child goes with its parent, so that it does not run on into another's slot."""
    goes, _, line = two_workers(scene, pool, acks, LEASE)
    goes.signal(signal.SIGKILL)
    line.one_goes_on(within=TAKEN_OVER)
    goes.wait_gone()
    scene.redeliver()  # of a pool of threads even what is acknowledged early may come again, under Celery 5.5
    if acks == "late" or pool == "solo":  # whose body stops the loop that would have acknowledged early
        line.first.get()
        assert len(scene.stage.starts("first")) == 2


def test_out_of_memory(scene: Scene, acks: str) -> None:
    """Celery ends a worker whose child reports a MemoryError, but not always by itself: the test makes sure.

    Killed before Celery gave back what it had not acknowledged, it leaves that to the visibility timeout: the first one
    where it is acknowledged late; and the second, if that was let go into the very worker, which ends before it has
    read that a process of its own has begun it.
    """
    scene.configure(limits_lease=LEASE, limits_place_ttl=3.0)
    goes = scene.start("prefork")
    line = Line(scene, acks, "memory")
    scene.start("prefork")
    scene.stage.open("first")
    line.one_goes_on(within=TAKEN_OVER, in_turn=False)
    goes.kill()
    scene.redeliver()
    line.first.wait(states.FAILURE if acks == "early" else states.SUCCESS)


def test_max_tasks_per_child(scene: Scene, acks: str) -> None:
    scene.configure()
    scene.start("prefork", "--max-tasks-per-child", "1")
    line = Line(scene, acks)
    scene.stage.open("first")
    line.one_goes_on(within=TAKEN_OVER)
    line.first.get()
    assert len({entry.pid for entry in scene.stage.starts()}) == 3


def test_pool_restart(scene: Scene, acks: str) -> None:
    """Each process ends when it has finished what it runs, or the next that it is given."""
    scene.configure(worker_pool_restarts=True)
    worker = scene.start("prefork")
    line = Line(scene, acks)
    old = worker.children()
    assert scene.app.control.pool_restart(reply=True, timeout=DEADLINE, destination=[worker.name])
    scene.stage.open("first")
    line.one_goes_on(within=TAKEN_OVER)
    line.first.get()
    ran = [entry.pid for entry in scene.stage.starts() if entry.pid in old]
    assert len(ran) == len(set(ran)), "a process that was to end has run two"
