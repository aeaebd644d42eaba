"""Workers and limits behind a sentinel: when the primary dies, both go on with the one that takes over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.waiting import wait_until
from tests.worker.harness import Scene
from tests.worker.lines import Line
from tests.worker.sentinels import NAME, Watched

pytestmark = [pytest.mark.own_broker, pytest.mark.long]

AGAIN = 60.0
"""Seconds in which sentinel, worker and store have found each other again."""


@pytest.fixture
def watched() -> Iterator[Watched]:
    with Watched() as watched:
        yield watched


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_failover_in_mid_run(watched: Watched, scene: Scene, pool: str) -> None:
    """A body runs and two wait for its slot: it ends, they follow in turn, and each has run once."""
    scene.configure(
        broker_url=f"limits+sentinel://127.0.0.1:{watched.port}",
        broker_transport_options={"master_name": NAME},
        limits_store_timeout=1.0,
    )
    worker = scene.start(pool)
    line = Line(scene, "late")
    assert "can't be reached" not in worker.log
    watched.fail_over()
    wait_until(lambda: worker.log.count("Connected to") >= 2, "the worker is connected again", within=AGAIN)
    wait_until(lambda: scene.limits.status(scene.key).waiting == 2, "the limits are there", within=AGAIN)
    assert [entry.name for entry in scene.stage.running(scene.key)] == ["first"]
    scene.stage.open_all()
    for sent in (line.first, line.second, line.third):
        sent.get(within=AGAIN)
    scene.send("plain", "afterwards").get(within=AGAIN)
    assert sorted(scene.stage.names()) == ["afterwards", "first", "second", "third"]
