"""The size WORKERS with real workers: the key is as large as the pools of the workers that consume its queue.

On our own transport what finds no place stands in line, where groups take turns, and not in the queue.
"""

from __future__ import annotations

import pytest

from celery_limits import WORKERS, Concurrency
from tests.waiting import wait_until
from tests.worker.harness import Scene, Sent

LEASE = 3.0


def tenant(key: str, name: str, how: str = "return") -> str:
    return name.partition("-")[0]


@pytest.fixture
def fair(scene: Scene) -> Scene:
    """On our own transport, in a namespace of its own."""
    url = scene.conf["broker_url"].removeprefix("limits+")
    scene.configure(broker_url=f"limits+{url}", limits_lease=LEASE)
    return scene


def send(scene: Scene, name: str, task: str = "early") -> Sent:
    return scene.send(task, name, limits=[Concurrency("{key}", WORKERS, fair_by=tenant)])


def running(scene: Scene) -> int:
    return len(scene.stage.running(scene.key))


def wait_running(scene: Scene, count: int) -> None:
    scene.sizes[scene.key] = max(count, scene.sizes.get(scene.key, 1))
    wait_until(lambda: running(scene) == count, f"{count} bodies run, not {running(scene)}")


def finish(scene: Scene, sent: list[Sent]) -> None:
    scene.stage.open_all()
    for one in sent:
        one.get()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_newcomer_starts_at_the_first_release_although_a_flood_is_in_the_queue(fair: Scene, pool: str) -> None:
    """Much of the flood is in the queue, or fetched, before the key is full; none of it passes the newcomer."""
    fair.sizes[fair.key] = 2
    fair.start(pool, concurrency=2)
    flood = [send(fair, f"a-{number}") for number in range(60)]
    wait_running(fair, 2)
    newcomer = send(fair, "b-0")
    before = [entry.name for entry in fair.stage.starts()]
    fair.stage.open(before[0])
    fair.wait_started("b-0")
    started = [entry.name for entry in fair.stage.starts()]
    assert started.index("b-0") == len(before), started
    finish(fair, [newcomer, *flood])


def test_with_no_worker_tasks_wait_and_start_with_the_first(fair: Scene) -> None:
    sent = [send(fair, f"{group}-{number}") for number in range(3) for group in "ab"]
    fair.wait_parked(6)
    fair.start("prefork", concurrency=2)
    wait_running(fair, 2)
    assert sorted(entry.name for entry in fair.stage.starts()) == ["a-0", "b-0"]
    finish(fair, sent)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_it_follows_a_worker_that_joins_and_one_that_is_killed(fair: Scene, pool: str) -> None:
    fair.start(pool, concurrency=2)
    sent = [send(fair, f"a-{number}", "late") for number in range(2)]
    wait_running(fair, 2)
    sent += [send(fair, f"a-{number}", "late") for number in range(2, 8)]
    fair.wait_parked(6)
    joins = fair.start(pool, concurrency=1)
    wait_running(fair, 3)
    assert fair.limits.status(fair.key).limit == 3
    joins.kill()
    wait_until(lambda: fair.limits.status(fair.key).limit == 2, "its places are gone")
    wait_running(fair, 2)
    finish(fair, sent)


def test_it_follows_autoscale(fair: Scene) -> None:
    worker = fair.start("prefork", "--autoscale=3,1")
    sent = [send(fair, f"a-{number}") for number in range(3)]
    wait_running(fair, 3)
    sent += [send(fair, f"a-{number}") for number in range(3, 6)]
    fair.app.control.autoscale(4, 1, destination=[worker.name], reply=True)
    wait_running(fair, 4)
    finish(fair, sent)


def test_another_broker_knows_the_places_too(scene: Scene) -> None:
    """There the gate asks where a place is free, so nothing waits; the size is right all the same."""
    scene.configure(broker_url=scene.conf["broker_url"].removeprefix("limits+"))
    scene.start("prefork", concurrency=2)
    sent = [send(scene, f"a-{number}") for number in range(4)]
    wait_running(scene, 2)
    assert scene.limits.status(scene.key).limit == 2
    finish(scene, sent)
