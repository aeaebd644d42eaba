"""A retry is not a newcomer: neither a busy `discard` key nor a full line ends a task that has begun."""

from __future__ import annotations

import pytest
from celery import states

from tests.redis_server import RedisServer
from tests.worker.harness import Scene

pytestmark = pytest.mark.own_broker


@pytest.fixture(params=["redis", "limits+redis"])
def on(scene: Scene, broker: RedisServer, request: pytest.FixtureRequest) -> Scene:
    scene.configure(broker_url=f"{request.param}+socket://{broker.socket}")
    return scene


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("how", ["retry", "retry-later"])
def test_a_retry_waits_where_a_newcomer_is_discarded(on: Scene, pool: str, how: str) -> None:
    on.start(pool)
    first = on.send("picky", "first", how)
    on.wait_started("first")
    on.send("picky", "newcomer").wait(states.REVOKED)
    if how == "retry":  # its retry meets its own slot, which is free when the first body has ended
        on.stage.open("first")
        first.get()
    else:
        other = on.send("early", "other")
        on.wait_parked(1)
        on.stage.open("first")
        on.wait_started("other")
        on.wait_parked(1)
        on.stage.open("other")
        first.get()
        other.get()
    assert len(on.stage.starts("first")) == 2


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_retry_that_waits_takes_no_place_from_a_newcomer(on: Scene, pool: str) -> None:
    """`short` lets one wait: a retry in the line does not count."""
    on.start(pool)
    first = on.send("short", "first", "retry")
    on.wait_started("first")
    second = on.send("short", "second")
    on.wait_parked(1)
    on.stage.open("first")
    on.wait_started("second")
    on.wait_parked(1)
    third = on.send("short", "third")
    on.wait_parked(2)
    on.send("short", "fourth").wait(states.REVOKED)
    on.stage.open_all()
    for sent in (first, second, third):
        sent.get()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("task", ["picky", "short"])
def test_a_retry_is_none_the_less_one_where_headers_are_not_trusted(
    scene: Scene, broker: RedisServer, pool: str, task: str
) -> None:
    """The body of the task proves that it has begun. Whoever only claims it is a newcomer: `retries` is any number."""
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}", limits_trust_headers=False)
    scene.start(pool)
    first = scene.send(task, "first", "retry-later")
    scene.wait_started("first")
    other = scene.send("early", "other")
    scene.wait_parked(1)
    scene.send(task, "forged", retries=7).wait(states.REVOKED)
    scene.stage.open("first")
    scene.wait_started("other")
    scene.wait_parked(1)
    scene.stage.open_all()
    first.get()
    other.get()
    assert len(scene.stage.starts("first")) == 2
    assert not scene.stage.starts("forged")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_retry_joins_a_line_that_is_full(on: Scene, pool: str) -> None:
    on.start(pool)
    first = on.send("short", "first", "retry")
    on.wait_started("first")
    second = on.send("short", "second")
    on.wait_parked(1)
    on.send("short", "newcomer").wait(states.REVOKED)
    on.stage.open("first")
    on.wait_started("second")
    on.wait_parked(1)
    on.stage.open_all()
    second.get()
    first.get()
    assert not on.stage.starts("newcomer")
