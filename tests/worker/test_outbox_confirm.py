"""A RabbitMQ that takes a message and does not confirm it: nobody can know whether it has it, so it is sent again."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from tests.rabbit_node import RabbitNode
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import Scene, Sent, Worker
from tests.worker.rabbit import KINDS, Holder, conf_of

pytestmark = pytest.mark.own_broker

SILENCE = 60.0
"""Seconds in which the claimer gives up a broker that does not confirm; it is to do so in 5."""


@pytest.fixture(params=KINDS)
def worker(request: pytest.FixtureRequest, scene: Scene, node: RabbitNode, broker: RedisServer) -> Worker:
    """The only one, with a queue of its own."""
    kind: str = request.param
    queue = {"exchange": scene.key, "binding_key": scene.key, "queue_arguments": KINDS[kind]}
    mine: dict[str, Any] = {"task_queues": {scene.key: queue}, "task_default_queue": scene.key}
    scene.configure(**{**conf_of(kind, node, broker), **mine, "limits_namespace": scene.key})
    return scene.start("threads")


def parked(scene: Scene, name: str) -> tuple[Holder, Sent]:
    """One that waits for a slot; when that is let go, it is the worker's housekeeping that sends it back."""
    holder = Holder(scene)
    sent = scene.send("early.quick", name)
    scene.wait_parked()
    return holder, sent


def connections(worker: Worker, node: RabbitNode) -> set[int]:
    """By the worker's own ports."""
    found = psutil.Process(worker.pid).net_connections(kind="tcp")
    return {one.laddr.port for one in found if getattr(one.raddr, "port", 0) == node.port}


@pytest.mark.long
def test_what_is_not_confirmed_is_sent_again_and_runs_once(scene: Scene, node: RabbitNode, worker: Worker) -> None:
    holder, warm = parked(scene, "warm")
    holder.let_go()
    warm.get()  # so the outbox has its connection, and has declared the queue on it
    before = connections(worker, node)

    holder, sent = parked(scene, "it")
    node.pause()  # what is published now is in the node's socket, and the node does not answer
    try:
        holder.let_go()
        wait_until(lambda: connections(worker, node) - before, "another connection is tried", within=SILENCE)
        assert not scene.stage.starts("it")
    finally:
        node.resume()

    sent.get()
    scene.send("plain", "a task that passes behind both copies").get()
    scene.wait_quiet()
    assert len(scene.stage.starts("it")) == 1
