"""The program as it is started from a shell, through a pipe and in a terminal; and the completion of its words."""

from __future__ import annotations

from typing import Any

import pexpect
import pytest

from tests.cli.command import ROOT, Command
from tests.cli.counter import Counter
from tests.docs.blocks import blocks_of
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("list", "pack*"), 0, [{"key": "packers", "running": 1, "waiting": 1}]),
        (("show", "packers", "--timeout", "0"), 0, {"key": "packers", "limit": 1}),
        (("show", "packer"), 1, {"error": {"kind": "UnknownKey"}}),
        (("explain", "waits"), 0, {"task_id": "waits", "cancelled": False}),
        (("resize", "packers", "2"), 0, {"key": "packers", "limit": 2, "running": 2, "waiting": 0}),
        (("cancel", "waits"), 0, {"task_id": "waits", "ended": 1, "running": 0}),
        (("audit",), 0, {"clean": True, "findings": []}),
        (("check",), 0, {"ok": True}),
        (("top", "pack*"), 0, [{"key": "packers", "running": 1, "waiting": 1}]),
    ],
)
def test_json_and_nothing_else_on_stdout(
    command: Command, counter: Counter, arguments: tuple[str, ...], code: int, expected: Any
) -> None:
    counter.bring("shop.pack", tenant=1, task_id="runs")
    counter.bring("shop.pack", tenant=1, task_id="waits")
    said = command.program("limits", *arguments, "--json", code=code)
    assert "Traceback" not in said.err
    assert _part(said.json, expected) == expected


def _part(whole: Any, like: Any) -> Any:
    """Of what was said, those fields that are expected."""
    if isinstance(like, dict):
        return {name: _part(whole[name], value) for name, value in like.items()}
    if isinstance(like, list) and len(like) == len(whole):
        return [_part(one, other) for one, other in zip(whole, like, strict=True)]
    return whole


def test_a_wrong_word_is_a_usage_error_for_people(command: Command, counter: Counter) -> None:
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


@pytest.mark.parametrize(
    ("line", "offered"),
    [("", {"list", "show", "top"}), ("show te", {"tenant:42"}), ("pause wa", {"warehouse"})],
)
def test_commands_and_keys_are_completed(command: Command, counter: Counter, line: str, offered: set[str]) -> None:
    counter.bring("shop.ship", tenant=42)
    found = set(_completed(command, f"celery -A tests.cli.shop limits {line}"))
    assert offered <= found if not line else offered == found


def test_bash_completes_a_key_beyond_its_colon_when_it_is_set_up_as_the_page_says(
    command: Command, counter: Counter
) -> None:
    counter.bring("shop.ship", tenant=42)
    (setup,) = (block.code for block in blocks_of(ROOT / "docs/cli.md") if "_CELERY_COMPLETE" in block.code)
    shell = command.shell()
    shell.sendline(f"{setup}echo set u''p")
    shell.expect_exact("set up\r\n")
    shell.send("celery -A tests.cli.shop limits show tenant:4")
    shell.expect_exact("show tenant:4")

    def completed() -> bool:
        shell.send("\t")  # again, where the store did not answer as soon as someone at a prompt wants it
        return shell.expect([r"2 ", pexpect.TIMEOUT], timeout=10) == 0

    wait_until(completed, "the key to be completed", within=60)
    shell.close(force=True)
