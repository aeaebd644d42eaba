"""What is ended from outside gives its slots back exactly once: revoked, expired, out of time, or its process killed.

Where a body is killed, the next one starts only when the first is dead: each body looks, when it starts, who else of
its key is alive, and the `scene` fixture fails the test if there was anyone.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any
from uuid import uuid4

import pytest
from celery import VERSION, states

from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import Scene
from tests.worker.lines import Line
from tests.worker.stage import unread

BOTH = ("prefork", "threads")
GREEN = ("gevent", "eventlet")
ALL = (*BOTH, *GREEN, "solo")


@pytest.fixture(params=["early", "late"])
def acks(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- before the body starts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [*BOTH, *GREEN])
def test_revoked_while_parked(scene: Scene, acks: str, pool: str) -> None:
    scene.share(pool)
    line = Line(scene, acks)
    fourth = scene.send(acks, "fourth")
    scene.wait_parked(3)
    scene.app.control.revoke(fourth.id)
    fourth.wait(states.REVOKED)
    scene.wait_parked(2)
    scene.stage.open("first")
    line.one_goes_on()
    assert not scene.stage.starts("fourth")


def test_revoked_by_a_stamp_while_parked(scene: Scene) -> None:
    scene.share("threads")
    line = Line(scene, "early")
    fourth = scene.send("early", "fourth", stamped_headers=["batch"], batch="unwanted")
    scene.wait_parked(3)
    scene.app.control.revoke_by_stamped_headers({"batch": ["unwanted"]})
    fourth.wait(states.REVOKED)
    scene.wait_parked(2)
    scene.stage.open("first")
    line.one_goes_on()
    assert not scene.stage.starts("fourth")


@pytest.mark.parametrize("pool", [*BOTH, *GREEN])
def test_expired_while_parked(scene: Scene, acks: str, pool: str) -> None:
    scene.share(pool)
    line = Line(scene, acks)
    fourth = scene.send(acks, "fourth", expires=0.3)
    fourth.wait(states.REVOKED)
    scene.wait_parked(2)
    scene.stage.open("first")
    line.one_goes_on()
    assert not scene.stage.starts("fourth")


@pytest.mark.parametrize("pool", ALL)
def test_revoked_and_expired_before_a_worker_is_up(scene: Scene, pool: str) -> None:
    scene.configure(limits_revoke_ttl=3600.0)  # however long the worker takes to start
    revoked = scene.send("late", "revoked")
    expired = scene.send("late", "expired", expires=0.001)
    scene.app.control.revoke(revoked.id)
    good = scene.send("late.quick", "good")
    scene.start(pool)
    good.get()
    revoked.wait(states.REVOKED)
    expired.wait(states.REVOKED)
    assert [entry.name for entry in scene.stage.starts()] == ["good"]
    scene.forget_revoked(revoked.id)


# -- while it runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_revoked_and_terminated(scene: Scene, acks: str, name: str) -> None:
    scene.share("prefork")
    line = Line(scene, acks)
    scene.app.control.revoke(line.first.id, terminate=True, signal=name)
    line.one_goes_on()
    line.first.wait(states.REVOKED)
    assert len(scene.stage.starts("first")) == 1


def test_terminated_but_it_does_not_heed(scene: Scene, acks: str) -> None:
    """The result says REVOKED at once; the slot is held for as long as the body is there."""
    scene.configure()
    scene.start("prefork")  # of its own: the pool remembers of a process that it was told to end
    line = Line(scene, f"{acks}.deaf")
    scene.app.control.revoke(line.first.id, terminate=True, signal="SIGTERM")
    line.first.wait(states.REVOKED)
    scene.send("plain", "a task that passes after the revoke").get()
    assert not scene.stage.starts("second")
    scene.stage.open("first-heeds")
    line.one_goes_on()


@pytest.mark.parametrize("pool", GREEN)
def test_terminated_in_a_green_pool(scene: Scene, acks: str, pool: str) -> None:
    scene.share(pool)
    line = Line(scene, acks)
    scene.app.control.revoke(line.first.id, terminate=True)
    line.one_goes_on()
    line.first.wait(states.REVOKED)


def test_soft_time_limit(scene: Scene, acks: str) -> None:
    scene.share("prefork")
    line = Line(scene, acks, soft_time_limit=4)
    line.one_goes_on()
    line.first.wait(states.FAILURE)
    assert [entry.name for entry in scene.stage.entries() if entry.what == "soft"] == ["first"]


@pytest.mark.parametrize("task", ["early", "late", "early.deaf", "late.deaf"])
def test_hard_time_limit(scene: Scene, task: str) -> None:
    """It gets SIGTERM, and SIGKILL soon after if it does not heed that."""
    scene.share("prefork")
    line = Line(scene, task, time_limit=4)
    line.one_goes_on()
    line.first.wait(states.FAILURE)


def test_hard_time_limit_in_a_green_pool(scene: Scene, acks: str) -> None:
    """Of the pools without processes only gevent's knows time limits."""
    scene.share("gevent")
    line = Line(scene, acks, time_limit=4)  # long enough to start, on a busy machine too
    line.one_goes_on()
    line.first.wait(states.FAILURE)


# -- its process goes --------------------------------------------------------------------------------------------


def test_its_process_is_killed(scene: Scene, acks: str) -> None:
    scene.share("prefork")
    line = Line(scene, acks)
    os.kill(scene.stage.starts("first")[0].pid, signal.SIGKILL)
    line.one_goes_on()
    line.first.wait(states.FAILURE)


@pytest.mark.parametrize("terminate", [True, False])
def test_revoked_and_its_process_dies_before_it_has_begun(
    scene: Scene, broker: RedisServer, acks: str, terminate: bool
) -> None:
    """The pool accepts it in its own name then, in order to end it: nothing of that process is to be waited for."""
    scene.configure(limits_store_url=broker.url)
    worker = scene.start("prefork", concurrency=1)
    (child,) = worker.children()
    os.kill(child, signal.SIGSTOP)
    first = scene.send(acks, "first")
    wait_until(lambda: unread(child), "the job has been sent to the process")
    arguments = {"task_id": first.id, "terminate": terminate, "signal": "SIGTERM"}
    scene.app.control.broadcast("revoke", arguments=arguments)
    worker.wait_for_log("Terminating" if terminate else "flagged as revoked")
    os.kill(child, signal.SIGKILL)
    first.wait("REVOKED")
    scene.stage.open_all()
    scene.send(acks, "second").get()
    assert list(scene.stage.names()) == ["second"]
    scene.wait_quiet()


def test_its_process_is_killed_and_it_is_requeued(scene: Scene) -> None:
    """`reject_on_worker_lost`: the message goes back, and runs again."""
    scene.share("prefork")
    line = Line(scene, "late.stubborn")
    os.kill(scene.stage.starts("first")[0].pid, signal.SIGKILL)
    line.one_goes_on()
    line.first.get()
    assert len(scene.stage.starts("first")) == 2


@pytest.mark.skipif(VERSION < (5, 7), reason="retry_on_worker_lost came with Celery 5.7")
def test_its_process_is_killed_and_it_is_retried(scene: Scene, acks: str) -> None:
    """`retry_on_worker_lost`: a new message, in its own turn."""
    scene.share("prefork")
    line = Line(scene, f"{acks}.retried")
    os.kill(scene.stage.starts("first")[0].pid, signal.SIGKILL)
    line.one_goes_on()
    line.first.get()
    assert [entry.more["retries"] for entry in scene.stage.starts("first")] == [0, 1]


@pytest.mark.parametrize("how", ["die", "exit"])
def test_it_ends_its_process(scene: Scene, acks: str, how: str) -> None:
    scene.share("prefork")
    line = Line(scene, acks, how)
    scene.stage.open("first")
    line.one_goes_on()
    if how == "die" or VERSION >= (5, 7):  # before, Celery leaves a body that exits without a result
        line.first.wait(states.FAILURE)


# -- it has run before -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", BOTH)
def test_skipped_since_its_success_is_known(scene: Scene, pool: str) -> None:
    """`worker_deduplicate_successful_tasks`: it gets its slot, there is no body to run, and the slot is free again."""
    scene.configure(worker_deduplicate_successful_tasks=True)
    client: Any = scene.limits.store.client
    sent = scene.send("late.quick", "it")
    again = json.loads(client.lindex(scene.key, 0))
    again["properties"]["delivery_tag"] = uuid4().hex
    again["properties"]["delivery_info"]["redelivered"] = True
    worker = scene.start(pool)
    sent.get()
    wait_until(lambda: not scene.left(), "it is over")
    client.lpush(scene.key, json.dumps(again))
    worker.wait_for_log(f"[{sent.id}] received", times=2)
    scene.send("late.quick", "afterwards").get()
    assert list(scene.stage.names()) == ["it", "afterwards"]
