"""A worker on our own transport leaves nothing unacknowledged that it has done."""

from __future__ import annotations

import signal

import pytest
from celery import states
from celery.exceptions import TimeLimitExceeded

from tests.redis_server import RedisServer
from tests.store.cutting_proxy import cutting_proxy
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


def test_what_runs_out_of_time_in_a_warm_shutdown_is_acknowledged(scene: Scene, broker: RedisServer) -> None:
    """Its process must be gone before that, and nobody looks for it later: the timers have stopped by then."""
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}", task_acks_late=True)
    goes = scene.start("prefork", concurrency=1)
    sent = scene.send("late.stubborn", "one", time_limit=2)
    scene.wait_started("one")
    goes.signal(signal.SIGTERM)
    assert goes.wait_gone() == 0
    assert isinstance(sent.wait(states.FAILURE), TimeLimitExceeded)
    scene.stage.open_all()
    scene.start("prefork", concurrency=1)
    scene.send("late", "last").get()
    assert list(scene.stage.names()) == ["one", "last"]


def test_what_waits_for_the_store_does_not_keep_others_from_being_acknowledged(
    scene: Scene, broker: RedisServer
) -> None:
    """The store comes back while the worker shuts down: what was put off is not begun any more, and goes back."""
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}", task_acks_late=True)
    with cutting_proxy(broker.socket) as wire:
        goes = scene.start("threads", concurrency=2, limits_store_url=f"unix://{wire.path}")
        sent = [scene.send("free", "one", key="free")]
        scene.wait_started("one")
        wire.shut()
        goes.wait_for_log("limit store unreachable")
        sent.append(scene.send("late", "two"))
        goes.wait_for_log("Task late[")
        goes.signal(signal.SIGTERM)
        goes.wait_for_log("Warm shutdown")
        wire.reopen()
        goes.wait_for_log("the limit store is reachable again")
        scene.stage.open_all()
        goes.wait_gone()
        assert "Error on stopping" not in goes.log
    scene.start("threads")
    for each in sent:
        each.get()
    assert list(scene.stage.names()) == ["one", "two"]
