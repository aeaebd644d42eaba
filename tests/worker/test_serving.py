"""The store knows which queues the live workers consume, and how many places their pools have."""

from __future__ import annotations

import signal

import pytest

from celery_limits.store.serving import queues_served
from tests.waiting import wait_until
from tests.worker.harness import Scene

pytestmark = pytest.mark.parametrize("transport", ["", "limits+"], ids=["redis", "own"])


def configure(scene: Scene, transport: str, **conf: float) -> None:
    url = scene.conf["broker_url"].removeprefix("limits+")
    scene.configure(broker_url=transport + url, **conf)


def wait_places(scene: Scene, places: int, queue: str = "") -> None:
    def found() -> int:
        served = queues_served(scene.limits.store).get(queue or scene.queue)
        return 0 if served is None else served.places

    wait_until(lambda: found() == places, f"{queue or scene.queue} has {places} places, not {found()}")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_places_follow_workers_that_come_and_go(scene: Scene, transport: str, pool: str) -> None:
    configure(scene, transport, limits_lease=3.0)
    first = scene.start(pool, concurrency=2)
    wait_places(scene, 2)
    second = scene.start(pool, concurrency=1)
    wait_places(scene, 3)
    first.stop()
    wait_places(scene, 1)
    third = scene.start(pool, concurrency=3)
    wait_places(scene, 4)
    third.kill()
    wait_places(scene, 1)
    second.stop()
    wait_places(scene, 0)


def test_places_follow_consumers_and_the_size_of_the_pool(scene: Scene, transport: str) -> None:
    configure(scene, transport)
    worker = scene.start("prefork", concurrency=2)
    control, to = scene.app.control, [worker.name]
    wait_places(scene, 2)
    control.add_consumer("other", destination=to, reply=True)
    wait_places(scene, 2, "other")
    control.pool_grow(2, destination=to, reply=True)
    wait_places(scene, 4)
    wait_places(scene, 4, "other")
    control.pool_shrink(1, destination=to, reply=True)
    wait_places(scene, 3)
    control.cancel_consumer("other", destination=to, reply=True)
    wait_places(scene, 0, "other")
    wait_places(scene, 3)


def test_places_follow_autoscale(scene: Scene, transport: str) -> None:
    configure(scene, transport)
    worker = scene.start("prefork", "--autoscale=3,1")
    wait_places(scene, 3)
    scene.app.control.autoscale(5, 1, destination=[worker.name], reply=True)
    wait_places(scene, 5)


def test_a_worker_that_stops_serves_nothing_while_its_last_body_runs(scene: Scene, transport: str) -> None:
    configure(scene, transport)
    worker = scene.start("prefork", concurrency=1)
    sent = scene.send("early", "last")
    scene.wait_started("last")
    worker.signal(signal.SIGTERM)
    wait_places(scene, 0)
    scene.stage.open("last")
    sent.get()
    worker.wait_gone()
