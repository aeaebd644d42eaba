"""`purge` while tasks run, are granted and wait: what has not begun is gone, slots are free, and the limits work on."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, states

import celery_limits
from tests.waiting import DEADLINE, wait_until
from tests.worker.harness import Scene, celery_program
from tests.worker.lines import Line


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_purged_while_one_runs_and_others_wait(scene: Scene, pool: str) -> None:
    scene.configure()
    scene.start(pool)
    line = Line(scene, "late")
    elsewhere = scene.send("early", "elsewhere", key="elsewhere", queue=f"{scene.key}-other")
    assert scene.app.control.purge() >= 2
    for sent in (line.second, line.third):
        sent.wait(states.REVOKED)
    assert scene.limits.status(scene.key).waiting == 0
    scene.stage.open_all()
    line.first.get()
    scene.send("early", "afterwards").get()
    assert list(scene.stage.names()) == ["first", "afterwards"]
    assert elsewhere.state == states.PENDING


def in_queue(scene: Scene) -> int:
    with scene.app.connection_for_read() as connection:
        return int(connection.default_channel._size(scene.key))


def test_purged_when_one_is_on_its_way(scene: Scene) -> None:
    """One was granted the slot, and its message is in the queue: it goes from there, and the slot is free at once."""
    scene.configure(limits_grant_timeout=600.0)
    worker = scene.start("prefork")
    line = Line(scene, "early")
    fourth = scene.send("early", "fourth")
    scene.wait_parked(3)
    control = scene.app.control
    there = {"destination": [worker.name], "reply": True, "timeout": DEADLINE}
    assert control.cancel_consumer(scene.key, **there)
    active = control.inspect(destination=[worker.name], timeout=DEADLINE, limit=1).active_queues
    wait_until(lambda: active() == {worker.name: []}, "the queue is not consumed")  # it replies before it is done
    scene.stage.open("first")
    line.first.get()
    wait_until(lambda: in_queue(scene) == 1, "the second is in the queue, with the slot")
    assert control.purge() >= 3  # the second once more, where the broker has its message and the store its ticket
    for sent in (line.third, fourth):
        sent.wait(states.REVOKED)
    assert scene.limits.status(scene.key).holders == ()
    assert control.add_consumer(scene.key, **there)
    scene.send("early.quick", "afterwards").get()
    assert list(scene.stage.names()) == ["first", "afterwards"]


def test_the_purge_command(scene: Scene) -> None:
    scene.configure()
    scene.start("prefork")
    line = Line(scene, "early")
    done = celery_program(scene.conf, "purge", "-f")
    assert "Revoked 2 that waited in the store." in done.stdout, done.stderr
    for sent in (line.second, line.third):
        sent.wait(states.REVOKED)
    scene.stage.open_all()
    line.first.get()
    assert list(scene.stage.names()) == ["first"]


# -- a store that is not there -------------------------------------------------------------------------------------


def nothing() -> None:
    """The body of a task that is never run."""


def test_an_app_without_a_store_still_tells_its_workers(caplog: pytest.LogCaptureFixture) -> None:
    app: Any = Celery("lost", broker="memory://", set_as_current=False)
    app.task(name="limited", limits=[celery_limits.Concurrency("k", 1)])(nothing)
    told = []
    app.control.broadcast = lambda command, **_: told.append(command)
    app.control.revoke("some-id")
    app.control.revoke_by_stamped_headers({"colour": "red"})
    assert told == ["revoke", "revoke_by_stamped_headers"]
    assert app.control.purge() == 0
    assert "set limits_store_url" in caplog.text
