"""`limits later` and `limits drain`, as a person and as a program see them."""

from __future__ import annotations

from typing import Any

import pytest

from celery_limits import Limits
from tests.cli.command import Command
from tests.cli.shop import build
from tests.redis_server import RedisServer

WORKER = "w1@host/1/a"


@pytest.fixture
def conf(conf: dict[str, Any], server: RedisServer) -> dict[str, Any]:
    return {**conf, "broker_url": f"limits+redis+socket://{server.socket}", "result_backend": "cache+memory://"}


@pytest.fixture
def limits(conf: dict[str, Any]) -> Limits:
    """With a worker, so that publishers delay."""
    limits = Limits(build(conf))
    limits.store.beat(WORKER)
    return limits


def send(limits: Limits, task: str, **options: Any) -> str:
    return str(limits.app.tasks[task].apply_async(kwargs={"tenant": 7}, queue="parcels", **options).id)


def test_later_when_nothing_is(command: Command, limits: Limits) -> None:
    assert command("later").out == "No task is delayed.\n"
    assert command("later", "--json").json == []
    assert "delayed" not in command("list").out


def test_later_lists_the_next_one_first(command: Command, limits: Limits) -> None:
    far = send(limits, "shop.pack", countdown=7200)
    near = send(limits, "shop.free", countdown=600)
    rows = [row[:3] for row in command("later").rows[1:]]
    assert rows == [["shop.free", near, "parcels"], ["shop.pack", far, "parcels"]]
    found = command("later", "--json").json
    assert [(one["task"], one["task_id"], one["queue"]) for one in found] == [
        ("shop.free", near, "parcels"),
        ("shop.pack", far, "parcels"),
    ]
    assert 590 < found[0]["due_in"] <= 600
    assert found[0]["due"] < found[1]["due"]
    assert len(command("later", "--json", "--limit", "1").json) == 1
    assert "and 1 more" in command("later", "--limit", "1").out


def test_list_counts_them(command: Command, limits: Limits) -> None:
    send(limits, "shop.free", countdown=600)
    assert "1 delayed until its eta, the next one is due in 9m" in command("list").out
    assert all(isinstance(key["key"], str) for key in command("list", "--json").json)


@pytest.mark.parametrize("task", ["shop.free", "shop.pack"])
def test_explain_says_when_it_is_due(command: Command, limits: Limits, task: str) -> None:
    task_id = send(limits, task, countdown=600)
    said = command("explain", task_id)
    assert (said.code, "delayed, due at 20" in said.out) == (0, True)
    [ticket] = command("explain", task_id, "--json").json["tickets"]
    assert (ticket["state"], ticket["task"]) == ("delayed", task)
    assert 590 < ticket["due_in"] <= 600


def test_cancel_ends_it(command: Command, limits: Limits) -> None:
    task_id = send(limits, "shop.free", countdown=600)
    assert "its result is REVOKED" in command("cancel", task_id).out
    assert command("later", "--json").json == []


def test_drain(command: Command, limits: Limits) -> None:
    send(limits, "shop.free", countdown=600)
    counted = {"granted": 0, "waiting": 0, "delayed": 1, "total": 1}
    assert command("drain", "--dry-run", "--json").json == {"dry_run": True, **counted}
    refused = command("drain", code=1)
    assert (refused.code, "1 limited worker runs (w1@host/1/a): stop it first" in refused.err) == (1, True)
    assert command("drain", "--json", code=1).json["error"]["kind"] == "StillRunning"
    limits.store.leave(WORKER)
    done = command("drain", "--json")
    assert (done.code, done.json) == (0, {"dry_run": False, **counted, "left": 0, "aside": 0})
    assert "0 messages" in command("drain").out


def test_drain_by_force(command: Command, limits: Limits) -> None:
    send(limits, "shop.free", countdown=600)
    done = command("drain", "--force")
    assert (done.code, "1 messages (0 granted, 0 waiting, 1 delayed) are back" in done.out) == (0, True)
