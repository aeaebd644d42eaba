"""Names, ids and keys that a message or a stranger put there reach no terminal as they are, and every JSON reader."""

from __future__ import annotations

import io
from typing import Any

import click
import pytest
from kombu.message import Message
from rich.console import Console

from celery_limits.cli.board import Board
from celery_limits.cli.complete import complete_key
from celery_limits.cli.paint import paint
from celery_limits.declare.chain import ConcurrencyLink
from celery_limits.message.envelope import pack
from celery_limits.message.header import Header
from celery_limits.store.outcomes import Parked
from tests.cli.command import Command
from tests.cli.counter import Counter

KEY = "gate\u202e\u200b\x1b]0;owned\x07"
HOLDS = "holds\x1b[2J\x9b31m\u2066"
WAITS = "waits\x1b[2J\ufeff\x7f"
NAME = "shop.\x1b[8mhidden\u202e"
WORKER = "till\x1b[1m@shop/1/a"


def link(key: str) -> Any:
    """As someone who does not use this package may have written it."""
    return ConcurrencyLink.model_construct(kind="concurrency", key=key, limit=1, weight=1)


@pytest.fixture
def foreign(counter: Counter) -> Counter:
    store = counter.limits.store
    store.beat(WORKER)
    for task_id in (HOLDS, WAITS):
        ticket = f"{task_id}.n"
        message: Any = Message(body="[[], {}, {}]", headers={"task": NAME, "id": task_id}, properties={})
        packed, cut = pack(message, "celery", Header.model_construct(v=1, ticket=ticket, links=(), at=0))
        outcome = store.admit(ticket, (link(KEY),), WORKER, delivery=task_id, message=packed, cut=cut)
    assert isinstance(outcome, Parked)
    client: Any = store.client
    client.zadd(f"{store.prefix}ready:\x1b[31mqueue", {f"{HOLDS}\nforged.n": 1})
    return counter


COMMANDS: dict[str, tuple[str, ...]] = {
    "list": ("list",),
    "show": ("show", KEY, "--timeout", "0"),
    "explain": ("explain", WAITS, "--timeout", "0"),
    "explain-holder": ("explain", HOLDS, "--timeout", "0"),
    "explain-nobody": ("explain", f"{HOLDS}\nforged", "--timeout", "0"),
    "audit": ("audit",),
    "top": ("top",),
    "resize": ("resize", KEY, "1"),
    "pause": ("pause", KEY),
    "resume": ("resume", KEY),
    "reset": ("reset", KEY),
    "no-such-key": ("show", f"no{KEY}\n"),
    "cancel": ("cancel", WAITS),
}
FAILS = {"explain-nobody", "no-such-key", "audit", "resize"}


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_that_a_terminal_obeys_is_printed(command: Command, foreign: Counter, name: str, as_json: bool) -> None:
    said = command(*COMMANDS[name], *(["--json"] if as_json else []), code=1 if name in FAILS else 0)
    lines = f"{said.out}\n{said.err}".split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert not any(line.startswith("forged") for line in lines)


def test_a_reader_of_the_json_gets_the_original_text(command: Command, foreign: Counter) -> None:
    assert KEY in {one["key"] for one in command.json("list")}
    shown = command.json("show", KEY, "--timeout", "0")
    assert [(one["task_id"], one["worker"]) for one in shown["holders"]] == [(HOLDS, WORKER)]
    assert [(one["task_id"], one["task"]) for one in shown["waiters"]] == [(WAITS, NAME)]
    assert command.json("explain", WAITS, "--timeout", "0")["tickets"][0]["waits_at"] == KEY


def test_the_live_board_shows_none_of_it(foreign: Counter) -> None:
    board = Board(foreign.limits)
    board.look()
    painted = [_painted(board)]
    for key in ("enter", "c", "n", "p", "p", "escape", "r"):
        board.press(key)
        painted.append(_painted(board))
    assert any("waits" in text for text in painted)
    assert [text for text in painted if not all(line.isprintable() for line in text.split("\n"))] == []


def _painted(board: Board) -> str:
    console = Console(width=200, file=io.StringIO(), record=True, force_terminal=False)
    console.print(paint(board, 30))
    return console.export_text()


def test_a_shell_completes_no_such_key(foreign: Counter) -> None:
    ctx = click.Context(click.Command("list"))
    ctx.params["app"] = foreign.limits.app
    items = [item.value for item in complete_key(ctx, click.Argument(["key"]), "")]
    assert "packers" in items
    assert all(item.isprintable() for item in items)
