"""The limits of one call stay with the task until it ends: through retries, `replace`, canvas steps and redelivery."""

from __future__ import annotations

from typing import Any

import pytest

from celery_limits import Concurrency
from tests.redis_server import RedisServer
from tests.worker.harness import Scene, Sent

BROKERS = ["redis", "limits+redis"]


@pytest.fixture(params=BROKERS)
def on(scene: Scene, broker: RedisServer, request: pytest.FixtureRequest) -> Scene:
    scene.configure(broker_url=f"{request.param}+socket://{broker.socket}")
    return scene


def call(scene: Scene, task: str, name: str, how: str, **options: Any) -> Sent:
    """A call under a limit of its own, at the key that the scene checks."""
    return scene.send(task, name, how, limits=[Concurrency("{key}", 1)], **options)


@pytest.mark.own_broker
@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("how", ["retry", "flaky", "replace-limited", "replace"])
def test_the_limits_of_a_call_survive_its_retries(on: Scene, pool: str, how: str) -> None:
    """`free` declares no limits, so a retry without the call's would run beside the holder."""
    on.start(pool)
    task = "free.flaky" if how == "flaky" else "free"
    first = call(on, task, "first", how)
    on.wait_started("first")
    second = call(on, task, "second", "return")
    on.wait_parked(1)
    on.stage.open("first")
    on.wait_started("second")  # the slot of the first body is free, and the retry queues up behind
    on.wait_parked(1)
    on.stage.open_all()
    second.get()
    first.get()


@pytest.mark.own_broker
def test_a_limit_of_one_call_bounds_every_retry_of_many(on: Scene) -> None:
    """Four calls that retry twice each never run two at once: `scene` checks the ledger when the test ends."""
    on.start("prefork")
    on.stage.open_all()
    calls = [call(on, "free.flaky", f"n{n}", "flaky") for n in range(4)]
    for one in calls:
        one.get()
    assert len(on.stage.starts()) == 8


@pytest.mark.own_broker
def test_a_call_that_declares_less_than_its_task_keeps_that_without_trust(scene: Scene, broker: RedisServer) -> None:
    """`pair` allows two. The call asks for one, which an untrusted header may."""
    scene.configure(limits_trust_headers=False, broker_url=f"limits+redis+socket://{broker.socket}")
    scene.sizes[scene.key] = 2
    scene.start("prefork")
    other = scene.send("pair", "other")
    scene.wait_started("other")
    lowered = call(scene, "pair", "lowered", "retry")
    scene.wait_parked(1)
    scene.stage.open("other", "lowered")
    other.get()
    scene.wait_started("lowered")
    lowered.get()
    blocker = scene.send("pair", "blocker")
    scene.wait_started("blocker")
    late = call(scene, "pair", "late", "retry")
    scene.wait_parked(1)
    scene.stage.open_all()
    blocker.get()
    late.get()
