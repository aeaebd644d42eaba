"""What a worker tells those who ask it, and its log, whatever happens to its connections: never with a password."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import LEASE, Scene, celery_program

SECRET = "s3cr3t"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def login(server: RedisServer) -> str:
    with server.client() as client:
        rights: dict[str, Any] = {"keys": ["*"], "channels": ["*"], "commands": ["+@all"]}
        client.acl_setuser("guest", enabled=True, passwords=[f"+{SECRET}"], **rights)
    return f"guest:{SECRET}@{server.socket}"


@pytest.mark.parametrize("kind", ["own", "store"])
def test_neither_answers_nor_the_log_have_it(scene: Scene, server: RedisServer, kind: str) -> None:
    """On our own transport, and with a store beside another broker; the broker has an alternate with a password."""
    broker = f"redis+socket://{login(server)}"
    conf: dict[str, Any] = {"broker_url": f"limits+{broker}", "limits_store_url": None}
    if kind == "store":
        conf = {"broker_url": broker, "limits_store_url": f"unix://{login(server)}"}
    options = {"sentinel_kwargs": {"password": SECRET}, "extra": [f"redis://:{SECRET}@elsewhere"]}
    scene.configure(**conf, broker_transport_options=options, limits_lease=LEASE, broker_connection_max_retries=100)
    worker = scene.start("threads")
    inspect = scene.app.control.inspect([worker.name], timeout=20)
    stats = inspect.stats()[worker.name]
    assert stats["broker"]["transport"] in ("limits", "redis")
    assert stats["broker"]["userid"] in ("guest", None)
    told = [stats, inspect.conf(with_defaults=True), inspect.report(), inspect.limits(), inspect.query_task("x")]
    assert all(told)
    for command in (["inspect", "stats", "--json"], ["report"], ["limits", "check"], ["limits", "list", "--json"]):
        done = celery_program(scene.conf, *command)
        told += [done.stdout, done.stderr]
    assert "guest:" in repr(told[-4:]), "the store is named by its URL"
    assert [told for told in map(repr, told) if SECRET in told] == []

    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "USER", "guest")
        worker.wait_for_log("Connection to broker lost")
        worker.wait_for_log("Connected to", times=2)
        wait_until(lambda: client.pubsub_numpat() >= 1, "the worker is in its loop again, and listens to commands")
    server.kill()
    worker.wait_for_log("Cannot connect to")
    wait_until(lambda: "limits: limit store unreachable" in worker.log, "the store is missed")
    worker.kill()
    assert SECRET not in worker.log


@pytest.fixture(autouse=True)
def _shared_store_is_left_alone(scene: Scene) -> Iterator[None]:
    """The scene looks for leftovers in the store of its app: by then the one of the session again."""
    app, limits = scene.app, scene.limits
    yield
    scene.app, scene.limits = app, limits
