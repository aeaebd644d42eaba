"""Floating limits in real workers: a size that is looked up anew counts at once, with no body ending for it.

Refreshes run one at a time however many workers there are, and one that fails changes nothing.
"""

from __future__ import annotations

import pytest

from celery_limits import FloatingConcurrency
from tests.waiting import wait_until
from tests.worker.harness import Scene, Sent
from tests.worker.sizes import hold, look_ups, set_size

MOST = 3


@pytest.fixture(autouse=True)
def quickly(scene: Scene) -> None:
    """A size that nobody asks for is soon forgotten, so that all is soon quiet; an answer is not awaited for long."""
    scene.configure(limits_place_ttl=1.0)
    scene.sizes[scene.key] = MOST


def wait_refreshed(scene: Scene, times: int = 1) -> None:
    """Until so many refreshes have begun from now on and the store knows their answers: another has begun or ended."""
    enough = len(look_ups(scene.stage)) + 2 * times + 2
    wait_until(lambda: len(look_ups(scene.stage)) >= enough, f"{times} refreshes")


def send_four(scene: Scene) -> list[Sent]:
    return [scene.send("floating", f"task{number}") for number in range(4)]


def wait_running(scene: Scene, count: int) -> None:
    """Of four that were sent, and of which none has ended."""
    wait_until(lambda: len(scene.stage.running(scene.key)) >= count, f"{count} start")
    scene.wait_parked(4 - count)
    assert len(scene.stage.running(scene.key)) == count
    assert scene.stage.ends() == []


def finish(scene: Scene, sent: list[Sent]) -> None:
    scene.stage.open_all()
    for one in sent:
        one.get()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_growth_starts_more_with_no_completion(scene: Scene, pool: str) -> None:
    set_size(scene.stage, 1)
    scene.start(pool)
    sent = send_four(scene)
    wait_running(scene, 1)
    set_size(scene.stage, MOST)
    wait_running(scene, MOST)
    finish(scene, sent)


def test_nothing_runs_before_the_first_answer(scene: Scene) -> None:
    set_size(scene.stage, 0)
    scene.start("threads")
    closed = FloatingConcurrency(scene.key, default=0, refresh="tests.worker.sizes:size_of", every=0.5)
    sent = [scene.send("floating", f"task{number}", limits=[closed]) for number in range(4)]
    wait_refreshed(scene)
    wait_running(scene, 0)
    set_size(scene.stage, 2)
    wait_running(scene, 2)
    finish(scene, sent)


def test_shrinking_ends_nothing_and_starts_nothing(scene: Scene) -> None:
    set_size(scene.stage, MOST)
    scene.start("prefork")
    sent = send_four(scene)
    wait_running(scene, MOST)
    set_size(scene.stage, 1)
    wait_refreshed(scene)
    scene.stage.open("task0", "task1")
    wait_until(lambda: len(scene.limits.status(scene.key).holders) == 1, "two have given back")
    wait_refreshed(scene)
    assert len(scene.stage.starts()) == MOST
    scene.stage.open("task2")
    scene.wait_started("task3")
    finish(scene, sent)


def test_a_failure_keeps_the_size(scene: Scene) -> None:
    set_size(scene.stage, 2)
    scene.start("prefork")
    sent = send_four(scene)
    wait_running(scene, 2)
    set_size(scene.stage, "unknown")
    wait_refreshed(scene)
    assert len(scene.stage.starts()) == 2
    scene.stage.open("task0")
    scene.wait_started("task2")
    set_size(scene.stage, MOST)
    scene.wait_started("task3")
    assert len(scene.stage.ends()) == 1
    finish(scene, sent)


def test_one_refresh_at_a_time_across_workers(scene: Scene) -> None:
    """While one does not answer, nobody else is asked, although the size is stale; afterwards they take turns."""
    scene.configure(limits_place_ttl=1.0)
    set_size(scene.stage, MOST)
    hold(scene.stage)
    both = [scene.launch("prefork"), scene.launch("threads")]
    for worker in both:
        worker.wait_ready()
    sent = send_four(scene)
    wait_until(lambda: look_ups(scene.stage), "one is asked")
    scene.send("plain", "meanwhile", countdown=1.5).get()  # three times as long as a size is fresh
    assert [entry.what for entry in look_ups(scene.stage)] == ["asked"]
    wait_running(scene, 1)
    scene.stage.open("refresh")
    wait_running(scene, MOST)
    wait_refreshed(scene, 2)
    finish(scene, sent)
    found = [entry.what for entry in look_ups(scene.stage)]
    assert found == ["asked", "answers"] * (len(found) // 2)
