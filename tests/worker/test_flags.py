"""What a worker is told on its command line, what its banner says, and what it refuses to start with."""

from __future__ import annotations

import pytest

from celery_limits.store import Store
from tests.redis_server import RedisServer
from tests.worker.harness import Scene, celery_program

# Said to a program that must not come up; should it do so, it would be a worker on a queue that nobody uses.
REFUSED = ("worker", "-P", "solo", "-Q", "nowhere", "--without-mingle", "--without-gossip")


def test_flags_are_in_force_and_in_the_banner(redis_server: RedisServer, scene: Scene) -> None:
    """The configuration says otherwise, but nothing of it is used: neither its store nor its namespace."""
    scene.configure(limits_store_url="redis://localhost:1/0")
    flags = ("--limits-store", redis_server.url, "--limits-lease", "77", "--limits-namespace", "flagged")
    worker = scene.start("threads", *flags)
    for line in (f"store:       {redis_server.url}", "namespace:   flagged", "lease:       77 s", "limited:     "):
        assert line in worker.log
    scene.configure(limits_store_url=redis_server.url, limits_namespace="flagged")
    sent = scene.send("early", "it")
    scene.wait_started("it")
    with redis_server.client() as client:
        holders = Store(client, "flagged").status(scene.key).holders
    assert [party.task_id for party in holders] == [sent.id]
    scene.stage.open_all()
    sent.get()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--limits-lease", "-1"), "limits_lease = -1.0: Input should be greater than 0"),
        (("--limits-lease", "soon"), "'soon' is not a valid float"),
        (("--limits-store", "amqp://nobody@nowhere"), 'set limits_store_url = "redis://host:6379/0"'),
        (("--limits-namespace", "a{b"), "limits_namespace"),
    ],
)
def test_a_flag_that_can_t_be_used_is_refused(scene: Scene, flags: tuple[str, ...], said: str) -> None:
    done = celery_program(scene.conf, *REFUSED, *flags)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"limits_leese": 5}, "there is no setting limits_leese; did you mean limits_lease?"),
        ({"limits_leese": 5, "broker_url": "limits+redis://localhost:1/0"}, "Error: there is no setting limits_leese"),
        ({"broker_url": "limits+reddis://localhost:6379/0"}, "Error: there is no broker limits+reddis://; known are"),
        ({"broker_url": "limits+embedded://here"}, "limits+embedded://here: name a directory"),
    ],
)
def test_a_setting_that_can_t_be_used_is_refused(scene: Scene, setting: dict[str, object], said: str) -> None:
    done = celery_program({**scene.conf, "limits_store_url": None, **setting}, *REFUSED)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_deadlock_stops_the_worker_and_is_explained(scene: Scene) -> None:
    done = celery_program({**scene.conf, "crossing": True}, *REFUSED)
    assert done.returncode != 0
    assert "Error: limits: these limits can deadlock" in done.stderr
    assert "'there' takes 'left' before 'right'" in done.stderr
    assert "To get there, change 'back'." in done.stderr
    assert "Traceback" not in done.stderr
