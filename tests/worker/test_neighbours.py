"""Workers of one queue that do not agree on their limits, and messages whose task is gone: both are said aloud."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import states

from celery_limits.patches.mingle import differences
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import MINGLES, Scene

OWN = {"namespace": "a", "store": "redis://one/0", "lease": 30.0, "queues": ["q", "r"]}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({}, []),
        ({"queues": ["else"]}, []),
        ({"namespace": "b"}, ["namespace"]),
        ({"namespace": "b", "queues": ["else"]}, []),
        ({"lease": 5.0}, ["lease"]),
        ({"lease": 5.0, "queues": ["else"]}, ["lease"]),
        ({"lease": 5.0, "queues": ["else"], "namespace": "b"}, []),
        ({"store": "redis://two/0", "namespace": "b"}, ["namespace", "store"]),
    ],
)
def test_what_neighbours_must_not_differ_in(other: dict[str, Any], named: list[str]) -> None:
    found = differences(OWN, {**OWN, **other})
    assert len(found) == len(named)
    assert all(f"but {name} is" in text for name, text in zip(named, found, strict=True))


def test_a_worker_says_that_another_of_its_queue_has_other_limits(scene: Scene) -> None:
    scene.configure()
    scene.start("threads")
    other = scene.start("threads", MINGLES, limits_namespace=f"{scene.key}.other", limits_lease=77.0)
    other.wait_for_log(f"both consume {scene.queue}, but namespace is '{scene.key}.other' here and '{scene.key}' there")
    other.wait_for_log("but lease is 77.0 here and 300.0 there")
    alike = scene.start("threads", MINGLES)
    alike.wait_for_log("mingle: sync complete")
    assert f"but namespace is '{scene.key}' here and '{scene.key}' there" not in alike.log


def test_a_worker_says_that_another_of_its_queue_has_no_limits(scene: Scene) -> None:
    """One whose app declares none and has no store; a worker that does not import the package replies the same."""
    scene.configure()
    plain = scene.start("threads", plain=True)
    limited = scene.start("threads", MINGLES)
    limited.wait_for_log(f"{plain.name} consumes {scene.queue} too, but without limits")


def removed(self: Any, key: str, name: str, how: str = "return") -> None:
    """A task that the worker does not have any more."""


@pytest.mark.own_broker
def test_a_parked_task_whose_name_is_gone_is_set_aside(scene: Scene, broker: RedisServer) -> None:
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}")
    scene.app.task(name="removed", bind=True, shared=False, limits=scene.app.tasks["early"].limits)(removed)
    worker = scene.start("threads")
    holder = scene.send("early", "holder")
    scene.wait_started("holder")
    gone = scene.send("removed", "gone")
    scene.wait_parked(1)
    scene.stage.open_all()
    holder.get()
    gone.wait(states.FAILURE)
    worker.wait_for_log("no task 'removed' here; its message is set aside")
    store = scene.limits.store
    client: Any = store.client
    (raw,) = wait_until(lambda: client.hvals(f"{store.prefix}aside"), "it is set aside")
    kept = json.loads(raw)
    assert kept["why"] == "unknown task"
    assert '"task": "removed"' in kept["message"]
    client.delete(f"{store.prefix}aside")
    assert scene.send("early", "next").get() is None
