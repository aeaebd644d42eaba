"""A worker on our own transport leaves nothing unacknowledged that it has done."""

from __future__ import annotations

import signal

import pytest

from tests.redis_server import RedisServer
from tests.worker.harness import Scene

pytestmark = pytest.mark.own_broker


@pytest.mark.parametrize("task", ["late", "free"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_ends_in_a_warm_shutdown_is_acknowledged(scene: Scene, broker: RedisServer, pool: str, task: str) -> None:
    """The event loop, which brings acknowledgements on their way, has stopped by then."""
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}", task_acks_late=True)
    names = ["one", "two", "three"]
    goes = scene.start(
        pool, concurrency=3, worker_prefetch_multiplier=1
    )  # it has all that it may have: no more fetches
    sent = [scene.send(task, name, key=name) for name in names]
    for name in names:
        scene.wait_started(name)
    goes.signal(signal.SIGTERM)
    goes.wait_for_log("Warm shutdown")
    scene.stage.open(*names, "last")
    assert goes.wait_gone() == 0
    for each in sent:
        each.get()
    scene.start(pool)
    scene.send(task, "last").get()
    assert sorted(scene.stage.names()) == sorted([*names, "last"])
