"""The program as it is started from a shell, through a pipe and in a terminal; and the completion of its words."""

from __future__ import annotations

from tests.cli.command import Command
from tests.cli.counter import Counter


def test_every_reading_command_prints_json_and_nothing_else(command: Command, counter: Counter) -> None:
    counter.bring("shop.pack", tenant=1, task_id="runs")
    counter.bring("shop.pack", tenant=1, task_id="waits")
    listed = command.program("limits", "list", "--json").json
    assert [(row["key"], row["running"], row["waiting"]) for row in listed if row["running"]] == [("packers", 1, 1)]
    shown = command.program("limits", "show", "packers", "--json", "--timeout", "0").json
    assert [one["task_id"] for one in shown["waiters"]] == ["waits"]
    assert command.program("limits", "explain", "waits", "--json").json["tickets"][0]["waits_at"] == "packers"
    assert {row["task"] for row in command.program("limits", "tasks", "--json").json} >= {"shop.pack"}
    assert command.program("limits", "check", "--json").json["ok"]
    assert command.program("limits", "audit", "--json").json["clean"]


def test_steering_and_exit_codes(command: Command, counter: Counter) -> None:
    assert command.program("limits", "resize", "packers", "2", "--json").json["limit"] == 2
    assert command.program("limits", "pause", "packers", "--json").json["paused"]
    unknown = command.program("limits", "show", "packer", code=1)
    assert "Did you mean 'packers'?" in unknown.err
    assert "Traceback" not in unknown.err
    assert "No such command 'lsit'" in command.program("limits", "lsit", code=2).err


def test_a_terminal_gets_colours_and_a_pipe_does_not(command: Command, counter: Counter) -> None:
    counter.bring("shop.ship", tenant=42)
    shown = command.terminal("limits", "list")
    text = shown.read()
    shown.close()
    assert shown.exitstatus == 0
    assert "\x1b[1m" in text, "the header is bold"
    assert "tenant:42" in text
    assert "warehouse" in text
    plain = command.program("limits", "list").out
    assert "tenant:42" in plain
    assert "\x1b" not in plain


def _completed(command: Command, line: str) -> list[str]:
    """What a shell offers for the last word of the line, by click's protocol for bash."""
    words = line.split(" ")
    environment = {"_CELERY_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    said = command.program(environment=environment)
    return [row.partition(",")[2] for row in said.out.splitlines()]


def test_commands_and_keys_are_completed(command: Command, counter: Counter) -> None:
    counter.bring("shop.ship", tenant=42)
    assert {"list", "show", "audit"} <= set(_completed(command, "celery -A tests.cli.shop limits "))
    assert _completed(command, "celery -A tests.cli.shop limits show te") == ["tenant:42"]
    assert _completed(command, "celery -A tests.cli.shop limits pause wa") == ["warehouse"]
