"""Celery's borders on RabbitMQ with the store in a Redis: limits of one call, ends in the store, retries, commands.

The same is tested on Redis in `test_call_limits`, `test_report_end`, `test_retry_waits` and `test_revoke_command`.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import states
from celery.exceptions import TaskRevokedError

from celery_limits import Concurrency
from tests.rabbit_node import RabbitNode
from tests.redis_server import RedisServer
from tests.worker.harness import Scene, celery_program
from tests.worker.rabbit import conf_of

pytestmark = pytest.mark.own_broker
SHAPES: dict[str, dict[str, Any]] = {
    "json": {},
    "pickle": {"task_serializer": "pickle"},
    "yaml, gzip": {"task_serializer": "yaml", "task_compression": "gzip"},
}


@pytest.fixture
def on(scene: Scene, node: RabbitNode, broker: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("C_FORCE_ROOT", "1")  # pickle
    conf = conf_of("classic", node, broker)
    queue = {scene.key: {"exchange": scene.key, "binding_key": scene.key}}
    own = {"limits_namespace": scene.key, "task_queues": queue, "task_default_queue": scene.key}
    scene.configure(**{**conf, **own, "accept_content": ["json", "pickle", "yaml"]})
    return scene


def _reconfigure(scene: Scene, **conf: Any) -> None:
    scene.configure(**{**scene.conf, **conf})


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("task", ["free", "free.late"])
def test_the_limits_of_a_call_survive_its_retry(on: Scene, pool: str, task: str) -> None:
    on.start(pool)
    one = [Concurrency("{key}", 1)]
    first = on.send(task, "first", "retry", limits=one)
    on.wait_started("first")
    second = on.send(task, "second", limits=one)
    on.wait_parked(1)
    on.stage.open("first")
    on.wait_started("second")
    on.wait_parked(1)
    on.stage.open_all()
    second.get()
    first.get()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_what_ends_in_the_store_is_reported(on: Scene, shape: dict[str, Any]) -> None:
    _reconfigure(on, **shape)
    on.start("prefork")
    on.send("early", "holder")
    on.wait_started("holder")
    expired, revoked = on.send("early", "expired", expires=2.0), on.send("early", "revoked")
    on.wait_parked(2)
    on.app.control.revoke(revoked.id)
    for sent in (revoked, expired):
        sent.wait(states.REVOKED)
    on.stage.open_all()
    on.wait_ended("holder")
    assert list(on.stage.names()) == ["holder"]


def test_who_waits_for_an_rpc_result_hears_of_its_end(on: Scene) -> None:
    _reconfigure(on, result_backend="rpc://")
    on.start("threads")
    on.send("early", "holder")
    on.wait_started("holder")
    sent = on.app.tasks["early"].apply_async(kwargs={"key": on.key, "name": "revoked"}, queue=on.queue)
    on.wait_parked(1)
    on.app.control.revoke(sent.id)
    with pytest.raises(TaskRevokedError):
        sent.get(timeout=20)
    on.stage.open_all()
    on.wait_ended("holder")


@pytest.mark.parametrize("trust", [True, False])
def test_a_retry_waits_where_a_newcomer_is_discarded(on: Scene, trust: bool) -> None:
    _reconfigure(on, limits_trust_headers=trust)
    on.start("prefork")
    first = on.send("picky", "first", "retry-later")
    on.wait_started("first")
    on.send("picky", "newcomer").wait(states.REVOKED)
    other = on.send("early", "other")
    on.wait_parked(1)
    on.stage.open("first")
    on.wait_started("other")
    on.wait_parked(1)
    on.stage.open_all()
    first.get()
    other.get()
    assert len(on.stage.starts("first")) == 2


def test_the_command_revoke_ends_what_is_parked_and_the_log_says_its_place(on: Scene) -> None:
    worker = on.start("prefork")
    on.send("early", "holder")
    on.wait_started("holder")
    parked = on.send("early", "parked")
    on.wait_parked(1)
    worker.wait_for_log(f"limits: early[{parked.id}] parked at '{on.key}', 1st of 1")
    done = celery_program(on.conf, "control", "--timeout", "10", "revoke", parked.id)
    assert done.returncode == 0, done.stderr
    parked.wait(states.REVOKED)
    on.stage.open_all()
    on.wait_ended("holder")
