"""Keys with `fair_by`, by group: `show`, `top` and `metrics`, for people and as JSON."""

from __future__ import annotations

import io
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from celery_limits import Concurrency
from celery_limits.cli.board import Board
from celery_limits.cli.paint import paint
from celery_limits.metrics.collector import KeyCollector
from celery_limits.metrics.labels import OTHER
from tests.cli.command import Command
from tests.cli.counter import Counter

GPU = [Concurrency("gpu", 2, fair_by="{tenant}", share=lambda tenant: 3 if tenant == 1 else 1)]


@pytest.fixture
def shared(counter: Counter) -> Counter:
    """Tenant 1, of share 3, has both slots and two who wait; tenant 2 has one who waits; a task waits without group."""
    for i, tenant in enumerate((1, 1, 1, 1, 2)):
        counter.bring("shop.free", tenant=tenant, task_id=f"gpu-{i}", limits=GPU)
    counter.bring("shop.free", tenant=0, task_id="plain", limits=[Concurrency("gpu", 2)])
    counter.bring("shop.pack", tenant=1, task_id="pack")
    return counter


def _groups(rows: list[dict[str, Any]]) -> list[tuple[str, int, float, int]]:
    return [(row["group"], row["held"], row["share"], row["waiting"]) for row in rows]


def test_show_lists_the_groups_in_turn(command: Command, shared: Counter) -> None:
    told = command.json("show", "gpu", "--timeout", "0")
    assert _groups(told["groups"]) == [("2", 0, 1.0, 1), ("1", 2, 3.0, 2)]
    assert all(group["oldest_wait"] >= 0 for group in told["groups"])
    rows = command("show", "gpu", "--timeout", "0").rows
    assert ["GROUP", "HELD", "SHARE", "WAITING", "OLDEST WAIT"] in rows
    assert ["1", "2", "3", "2"] in [row[:4] for row in rows]


def test_top_prints_the_groups(command: Command, shared: Counter) -> None:
    told = {row["key"]: row for row in command.json("top")}
    assert _groups(told["gpu"]["groups"]) == [("2", 0, 1.0, 1), ("1", 2, 3.0, 2)]
    assert told["packers"]["groups"] == []
    header, *rows = command("top", "--groups").rows
    assert header == ["KEY", "GROUP", "HELD", "SHARE", "WAITING", "OLDEST WAIT"]
    assert [row[:5] for row in rows] == [["gpu", "2", "0", "1", "1"], ["gpu", "1", "2", "3", "2"]]


def _painted(board: Board) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(paint(board, 30))
    return console.export_text()


def test_top_switches_between_the_groups_of_a_key_and_its_tasks(shared: Counter) -> None:
    board = Board(shared.limits)
    board.look()
    assert board.chosen is not None
    assert board.chosen.key == "gpu"
    board.press("g")
    assert "GROUP" in _painted(board)
    board.press("down")
    assert board.place == 1
    board.press("down")
    assert board.place == 1, "there are two"
    board.press("g")
    assert "gpu-0" in _painted(board)
    board.press("g")
    board.press("c")
    assert "gpu-0" in _painted(board), "tasks are cancelled, not groups"
    assert board.said == "choose a task, then press c"
    board.press("escape")
    board.press("end")
    board.press("g")
    assert "no groups" in board.said


def _samples(collector: KeyCollector) -> dict[tuple[str, str], float]:
    """Metric and group -> value; of the key gpu."""
    registry = CollectorRegistry()
    registry.register(collector)
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if sample.labels.get("key") == "gpu" and "group" in sample.labels:
                assert sample.labels["name"] == OTHER, "limits of one call"
                found[sample.name.removeprefix("celery_limits_group_"), sample.labels["group"]] = sample.value
    return found


def test_metrics_by_group_are_bounded_and_add_up(shared: Counter) -> None:
    found = _samples(KeyCollector(shared.limits))
    assert {name: found[name, "1"] for name in ("held", "share", "waiting")} == {"held": 2, "share": 3, "waiting": 2}
    assert (found["held", "2"], found["waiting", "2"], found["waiting", OTHER]) == (0, 1, 1)
    assert found["oldest_wait_seconds", "2"] >= 0
    bounded = _samples(KeyCollector(shared.limits, groups=1))
    assert {group for _, group in bounded} == {"2", OTHER}
    assert (bounded["held", OTHER], bounded["waiting", OTHER]) == (2, 3)
    assert _samples(KeyCollector(shared.limits, groups=0)) == {}


def test_metrics_by_group_as_json(command: Command, shared: Counter) -> None:
    found = command.json("metrics", "--once")
    labels = {"key": "gpu", "name": OTHER, "group": "1"}
    assert {"name": "celery_limits_group_held", "labels": labels, "value": 2.0} in found
    assert {"name": "celery_limits_parked_total", "labels": {}, "value": 4.0} in found
