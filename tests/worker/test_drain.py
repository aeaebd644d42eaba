"""An app leaves: what its limited workers had in the store runs on plain Celery, once each and in order per key."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_limits.app.drain import count
from tests.rabbit_node import RabbitNode
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import Scene, celery_program

LEASE = 3.0
PLAIN = Path(__file__).parent / "plain_app.py"


@contextmanager
def plain_worker(scene: Scene, broker: str, tmp_path: Path) -> Iterator[Path]:
    """Its ledger."""
    ledger, log = tmp_path / "plain-ledger", tmp_path / "plain.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(PLAIN), broker, scene.queue, str(ledger)], cwd="/", stdout=out, stderr=out
        )
        try:
            yield ledger
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            if not ledger.exists():
                print(log.read_text())


def ran(ledger: Path) -> list[tuple[str, str]]:
    """Key and name of each body, in the order in which they ran."""
    text = ledger.read_text() if ledger.exists() else ""
    return [(line.split()[1], line.split()[2]) for line in text.splitlines()]


@pytest.mark.own_broker
@pytest.mark.parametrize("leaving", ["stopped", "killed"])
def test_parked_granted_and_delayed_run_on_plain_celery(
    scene: Scene, broker: RedisServer, tmp_path: Path, leaving: str
) -> None:
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}", limits_lease=LEASE)
    workers = [scene.start("prefork", concurrency=2) for _ in range(2)]
    keys = ("a", "b", "c")
    names = [f"n{n:03}" for n in range(100)]
    for key in keys:
        scene.send("early", f"holder-{key}", key=key)
        scene.wait_started(f"holder-{key}")
    for name in names:
        for key in keys:
            scene.send("early", name, key=key)
    for n in range(20):
        scene.send("plain", f"later{n:02}", countdown=8.0 + n / 10)
    refused = celery_program(scene.conf, "limits", "drain")
    assert (refused.returncode, "limited workers run" in refused.stderr) == (1, True), refused.stderr
    if leaving == "killed":
        for worker in workers:
            worker.kill()
    else:
        for worker in workers:
            worker.signal(signal.SIGTERM)
        scene.stage.open_all()
        for worker in workers:
            worker.wait_gone()
    begun = [(entry.key, entry.name) for entry in scene.stage.starts()]
    wait_until(lambda: "lease" not in celery_program(scene.conf, "limits", "drain").stderr, "the leases lapse")
    assert sum(count(scene.limits).values()) == 0
    with plain_worker(scene, f"redis+socket://{broker.socket}", tmp_path) as ledger:
        expected = len(keys) * len(names) + 20 - sum(1 for _, name in begun if name.startswith("n"))
        wait_until(lambda: len(ran(ledger)) >= expected, f"{expected} run, not {len(ran(ledger))}", within=60)
    found = [(key, name) for key, name in ran(ledger) if not name.startswith("holder")]
    assert len(found) == len({*found}) == expected
    for key in keys:
        mine = [name for where, name in begun + found if where == f"{scene.key}:{key}" and name.startswith("n")]
        assert mine == names
    assert sorted(name for _, name in found if name.startswith("later")) == [f"later{n:02}" for n in range(20)]


def leave_behind(scene: Scene, tmp_path: Path, plain_url: str) -> None:
    """Through another broker than our own transport."""
    worker = scene.start("prefork", concurrency=2)
    scene.send("late", "holder")
    scene.wait_started("holder")
    names = [f"n{n:02}" for n in range(30)]
    for name in names:
        scene.send("late", name)
    scene.wait_parked(len(names))
    # A message is parked before it is acknowledged: once the event loop has answered twice it has done both, so that
    # the broker delivers none of them again when the worker is killed.
    for _ in range(2):
        assert scene.limits.app.control.ping(timeout=20, limit=1)
    worker.kill()
    wait_until(lambda: "lease" not in celery_program(scene.conf, "limits", "drain").stderr, "the lease lapses")
    assert sum(count(scene.limits).values()) == 0
    with plain_worker(scene, plain_url, tmp_path) as ledger:
        wait_until(lambda: len([name for _, name in ran(ledger) if name in names]) >= len(names), "all run")
    assert [name for _, name in ran(ledger) if name in names] == names


def test_on_another_broker(scene: Scene, broker: RedisServer, tmp_path: Path) -> None:
    url = f"redis+socket://{broker.socket}"
    scene.configure(broker_url=url, limits_lease=LEASE)
    leave_behind(scene, tmp_path, url)
    with broker.client() as client:
        client.delete("unacked", "unacked_index")  # of the worker that was killed: kombu would restore it in an hour


def test_on_rabbitmq(scene: Scene, node: RabbitNode, broker: RedisServer, tmp_path: Path) -> None:
    scene.configure(broker_url=f"limits+{node.url}", limits_store_url=f"unix://{broker.socket}", limits_lease=LEASE)
    leave_behind(scene, tmp_path, node.url)
