"""Fair shares in a real worker: groups take turns at a key, whichever way their tasks came there."""

from __future__ import annotations

from typing import Any

import pytest

from celery_limits import Concurrency, RateLimit
from tests.worker.harness import Scene

FLOOD = 200


@pytest.fixture(params=["prefork", "threads"])
def pool(request: pytest.FixtureRequest, scene: Scene) -> str:
    """A worker that other tests use as well."""
    return scene.share(request.param)


def tenant(key: str, name: str, how: str = "return") -> str:
    return name.partition("-")[0]


def one_at_once(**more: Any) -> dict[str, Any]:
    return {"limits": [Concurrency("{key}", 1, fair_by=tenant, **more)]}


def starts(scene: Scene) -> list[str]:
    """Whose bodies started, in turn."""
    return [entry.name for entry in scene.stage.starts()]


def test_a_newcomer_starts_at_the_first_release_behind_a_flood(scene: Scene, pool: str) -> None:
    holder = scene.send("early", "a-holder", **one_at_once())
    scene.wait_started("a-holder")
    flood = [scene.send("early.quick", f"a-{number}", **one_at_once()) for number in range(FLOOD)]
    scene.wait_parked(FLOOD)
    newcomer = scene.send("early.quick", "b-0", **one_at_once())
    scene.wait_parked(FLOOD + 1)
    (story,) = scene.limits.explain(newcomer.id).tickets
    assert "1 of 1 in the group 'b', whose turn is next" in str(story)
    scene.stage.open_all()
    for sent in (holder, newcomer, *flood):
        sent.get()
    assert starts(scene)[:2] == ["a-holder", "b-0"]


def test_tenants_take_turns(scene: Scene, pool: str) -> None:
    holder = scene.send("early", "a-holder", **one_at_once())
    scene.wait_started("a-holder")
    names = [f"{group}-{number}" for group in "abc" for number in range(5)]
    rest = [scene.send("early.quick", name, **one_at_once()) for name in names]
    scene.wait_parked(len(names))
    scene.stage.open_all()
    for sent in (holder, *rest):
        sent.get()
    assert [name[0] for name in starts(scene)[1:16]] == list("bca" * 5)


def test_at_a_rate_a_newcomer_is_served_at_once(scene: Scene, pool: str) -> None:
    limits: dict[str, Any] = {"limits": [RateLimit("rate:{key}", "10/s", fair_by=tenant)]}
    flood = [scene.send("rated", f"a-{number}", **limits) for number in range(20)]
    scene.wait_started("a-3")
    newcomer = scene.send("rated", "b-0", **limits)
    for sent in (newcomer, *flood):
        sent.get()
    order = starts(scene)
    assert order.index("b-0") < order.index("a-12")
