"""Remote control: what workers say of their limits, steering through them, and the names that they give to holders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from celery_limits.app.task_names import named
from tests.waiting import wait_until
from tests.worker.harness import ROOT, Scene, Worker
from tests.worker.proj import CONF

PATIENCE = 30.0
"""Seconds that an answer may take."""


@pytest.fixture
def worker(scene: Scene) -> Worker:
    """One of this test alone, on a namespace of its own."""
    scene.configure()
    return scene.start("threads")


def _ask(scene: Scene, worker: Worker, command: str, **arguments: Any) -> Any:
    """What the worker answers; it comes as soon as there is an answer."""
    (reply,) = scene.app.control.broadcast(
        command, arguments=arguments, destination=[worker.name], timeout=PATIENCE, limit=1, reply=True
    )
    return reply[worker.name]


def test_a_worker_tells_its_view(scene: Scene, worker: Worker) -> None:
    first = scene.send("early", "first")
    scene.wait_started("first")
    second = scene.send("early", "second")
    scene.wait_parked(1)
    view = _ask(scene, worker, "limits")
    assert (view["active"], view["namespace"], view["lease_held"]) == (True, scene.key, True)
    assert view["store"] == scene.limits.url
    assert view["lease"] == scene.limits.settings.lease
    assert (view["running"], view["put_off"]) == (1, 0)
    (held,) = view["holding"]
    assert (held["task"], held["task_id"], held["keys"]) == ("early", first.id, [scene.key])
    (party,) = scene.limits.status(scene.key).holders
    assert (held["ticket"], view["worker"]) == (party.ticket, party.worker)
    scene.stage.open_all()
    assert second.get() is None
    wait_until(lambda: _ask(scene, worker, "limits")["running"] == 0, "nothing runs any more")


def test_inspect_has_a_method_for_it(scene: Scene, worker: Worker) -> None:
    told = scene.app.control.inspect(destination=[worker.name], limit=1, timeout=PATIENCE).limits()
    assert told[worker.name]["namespace"] == scene.key


def _celery(scene: Scene, *arguments: str) -> str:
    """What the command `celery` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "tests.worker.proj", *arguments],
        check=False,
        cwd=ROOT,
        env={**os.environ, CONF: json.dumps(scene.conf), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_the_commands_of_celery_know_them(scene: Scene, worker: Worker) -> None:
    assert "This worker's view of the limits" in _celery(scene, "inspect", "--list")
    assert "limits_resize <key> <size or rate> [burst]" in _celery(scene, "control", "--list")
    _celery(scene, "control", "limits_resize", scene.key, "7")
    wait_until(lambda: scene.limits.status(scene.key).size == 7, "the worker has resized the key")


def test_names_of_those_that_run_and_wait(scene: Scene, worker: Worker) -> None:
    scene.send("early", "first")
    scene.wait_started("first")
    second = scene.send("late", "second")
    scene.wait_parked(1)
    status = named(scene.app, scene.limits.store, scene.limits.status(scene.key), PATIENCE)
    assert [party.task for party in status.holders] == ["early"]
    assert [party.task for party in status.waiters] == ["late"]
    scene.stage.open_all()
    second.get()


def test_steering_through_a_worker(scene: Scene, worker: Worker) -> None:
    scene.sizes[scene.key] = 2
    scene.send("early", "first")
    scene.wait_started("first")
    second, third = scene.send("early", "second"), scene.send("early", "third")
    scene.wait_parked(2)
    assert "ok" in _ask(scene, worker, "limits_cancel", task_id=third.id)
    third.wait("REVOKED")
    assert "error" in _ask(scene, worker, "limits_resize", key=scene.key, size="many")
    assert "ok" in _ask(scene, worker, "limits_resize", key=scene.key, size="2")
    scene.wait_started("second")
    assert "ok" in _ask(scene, worker, "limits_pause", key=scene.key)
    fourth = scene.send("early", "fourth")
    scene.wait_parked(1)
    scene.stage.open_all()
    second.get()
    assert "ok" in _ask(scene, worker, "limits_reset", key=scene.key)
    assert not scene.stage.starts("fourth")
    assert "ok" in _ask(scene, worker, "limits_resume", key=scene.key)
    fourth.get()
    status = scene.limits.status(scene.key)
    assert (status.size, status.paused) == (None, False)
