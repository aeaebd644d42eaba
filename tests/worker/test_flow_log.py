"""A worker's log says who is parked, resumed and discarded; and says little under a flood."""

from __future__ import annotations

import logging
import re

import pytest
from celery import states
from freezegun import freeze_time

from celery_limits.worker.flow_log import LINES, SECONDS, Bounded, ordinal
from tests.redis_server import RedisServer
from tests.worker.harness import Scene


@pytest.mark.own_broker
@pytest.mark.parametrize("url", ["redis", "limits+redis"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_parked_resumed_and_discarded_are_logged_with_their_keys(
    scene: Scene, broker: RedisServer, pool: str, url: str
) -> None:
    scene.configure(broker_url=f"{url}+socket://{broker.socket}")
    worker = scene.start(pool)
    scene.send("early", "holder")
    scene.wait_started("holder")
    parked = scene.send("early", "parked")
    scene.wait_parked(1)
    if url == "redis":  # else its publisher has put it straight into the line
        worker.wait_for_log(f"limits: early[{parked.id}] parked at '{scene.key}', 1st of 1")
    discarded = scene.send("picky", "discarded")
    discarded.wait(states.REVOKED)
    worker.wait_for_log(f"limits: picky[{discarded.id}] discarded: '{scene.key}' is full (on_full='discard')")
    scene.stage.open_all()
    parked.get()
    worker.wait_for_log(f"early[{parked.id}] resumed after")
    assert re.search(rf"early\[{parked.id}\] resumed after \d+\.\d s at '{scene.key}'", worker.log)
    holder = scene.stage.starts("holder")[0].task_id
    assert f"early[{holder}] resumed" not in worker.log


def test_a_place_is_written_as_people_say_it() -> None:
    said = [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111, 1003)]
    assert said == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th", "1003rd"]


def test_a_flood_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bounded = Bounded("parked")
    with freeze_time() as clock:
        for number in range(LINES + 1000):
            bounded.say("line %d", number)
        assert [record.message for record in caplog.records] == [f"line {number}" for number in range(LINES)]
        clock.tick(SECONDS)
        caplog.clear()
        bounded.say("the next")
    said = [record.message for record in caplog.records]
    assert said == ["limits: 1000 more were parked, and not logged one by one", "the next"]
