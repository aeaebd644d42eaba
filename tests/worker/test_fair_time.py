"""Fair shares in a real worker are shares of slot time, whatever the bodies take.

What a group holds is read from the store, many times a second, while every group waits for more.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from celery_limits import Concurrency
from tests.waiting import wait_until
from tests.worker.harness import Scene, Sent

SLOTS = 4
BETWEEN_LOOKS = 0.01
FIRST_MOMENTS = 0.5
"""Longer than the longest body takes."""


@pytest.fixture(params=["prefork", "threads"])
def pool(request: pytest.FixtureRequest, scene: Scene) -> str:
    """It has more places than the key has slots: where the transport is another one, what waits must come to the gate
    to stand in line."""
    scene.configure()
    scene.start(request.param, concurrency=SLOTS + 2)
    scene.sizes[scene.key] = SLOTS
    return str(request.param)


def tenant(key: str, name: str, how: str = "0") -> str:
    return name.partition("-")[0]


def share_of(key: str, name: str, how: str = "0") -> float:
    return 3.0 if tenant(key, name) == "gold" else 1.0


def shared(**more: Any) -> dict[str, Any]:
    return {"limits": [Concurrency("{key}", SLOTS, fair_by=tenant, **more)]}


def send_all(scene: Scene, group: str, count: int, seconds: float, **options: Any) -> list[Sent]:
    return [scene.send("timed", f"{group}-{number}", str(seconds), **options) for number in range(count)]


def slot_time(scene: Scene, *groups: str, within: float = 20.0) -> dict[str, float]:
    """Slots times seconds that each group has held, while all of them wait; but for the first moments, in which what
    was there before the others still runs."""
    held = dict.fromkeys(groups, 0.0)

    def look() -> dict[str, Any]:
        return {group.group: group for group in scene.limits.status(scene.key).groups}

    def all_wait(found: dict[str, Any]) -> bool:
        return all(group in found and found[group].waiting for group in groups)

    wait_until(lambda: all_wait(look()), f"{groups} wait")
    time.sleep(FIRST_MOMENTS)
    last, until = time.monotonic(), time.monotonic() + within
    while all_wait(found := look()) and last < until:
        now = time.monotonic()
        for group in groups:
            held[group] += found[group].held * (now - last)
        last = now
        time.sleep(BETWEEN_LOOKS)
    return held


def test_equal_shares_are_equal_slot_time_with_bodies_that_differ_twentyfold(scene: Scene, pool: str) -> None:
    sent = [*send_all(scene, "slow", 24, 0.4, **shared()), *send_all(scene, "fast", 240, 0.02, **shared())]
    held = slot_time(scene, "slow", "fast")
    assert sum(held.values()) > SLOTS, "too short to tell"
    assert 1 / 1.1 <= held["slow"] / held["fast"] <= 1.1, held
    for one in sent:
        one.get()


def test_three_to_one_is_three_to_one(scene: Scene, pool: str) -> None:
    options = shared(share=share_of)
    sent = [*send_all(scene, "plain", 40, 0.1, **options), *send_all(scene, "gold", 120, 0.1, **options)]
    held = slot_time(scene, "plain", "gold")
    assert sum(held.values()) > SLOTS, "too short to tell"
    assert 3 / 1.1 <= held["gold"] / held["plain"] <= 3 * 1.1, held
    for one in sent:
        one.get()


def test_one_tenant_alone_uses_all_slots(scene: Scene, pool: str) -> None:
    limits = shared()
    sent = [scene.send("early", f"only-{number}", **limits) for number in range(SLOTS + 2)]
    wait_until(lambda: len(scene.stage.running(scene.key)) == SLOTS, "as many bodies run as there are slots")
    scene.stage.open_all()
    for one in sent:
        one.get()


def test_the_slots_of_one_who_ends_go_to_others_at_once(scene: Scene, pool: str) -> None:
    """Nothing is kept free for a group that has nothing to do."""
    sent = [scene.send("early", f"short-{number}", **shared()) for number in range(2)]
    scene.wait_started("short-1")
    sent += [scene.send("early", f"long-{number}", **shared()) for number in range(4)]
    scene.wait_started("long-1")
    scene.wait_parked(2)
    scene.stage.open("short-0", "short-1")
    scene.wait_started("long-2")
    scene.wait_started("long-3")
    scene.stage.open_all()
    for one in sent:
        one.get()
