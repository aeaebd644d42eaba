"""What workers count and measure, scraped over HTTP; and that it costs a publisher nothing unless it is asked for."""

from __future__ import annotations

import re
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from celery_limits import Concurrency
from celery_limits.message.header import HEADER
from celery_limits.telemetry.meter import SENT_HEADER
from tests.waiting import wait_until
from tests.worker.harness import Scene, Worker

_SERVED = re.compile(r"limits: metrics at (http://\S+)")


def scrape(worker: Worker) -> dict[tuple[str, str], float]:
    """Sample and its task or limit -> value."""
    served = _SERVED.search(worker.log)
    assert served is not None
    with urllib.request.urlopen(served[1], timeout=20) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name in ("task", "limit")}
            if sample.name.startswith("celery_limits_") and "le" not in sample.labels:
                found[sample.name.removeprefix("celery_limits_"), next(iter(labels.values()), "")] = sample.value
    return found


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_admissions_waits_and_holds_are_measured(scene: Scene, pool: str) -> None:
    scene.configure(limits_metrics_port=0)
    worker = scene.start(pool)
    scene.send("early", "first")
    scene.wait_started("first")
    second = scene.send("early", "second")
    scene.wait_parked(1)
    scene.stage.open_all()
    second.get()
    wait_until(lambda: scrape(worker).get(("hold_seconds_count", "{key}")) == 2, "both holds are measured")
    shown = scrape(worker)
    assert shown["admitted_total", "early"] == 2
    assert shown["waited_total", "early"] == 1
    assert shown["wait_for_limit_seconds_count", "{key}"] == 1
    assert shown["wait_for_limit_seconds_sum", "{key}"] > 0
    assert shown["wait_for_worker_seconds_count", "early"] == 2, (
        "of the first since it was sent, of the second since its turn"
    )
    assert shown["reclaimed_total", ""] == 0


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_slot_is_held_while_the_task_waits_at_a_later_limit(scene: Scene, pool: str) -> None:
    scene.configure(limits_metrics_port=0)
    worker = scene.start(pool)
    scene.send("staged", "first")
    scene.wait_started("first")
    second = scene.send("staged", "second")
    scene.wait_parked(1)
    scene.stage.open_all()
    second.get()
    wait_until(lambda: scrape(worker).get(("hold_seconds_count", "{key}")) == 2, "both holds are measured")
    shown = scrape(worker)
    waited = shown["wait_for_limit_seconds_sum", "{key}"]
    assert waited > 0
    outer, inner = (shown["hold_seconds_sum", name] for name in ("outer:{key}", "{key}"))
    assert outer >= inner + 0.99 * waited, "the second held the outer limit while it waited at the inner one"


def test_those_that_will_not_run_are_counted(scene: Scene) -> None:
    scene.configure(limits_metrics_port=0)
    worker = scene.start("threads")
    scene.send("early", "first")
    scene.wait_started("first")
    discarded = scene.send("early", "second", limits=[Concurrency("{key}", 1, on_full="discard")])
    discarded.wait("REVOKED")
    expired = scene.send("early", "third", expires=0.3)
    expired.wait("REVOKED")
    for name in ("discarded_total", "expired_total"):
        wait_until(lambda name=name: scrape(worker).get((name, "early")) == 1, f"{name} is 1")  # type: ignore[misc]
    scene.stage.open_all()
    scene.wait_ended("first")


def test_a_dead_worker_is_counted_by_the_one_that_finds_it(scene: Scene) -> None:
    scene.configure(limits_metrics_port=0, limits_lease=3.0)
    dying = scene.start("prefork", concurrency=1)
    finder = scene.start("prefork", concurrency=1)
    dying.kill()
    wait_until(lambda: scrape(finder)["reclaimed_total", ""] == 1, "it is found")


def test_a_port_that_is_taken_stops_no_worker(scene: Scene) -> None:
    scene.configure(limits_metrics_port=0)
    first = scene.start("threads")
    served = _SERVED.search(first.log)
    assert served is not None
    port = served[1].rpartition(":")[2].partition("/")[0]
    second = scene.start("threads", "--limits-metrics-port", port)
    assert f"port {port} can't be opened" in second.log


@pytest.mark.parametrize("port", [None, 0])
def test_a_message_says_when_it_was_sent_only_where_that_is_measured(scene: Scene, port: int | None) -> None:
    scene.configure(limits_metrics_port=port)
    scene.send("early", "first")
    with scene.app.connection_for_read() as connection:
        message = connection.default_channel.basic_get(scene.queue)
        message.ack()
    assert HEADER in message.headers
    assert (SENT_HEADER in message.headers) == (port is not None)
