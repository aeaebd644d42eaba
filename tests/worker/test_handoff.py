"""Direct hand-off: whoever is let go begins on the worker whose place was freed, without a trip through its queue; and
nobody else waits for that, whatever becomes of what was handed over."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from kombu.asynchronous.hub import Hub

from celery_limits import Concurrency
from celery_limits.store.aside import delete_aside, read_aside
from tests.redis_server import RedisServer
from tests.worker.harness import Scene, Sent

pytestmark = pytest.mark.own_broker

BOTH = ("prefork", "threads")
LONG = 60.0
PROMPT = 20.0
"""Seconds: much less than the lease, so it was no lapse that did it."""
WAKES = hasattr(Hub, "_create_waker")
"""Whether a thread can wake the event loop: since kombu 5.7. Before that, what it lets go goes through its queue."""
TRIPS = 2
"""A worker looks into its queues once a second, and what is let go just then goes that way."""


@pytest.fixture(autouse=True)
def on_our_transport(scene: Scene, broker: RedisServer) -> None:
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}", limits_lease=LONG)


def trips(scene: Scene) -> int:
    """How many granted messages were fetched from their queue since the last time."""
    client: Any = scene.limits.store.client
    count = int(client.info("commandstats").get("cmdstat_lpop", {"calls": 0})["calls"])
    client.config_resetstat()
    return count


@pytest.mark.parametrize("pool", BOTH)
@pytest.mark.parametrize("task", ["early", "late"])
def test_a_line_is_worked_off_in_its_order_without_a_trip_through_the_queue(scene: Scene, pool: str, task: str) -> None:
    scene.start(pool, concurrency=1)
    first = scene.send(task, "first")
    scene.wait_started("first")
    names = [f"{number:02}" for number in range(12)]
    sent = [scene.send(f"{task}.quick", name) for name in names]
    scene.wait_parked(len(names))
    trips(scene)
    scene.stage.open_all()
    for one in (first, *sent):
        one.get()
    assert [entry.name for entry in scene.stage.starts()] == ["first", *names]
    if pool == "prefork" or WAKES:
        assert trips(scene) <= TRIPS


def test_what_is_handed_over_sees_what_it_was_sent_with(scene: Scene) -> None:
    """Guarantee 6: no retry is burnt, and its id, its headers and its priority are its own."""
    scene.start("prefork", concurrency=1)
    scene.send("early", "first")
    scene.wait_started("first")
    sent = [scene.send("early.quick", f"{number}", "flaky") for number in range(4)]
    scene.wait_parked(4)
    scene.stage.open_all()
    for one in sent:
        one.wait("FAILURE")  # of max_retries=0, so it was not retried, but began with none
    assert {entry.more["retries"] for entry in scene.stage.starts()} == {0}


@pytest.mark.parametrize("pool", BOTH)
def test_no_other_task_waits_behind_a_line_that_is_handed_over(scene: Scene, pool: str) -> None:
    scene.start(pool, concurrency=1)
    scene.send("early", "first")
    scene.wait_started("first")
    sent = [scene.send("early.quick", f"{number:02}") for number in range(30)]
    scene.wait_parked(30)
    free = scene.send("free", "free")
    scene.stage.open_all()
    for one in (*sent, free):
        one.get()
    names = [entry.name for entry in scene.stage.starts()]
    assert names.index("free") <= TRIPS, names


@pytest.mark.parametrize("pool", BOTH)
def test_what_the_worker_does_not_know_gives_its_slot_to_the_next(scene: Scene, pool: str) -> None:
    """It is handed over, admitted already, and Celery drops it before it comes to the gate."""

    @scene.app.task(name="stranger", shared=False, limits=[Concurrency("{key}", 1)])
    def stranger(key: str, name: str, how: str) -> None:
        raise AssertionError("no worker knows it")

    worker = scene.start(pool, concurrency=1)
    scene.send("early", "first")
    scene.wait_started("first")
    scene.send("stranger", "stranger")
    after = scene.send("early", "after")
    scene.wait_parked(2)
    scene.stage.open_all()
    after.get(within=PROMPT)
    worker.wait_for_log("Received unregistered task of type 'stranger'")
    (kept,) = read_aside(scene.limits.store)
    assert delete_aside(scene.limits.store, kept.name)


@pytest.mark.parametrize("pool", BOTH)
def test_what_celery_itself_lets_wait_does_not_hold_a_slot_meanwhile(scene: Scene, pool: str) -> None:
    """A task with a rate limit of Celery's own waits in the worker, handed over or not."""
    scene.sizes[scene.key] = 5
    scene.start(pool, concurrency=1)
    sent = [scene.send("slow", f"{number}") for number in range(8)]
    for one in sent:
        one.get()


def test_what_was_handed_over_and_is_rejected_gives_its_slot_to_the_next(scene: Scene) -> None:
    """Its message goes back to its queue, and not before its slot is free: else it would still hold it there."""
    scene.start("prefork", concurrency=1)
    sent = [scene.send("late", "first")]
    scene.wait_started("first")
    sent += [scene.send("late", "second", "requeue"), scene.send("late", "third")]
    scene.wait_parked(2)
    scene.stage.open_all()
    for one in sent:
        one.get()
    assert [entry.name for entry in scene.stage.starts()] == ["first", "second", "third", "second"]


def test_a_body_that_ends_in_a_warm_shutdown_lets_the_next_go_at_once(scene: Scene) -> None:
    """The parent hears late of results then, so the process of the pool releases itself."""
    going = scene.start("prefork", concurrency=2)
    sent = [scene.send("late", "long", key="a"), scene.send("late", "short", key="b")]
    for name in ("long", "short"):
        scene.wait_started(name)
    waiter = scene.send("late", "waiter", key="b")
    scene.wait_parked(1, key="b")
    going.signal(signal.SIGTERM)
    going.wait_for_log("Warm shutdown")
    scene.start("prefork", concurrency=1)
    scene.stage.open("short")
    scene.wait_started("waiter", within=PROMPT)
    assert not scene.stage.ends("long")
    scene.stage.open_all()
    for one in (*sent, waiter):
        one.get()
    going.wait_gone()
    assert "Traceback" not in going.log


def test_a_slot_is_not_held_in_the_buffer_of_a_worker_that_is_busy(scene: Scene) -> None:
    """Who is let go, and goes through its queue, goes to the worker that has a place, whoever else consumes there."""
    busy = scene.start("prefork", concurrency=1)
    scene.send("free", "long", key="free")
    scene.wait_started("long")
    scene.limits.pause(scene.key)
    sent = [scene.send("early.quick", f"{number}") for number in range(4)]
    scene.wait_parked(4)
    idle = scene.start("prefork", concurrency=1)
    scene.limits.resume(scene.key)
    for one in sent:
        one.get(within=PROMPT)
    assert {entry.task_id for entry in scene.stage.starts()} >= {one.id for one in sent}
    assert not scene.stage.ends("long"), (busy, idle)
    scene.stage.open_all()


def test_what_a_plain_producer_sends_while_all_places_are_taken_begins_when_one_is_free(
    scene: Scene, broker: RedisServer
) -> None:
    """The worker does not listen meanwhile, and nobody rings for it: it looks as soon as it has a place."""
    scene.start("prefork", concurrency=1)
    scene.send("free", "first", key="free")
    scene.wait_started("first")
    with scene.app.connection(f"redis+socket://{broker.socket}") as connection:
        plain = scene.app.tasks["free"].apply_async(
            kwargs={"key": f"{scene.key}:free", "name": "second"}, queue=scene.queue, connection=connection
        )
    scene.stage.open_all()
    Sent(scene.app, plain.id).get()
