"""Events of limits: sent while task events are on, and harmless to whoever keeps the state of tasks by events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery.events import EventReceiver
from celery.events.state import State

from celery_limits import Concurrency
from tests.waiting import wait_until
from tests.worker.harness import Scene


class Ear:
    """Hears all events of an app, in the order in which they come, and keeps the state that Celery makes of them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.state = State()

    def hear(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.state.event(event)

    def of(self, task_id: str) -> list[str]:
        return [event["type"] for event in list(self.events) if event.get("uuid") == task_id]

    def wait_for(self, event: str, task_id: str) -> None:
        wait_until(lambda: event in self.of(task_id), f"{event} of {task_id} is told")


@contextmanager
def listening(app: Any) -> Iterator[Ear]:
    ear, ready = Ear(), threading.Event()
    with app.connection_for_read() as connection:
        receiver = EventReceiver(connection, handlers={"*": ear.hear}, app=app)

        def listen() -> None:
            with receiver.consumer_context(wakeup=False) as (live, _, _):
                ready.set()
                while not receiver.should_stop:
                    try:
                        live.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        assert ready.wait(20)
        yield ear
        receiver.should_stop = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_parked_resumed_and_released_are_told_while_task_events_are_on(scene: Scene, pool: str) -> None:
    scene.configure()
    sent = [scene.send("early", "one"), scene.send("early", "other")]  # before there is a line to go straight into
    with listening(scene.app) as ear:
        worker = scene.start(pool, "-E")
        wait_until(scene.stage.starts, "one of them starts")
        scene.wait_parked(1)
        scene.stage.open_all()
        for task in sent:
            task.get()
            ear.wait_for("limit-released", task.id)
            if pool == "prefork":  # some versions of Celery lose an event of a thread now and then
                ear.wait_for("task-succeeded", task.id)
    first, second = (entry.task_id for entry in scene.stage.starts())
    assert [name for name in ear.of(first) if name.startswith("limit-")] == ["limit-released"]
    ours = [event for event in ear.events if event["type"].startswith("limit-") and event["uuid"] == second]
    assert [event["type"] for event in ours] == ["limit-parked", "limit-resumed", "limit-released"]
    parked, resumed, released = ours
    assert (parked["key"], parked["link"], parked["name"], parked["hostname"]) == (scene.key, 0, "early", worker.name)
    assert resumed["keys"] == released["keys"] == [scene.key]
    assert parked["ticket"] == resumed["ticket"] == released["ticket"]
    states = {task.state for task in ear.state.tasks.values()}
    assert states == {"SUCCESS"} if pool == "prefork" else states <= {"RECEIVED", "STARTED", "SUCCESS"}


def test_nothing_is_told_unless_task_events_are_on_and_they_may_be_turned_on_later(scene: Scene) -> None:
    scene.configure()
    with listening(scene.app) as ear:
        worker = scene.start("threads", concurrency=1)
        first, second = scene.send("early.quick", "first"), scene.send("early", "second")
        scene.wait_started("second")  # in the one thread there is, so all about the first has been said
        scene.app.control.enable_events(destination=[worker.name])
        wait_until(lambda: "Events of group {task} enabled" in worker.log, "events are on")
        scene.stage.open_all()
        ear.wait_for("limit-released", second.id)
    assert ear.of(first.id) == []
    assert "limit-resumed" not in ear.of(second.id)


def test_one_that_is_discarded_is_told(scene: Scene) -> None:
    scene.configure()
    with listening(scene.app) as ear:
        scene.start("threads", "-E")
        scene.send("early", "first")
        scene.wait_started("first")
        second = scene.send("early", "second", limits=[Concurrency("{key}", 1, on_full="discard")])
        second.wait("REVOKED")
        ear.wait_for("limit-discarded", second.id)
        scene.stage.open_all()
        scene.wait_ended("first")
