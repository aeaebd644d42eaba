"""`limits metrics`: the state of keys and queues as Prometheus reads it, printed and served, its keys bounded."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any

import pexpect
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from celery_limits import Limits
from celery_limits.metrics.collector import GAUGES, KeyCollector
from celery_limits.metrics.labels import OTHER, LimitNames
from celery_limits.metrics.prometheus import METRICS, PREFIX
from tests.cli.command import Command
from tests.cli.counter import Counter
from tests.cli.shop import build

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def samples(text: str) -> dict[tuple[str, str], float]:
    """Metric and first label -> value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = next(iter(sample.labels.values()), "")
            found[sample.name.removeprefix(f"{PREFIX}_"), label] = sample.value
    return found


def gauges(collector: KeyCollector) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for family in collector.collect():
        for sample in family.samples:
            label = next(iter(sample.labels.values()), "")
            found[sample.name.removeprefix(f"{PREFIX}_"), label] = sample.value
    return found


def test_keys_and_queues_are_shown(command: Command, counter: Counter) -> None:
    for _ in range(2):
        counter.bring("shop.ship", tenant=1)
    counter.bring("shop.ship", tenant=2)
    counter.bring("shop.call", tenant=1)
    counter.limits.pause("packers")
    shown = samples(command("metrics", "--once").out)
    assert shown["up", ""] == 1
    assert (shown["running", "warehouse"], shown["limit", "warehouse"], shown["waiting", "warehouse"]) == (2, 2, 1)
    assert (shown["running", "tenant:1"], shown["limit", "tenant:1"]) == (2, 3)
    assert shown["rate", "carrier-api"] == pytest.approx(100 / 60)
    assert shown["oldest_wait_seconds", "warehouse"] >= 0
    assert shown["paused", "packers"] == 1
    assert shown["queue_length", "celery"] == 0
    assert ("running", "carrier-api") not in shown, "nobody holds a rate"


def test_what_is_in_a_queue_waits_for_a_worker(command: Command, limits: Limits) -> None:
    limits.app.tasks["shop.free"].apply_async((1,))
    assert samples(command("metrics", "--once").out)["queue_length", "celery"] == 1
    assert limits.app.control.purge() == 1


def test_json(command: Command, counter: Counter) -> None:
    counter.bring("shop.ship", tenant=1)
    found = command.json("metrics", "--once")
    labels = {"key": "tenant:1", "name": "tenant:{tenant}"}
    assert {"name": "celery_limits_running", "labels": labels, "value": 1.0} in found


def test_the_number_of_keys_is_bounded_and_the_rest_is_summed(limits: Limits, counter: Counter) -> None:
    for tenant in range(6):
        counter.bring("shop.odd", tenant=tenant)
    counter.bring("shop.pack", tenant=0)
    counter.bring("shop.pack", tenant=0)
    found = gauges(KeyCollector(limits, most=2))
    keys = {label for name, label in found if name == "waiting"}
    assert len(keys) == 3
    assert {"packers", OTHER} < keys, "what is waited for comes first"
    assert sum(value for (name, _), value in found.items() if name == "running") == 7
    assert found["keys", ""] == len(limits.overview()) > 6


def test_a_store_that_is_away_is_said_to_be(conf: dict[str, Any]) -> None:
    away = Limits(build({**conf, "limits_store_url": "redis://127.0.0.1:1/0"}))
    assert gauges(KeyCollector(away)) == {("up", ""): 0}


def test_to_register_it_asks_no_store(conf: dict[str, Any]) -> None:
    away = Limits(build({**conf, "limits_store_url": "redis://127.0.0.1:1/0"}))
    CollectorRegistry().register(KeyCollector(away))


def test_limits_are_named_as_they_are_declared(limits: Limits) -> None:
    names = LimitNames(limits)
    assert names.name("shop.ship", "tenant:42") == "tenant:{tenant}"
    assert names.name("shop.ship", "warehouse") == "warehouse"
    assert names.name("shop.odd", "hand:1") == "<tests.cli.shop:_key_by_hand>"
    assert names.name("shop.ship", "given-to-one-call") == OTHER


def test_it_is_served_over_http(command: Command, counter: Counter) -> None:
    counter.bring("shop.ship", tenant=1)
    child = command.terminal("-A", "tests.cli.shop", "limits", "metrics", "--port", "0")
    child.expect(r"Serving metrics at (http://127\.0\.0\.1:\d+/metrics)")
    assert isinstance(child.match, re.Match)
    with urllib.request.urlopen(child.match[1], timeout=20) as answer:
        shown = samples(answer.read().decode())
    assert shown["running", "tenant:1"] == 1
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_every_metric_is_documented() -> None:
    text = DOCS.read_text()
    assert [name for name in (*METRICS, *GAUGES) if f"`{name}`" not in text] == []
