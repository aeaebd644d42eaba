"""The gate between delivery and execution: who waits, who does not, and who is next.

Guarantees 6 to 10 in a real worker. Waiting takes neither a prefetch place nor a retry, a key that is full holds up no
other, starts are in turn, a task whose time has not come holds nothing, and what can't be read never runs.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from celery import states

from tests.waiting import wait_until
from tests.worker.harness import Scene, Sent

SOON = 2.0
"""Seconds of a countdown: long enough to see what happens before it has passed."""


@pytest.fixture(params=["prefork", "threads"])
def pool(request: pytest.FixtureRequest, scene: Scene) -> str:
    """A worker that other tests use as well."""
    return scene.share(request.param)


def send_by_hand(scene: Scene, name: str, task_id: str, limits: Any) -> Sent:
    """Publishes a call whose limits header is whatever it is told to be, as another program might."""
    kwargs = {"key": scene.key, "name": name}
    headers, properties, body, _ = scene.app.amqp.as_task_v2(task_id, "early.quick", kwargs=kwargs)
    with scene.app.producer_or_acquire() as producer:
        producer.publish(
            body,
            exchange="",
            routing_key=scene.queue,
            serializer="json",
            headers={**headers, "limits": limits},
            declare=[scene.app.amqp.queues[scene.queue]],
            **properties,
        )
    return Sent(scene.app, task_id)


def test_a_full_key_does_not_hold_up_another(scene: Scene, pool: str) -> None:
    """P2: far more wait at A than the worker may prefetch, and what is behind them in the queue runs."""
    holder = scene.send("early", "holder", key="a")
    scene.wait_started("holder")
    behind = [scene.send("early.quick", f"a{number}", key="a") for number in range(200)]
    other, free = scene.send("early.quick", "other", key="b"), scene.send("plain", "free")
    assert other.get() is None
    assert free.get() == "free"
    scene.wait_parked(200, key="a")
    assert [entry.name for entry in scene.stage.running(f"{scene.key}:a")] == ["holder"]
    scene.stage.open_all()
    assert holder.get() is None
    for sent in behind:
        sent.get()


def test_waiting_uses_up_no_retry(scene: Scene, pool: str) -> None:
    """P1, T3: each body sees its first attempt, although retrying is forbidden and most of them have waited."""
    sent = [scene.send("early.quick", f"task{number}") for number in range(50)]
    for one in sent:
        one.get()
    starts = scene.stage.starts()
    assert sorted(entry.task_id for entry in starts) == sorted(one.id for one in sent)
    assert {entry.more["retries"] for entry in starts} == {0}


def test_starts_are_in_order_of_arrival(scene: Scene, pool: str) -> None:
    holder = scene.send("early", "holder")
    scene.wait_started("holder")
    names = [f"task{number}" for number in range(10)]
    for place, name in enumerate(names):
        scene.send("early.quick", name)
        scene.wait_parked(place + 1)
    scene.stage.open_all()
    holder.get()
    wait_until(lambda: len(scene.stage.starts()) == 11, "all have started")
    assert list(scene.stage.names()) == ["holder", *names]


def test_a_task_of_the_future_holds_nothing(scene: Scene, pool: str) -> None:
    """L6: it has been delivered, but its slot is free for one whose time has come."""
    later = [scene.send("early.quick", f"later{number}", countdown=SOON) for number in range(5)]
    scene.send("early.quick", "now").get()
    assert list(scene.stage.names()) == ["now"]
    for sent in later:
        sent.get()


def test_it_comes_due_while_the_key_is_full(scene: Scene, pool: str) -> None:
    """L7: then it joins the line as one that has just arrived."""
    holder = scene.send("early", "holder")
    scene.wait_started("holder")
    due = scene.send("early.quick", "due", countdown=SOON)
    earlier = scene.send("early.quick", "earlier")
    scene.wait_parked(1)
    scene.wait_parked(2)
    last = scene.send("early.quick", "last")
    scene.wait_parked(3)
    scene.stage.open_all()
    for sent in (holder, due, earlier, last):
        sent.get()
    assert list(scene.stage.names()) == ["holder", "earlier", "due", "last"]


def test_one_task_id_is_published_twice(scene: Scene, pool: str) -> None:
    """L16: both run, one after the other, and both give back."""
    task_id = uuid4().hex
    first = scene.send("early", "first", task_id=task_id)
    scene.wait_started("first")
    scene.send("early", "second", task_id=task_id)
    scene.wait_parked(1)
    scene.stage.open("first")
    scene.wait_started("second")
    third = scene.send("early.quick", "third")
    scene.wait_parked(1)
    scene.stage.open_all()
    assert first.get() is None
    assert third.get() is None
    assert list(scene.stage.names()) == ["first", "second", "third"]


@pytest.mark.parametrize("limits", ["garbage", {}, {"v": 1, "links": []}], ids=["text", "empty", "without-links"])
def test_a_corrupt_header_fails_its_task_alone(scene: Scene, pool: str, limits: Any) -> None:
    """It never means "no limits", and the consumer goes on."""
    broken = send_by_hand(scene, "broken", uuid4().hex, limits)
    error = broken.wait(states.FAILURE)
    assert type(error).__name__ == "CorruptChain"
    assert "corrupt limits header" in str(error)
    assert scene.send("early.quick", "good").get() is None
    assert list(scene.stage.names()) == ["good"]


def test_tasks_without_limits_run_beside(scene: Scene, pool: str) -> None:
    """The holder takes one place of the pool, those that wait take none."""
    holder = scene.send("early", "holder")
    scene.wait_started("holder")
    waiting = [scene.send("early.quick", f"task{number}") for number in range(20)]
    free = [scene.send("free", f"free{number}", key=str(number)) for number in range(3)]
    for number in range(3):
        scene.wait_started(f"free{number}")
    scene.wait_parked(20)
    scene.stage.open_all()
    for sent in (holder, *waiting, *free):
        sent.get()
