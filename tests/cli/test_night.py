"""`--for`, `--reason`, `--queue`, `run`, `changes` and `report`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_limits import LimitError, Limits
from celery_limits.cli.times import parse_duration
from celery_limits.store.changes import this_user
from tests.cli.command import Command
from tests.cli.counter import Counter
from tests.cli.shop import build


def test_changes_tell_who_what_and_why(command: Command, limits: Limits) -> None:
    command("resize", "packers", "4", "--for", "1h", "--reason", "the night shift")
    command("pause", "packers", "--for", "10m", "--reason", "it burns")
    limits.resize("carrier-api", "2/s", 5, reason="from a program")
    told = command.json("changes")
    assert [(o["what"], o["subject"], o["old"], o["new"], o["via"], o["reason"]) for o in told] == [
        ("resize", "carrier-api", None, "2/s burst 5", "python", "from a program"),
        ("pause", "packers", None, "paused", "cli", "it burns"),
        ("resize", "packers", None, "4", "cli", "the night shift"),
    ]
    assert {o["by"] for o in told} == {this_user()}
    assert round(told[1]["until"] - told[1]["at"]) == 600
    assert [o["what"] for o in command.json("changes", "packers")] == ["pause", "resize"]
    said = command("changes").out
    assert "as declared to 4 for 1h00m" in said
    assert "the night shift" in said


def test_an_empty_log_says_so(command: Command, limits: Limits) -> None:
    assert command("changes").out == "Nobody has changed anything.\n"
    assert command.json("changes") == []


def test_what_is_for_a_time_says_for_how_long_in_list_and_show(command: Command, counter: Counter) -> None:
    assert "packers: paused for 10m00s" in command("pause", "packers", "--for", "10m", "--reason", "heat").out
    row = command.json("list", "packers")[0]
    assert (row["health"], row["pause"]["reason"], row["set_by"]) == ("paused", "heat", "declared")
    command("resize", "packers", "7", "--for", "1h")
    assert re.search(r"paused for (10m00s|9m59s), resized for (1h00m|59m59s)", command("list", "packers").out)
    assert command.json("list", "packers")[0]["set_by"] == "resized"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("10m", 600), ("1h30m", 5400), ("2d", 172_800), ("1.5h", 5400)]
)
def test_times_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "10x", "m", "1h foo", "400d", "nan", "1e3"])
def test_a_time_that_can_not_be_read_is_a_usage_error(command: Command, limits: Limits, text: str) -> None:
    assert "write 30s, 10m" in (err := command("pause", "packers", "--for", text, code=2).err) or "above 0" in err
    assert limits.changes() == []


def test_health_of_each_key(command: Command, counter: Counter) -> None:
    for i in range(2):
        counter.bring("shop.pack", tenant=1, task_id=f"pack-{i}")
    counter.bring("shop.ship", tenant=42)
    for _ in range(3):
        counter.bring("shop.call", tenant=1)
    counter.limits.pause("warehouse")
    told = {row["key"]: row["health"] for row in command.json("list", "--sort", "health")}
    assert told == {
        "warehouse": "paused", "packers": "at capacity", "carrier-api": "at capacity", "tenant:42": "active"
    }  # fmt: skip
    assert next(iter(told)) == "warehouse", "the worst first"


def test_run_lets_one_waiter_through(command: Command, counter: Counter, caplog: pytest.LogCaptureFixture) -> None:
    for i in range(3):
        counter.bring("shop.pack", tenant=1, task_id=f"pack-{i}")
    told = command.json("run", "pack-2", "--reason", "a customer waits")
    assert told == {"task_id": "pack-2", "ran": 1, "begun": 0, "over": ["packers"]}
    assert "task pack-2 passes 'packers' although there is no room" in caplog.text
    row = command.json("list", "packers")[0]
    assert (row["held"], row["bodies"], row["waiting"], row["forced"]) == (2, 1, 1, 1)
    assert "1 forced" in command("list", "packers").out
    assert command.json("run", "pack-2")["begun"] == 1
    assert "does not wait for a limit" in command("run", "nobody", code=1).out
    assert [(o["what"], o["subject"]) for o in command.json("changes")] == [("run", "task pack-2")]


def test_cancel_is_recorded(command: Command, counter: Counter) -> None:
    for i in range(2):
        counter.bring("shop.pack", tenant=1, task_id=f"pack-{i}")
    command("cancel", "pack-1", "--reason", "a mistake")
    (change,) = counter.limits.changes()
    assert (change.what, change.subject, change.new, change.reason) == ("cancel", "task pack-1", "revoked", "a mistake")


def test_report_is_one_paragraph(command: Command, counter: Counter) -> None:
    for i in range(3):
        counter.bring("shop.pack", tenant=1, task_id=f"pack-{i}")
    command("pause", "carrier-api", "--reason", "429")
    said = command("report").out
    assert said.count("\n") == 1
    assert said.startswith("1 key paused, 1 key at capacity, longest wait ")
    assert "at packers. 2 tasks wait for limits; 1 slots are held." in said
    assert f"Paused: carrier-api (by {this_user()}, 429)." in said
    assert said.endswith("1 worker holds a lease.\n")
    told = command.json("report")
    assert (told["waiting"], told["held"], told["paused"], told["workers"]) == (2, 1, ["carrier-api"], 1)


def test_a_quiet_store_reports_that_nobody_waits(command: Command, limits: Limits) -> None:
    assert command("report").out == "Nobody waits. 0 tasks wait for limits; 0 slots are held. 0 workers hold a lease.\n"


def test_a_queue_of_another_broker_can_not_be_paused(command: Command, limits: Limits) -> None:
    said = command("pause", "--queue", "celery", code=1).err
    assert "only workers on limits+redis://" in said
    assert "cancel_consumer" in said


@pytest.mark.parametrize("arguments", [(), ("packers", "--queue", "celery")])
def test_a_key_or_a_queue(command: Command, limits: Limits, arguments: tuple[str, ...]) -> None:
    assert "either a KEY or --queue" in command("pause", *arguments, code=2).err


def test_pause_and_resume_a_queue(conf: dict[str, Any]) -> None:
    conf = {**conf, "broker_url": "limits+" + conf["broker_url"]}
    command = Command(build(conf), conf)
    told = command.json("pause", "--queue", "celery", "--for", "1h", "--reason", "deploy")
    assert (told["paused"], told["reason"], round(told["until"] - told["since"])) == (True, "deploy", 3600)
    assert "Paused queues: celery (by" in command("report").out
    assert "the app declares no queue 'salary'" in command("pause", "--queue", "salary", code=1).err
    assert command("resume", "--queue", "celery").out == "queue celery: resumed\n"
    assert command.json("report")["queues"] == []


def test_a_reason_that_is_too_long_changes_nothing(limits: Limits) -> None:
    with pytest.raises(LimitError, match="500 at most"):
        limits.pause("packers", reason="x" * 501)
    assert not limits.status("packers").paused
