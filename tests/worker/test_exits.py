"""Every way a body ends by itself gives its slots back exactly once (guarantee 4), acknowledged early or late.

In each test a first task holds a key of one slot and two more wait at it. The first ends in the way under test; then
exactly one of the others starts. A slot that is not given back lets none start, one given back twice lets both.
"""

from __future__ import annotations

import pytest
from celery import VERSION, states

from tests.worker.harness import Scene
from tests.worker.lines import Line

POOLS = ("prefork", "threads", "gevent", "eventlet")

ENDS = {
    "return": states.SUCCESS,
    "fail": states.FAILURE,
    "ignore": states.PENDING,
    "reject": states.FAILURE if VERSION >= (5, 7) else states.PENDING,  # Celery tells since 5.7
    "replace": states.SUCCESS,
    "opaque": states.FAILURE,
}


@pytest.fixture(params=POOLS)
def pool(request: pytest.FixtureRequest, scene: Scene) -> str:
    """A worker that other tests use as well."""
    return scene.share(request.param)


@pytest.fixture(params=["early", "late"])
def acks(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("how", ENDS)
def test_it_ends(scene: Scene, pool: str, acks: str, how: str) -> None:
    line = Line(scene, acks, how)
    scene.stage.open("first")
    line.one_goes_on()
    line.first.wait(ENDS[how])
    assert len(scene.stage.starts("first")) == 1


@pytest.mark.parametrize("how", ["retry", "retry-later", "flaky"])
def test_it_is_retried(scene: Scene, pool: str, acks: str, how: str) -> None:
    line = Line(scene, f"{acks}.flaky", how)
    scene.stage.open("first")
    line.one_goes_on()
    line.first.wait(states.SUCCESS)
    assert [entry.more["retries"] for entry in scene.stage.starts("first")] == [0, 1]


def test_it_is_replaced_by_one_that_needs_the_same_slot(scene: Scene, pool: str, acks: str) -> None:
    line = Line(scene, acks, "replace-limited")
    scene.stage.open("first")
    line.one_goes_on()
    line.first.wait(states.SUCCESS)
    assert [entry.name for entry in scene.stage.starts()] == ["first", "second", "third", "replacement"]


def test_it_is_rejected_and_requeued(scene: Scene, pool: str) -> None:
    line = Line(scene, "late", "requeue")
    scene.stage.open("first")
    line.one_goes_on()
    line.first.wait(states.SUCCESS)
    assert len(scene.stage.starts("first")) == 2


def test_it_is_rejected_and_requeued_but_was_acknowledged(scene: Scene, pool: str) -> None:
    """Then there is nothing to put back; Celery drops it."""
    line = Line(scene, "early", "requeue")
    scene.stage.open("first")
    line.one_goes_on()
    assert len(scene.stage.starts("first")) == 1


# -- solo: its body stops the worker, so the others are still in their queue when it ends ------------------------------


@pytest.mark.parametrize("how", [*ENDS, "retry", "flaky"])
def test_it_ends_in_a_solo_worker(scene: Scene, acks: str, how: str) -> None:
    scene.share("solo")
    task = f"{acks}.flaky" if how in ("retry", "flaky") else acks
    first = scene.send(task, "first", how)
    scene.wait_started("first")
    others = [scene.send("early", name) for name in ("second", "third")]
    scene.stage.open_all()
    for sent in others:
        sent.get()
    first.wait(ENDS.get(how, states.SUCCESS))
    limited = [name for name in scene.stage.names() if name != "replacement"]  # which waits for nobody
    assert limited[:3] == ["first", "second", "third"]


def test_revoked_or_expired_while_a_solo_worker_is_busy(scene: Scene, acks: str) -> None:
    scene.share("solo")
    first = scene.send(acks, "first")
    scene.wait_started("first")
    revoked, expired = scene.send(acks, "revoked"), scene.send(acks, "expired", expires=0.001)
    last = scene.send(acks, "last")
    scene.app.control.revoke(revoked.id)
    scene.stage.open_all()
    for sent in (first, last):
        sent.get()
    for sent in (revoked, expired):
        sent.wait(states.REVOKED)
    assert list(scene.stage.names()) == ["first", "last"]
