"""`celery control revoke` and its kin reach a task that waits for its limits, through any worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import states

from tests.redis_server import RedisServer
from tests.worker.harness import Scene, celery_program

COMMANDS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "revoke": lambda task_id: ("revoke", task_id),
    "terminate": lambda task_id: ("terminate", "KILL", task_id),
    "stamped": lambda _: ("revoke_by_stamped_headers", "batch=unwanted"),
}


@pytest.mark.own_broker
@pytest.mark.parametrize(("url", "pool"), [("redis", "prefork"), ("limits+redis", "threads")])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_program_ends_what_is_parked(
    scene: Scene, broker: RedisServer, command: str, url: str, pool: str
) -> None:
    """While the holder runs on, so nothing but the command can have ended it."""
    scene.configure(broker_url=f"{url}+socket://{broker.socket}")
    scene.start(pool)
    scene.send("early", "holder")
    scene.wait_started("holder")
    parked = scene.send("early", "parked", stamped_headers=["batch"], batch="unwanted")
    scene.wait_parked(1)
    done = celery_program(scene.conf, "control", "--timeout", "10", *COMMANDS[command](parked.id))
    assert done.returncode == 0, done.stderr
    scene.wait_parked(0)
    parked.wait(states.REVOKED)
    scene.stage.open_all()
    scene.wait_ended("holder")
    assert list(scene.stage.names()) == ["holder"]
