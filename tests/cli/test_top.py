"""`top`: a plain table in a pipe; live in a terminal, with keys that sort, open, pause, resize and cancel."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pexpect
import pytest
from rich.console import Console

from celery_limits import Limits
from celery_limits.cli.board import Board
from celery_limits.cli.keyboard import split_presses
from celery_limits.cli.paint import paint
from tests.cli.command import Command
from tests.cli.counter import Counter
from tests.cli.shop import build


@pytest.fixture
def busy(counter: Counter) -> Counter:
    """Two pack, of which one waits; three ship for tenant 42, and two more wait, each for another key."""
    for i in range(2):
        counter.bring("shop.pack", tenant=1, task_id=f"pack-{i}")
    for i in range(4):
        counter.bring("shop.ship", tenant=42, task_id=f"ship-{i}")
    return counter


# -- the board ------------------------------------------------------------------------------------------------------


@pytest.fixture
def board(busy: Counter) -> Board:
    board = Board(busy.limits)
    board.look()
    return board


def _press(board: Board, *keys: str) -> None:
    for key in keys:
        assert board.press(key)


def _painted(board: Board, height: int = 30) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(paint(board, height))
    return console.export_text()


def test_the_choice_stays_with_its_key_when_the_order_changes(board: Board) -> None:
    assert [status.key for status in board.statuses] == ["packers", "tenant:42", "warehouse", "carrier-api"]
    _press(board, "down", "down")
    assert board.chosen is not None
    assert board.chosen.key == "warehouse"
    for order in ("held", "oldest", "rate", "health", "key", "waiting"):
        _press(board, "s")
        assert (board.order, board.chosen.key) == (order, "warehouse")
    _press(board, "end", "page down")
    assert board.place == 3
    _press(board, "home", "up")
    assert board.place == 0
    assert not board.press("q")


def test_pause_and_resume_the_chosen_key(board: Board) -> None:
    _press(board, "p")
    assert board.limits.status("packers").paused
    assert "paused" in _painted(board)
    _press(board, "p")
    assert not board.limits.status("packers").paused
    assert "packers: resumed" in _painted(board)


def test_resize_asks_for_a_size_and_may_be_undone(board: Board) -> None:
    _press(board, "r", "9", "backspace", "2")
    assert "new size of packers (now 1): 2_" in _painted(board)
    _press(board, "enter")
    assert board.limits.status("packers").size == 2
    assert board.limits.explain("pack-1").tickets[0].state == "granted"
    _press(board, "u")
    assert board.limits.status("packers").size is None
    _press(board, "r", "7", "escape")
    assert board.said == "left as it was"
    _press(board, "r", "x", "enter")
    assert "its size is a whole number" in board.said
    assert board.limits.status("packers").size is None


@pytest.mark.parametrize(
    ("key", "before", "burst", "other"), [("packers", 5, 1, "2"), ("carrier-api", "7/m", 3, "9/m")]
)
def test_undo_gives_back_the_size_before(board: Board, key: str, before: Any, burst: int, other: str) -> None:
    """Which somebody may have set by hand; not the declared one."""
    board.limits.resize(key, before, burst)
    board.look()
    while board.chosen is not None and board.chosen.key != key:
        _press(board, "down")
    _press(board, "r", *other, "enter")
    assert board.limits.status(key).limit == (int(other) if other.isdecimal() else other)
    _press(board, "u")
    restored = board.limits.status(key)
    assert (restored.limit, restored.burst or 1) == (before, burst)
    assert board.said == f"{key}: {before} again"
    _press(board, "u")
    assert "nothing to undo" in board.said
    assert board.limits.status(key).limit == before


def test_cancel_one_that_waits_after_asking(board: Board) -> None:
    _press(board, "c")
    assert board.said == "choose a task, then press c"
    assert [party.task_id for party in board.parties] == ["pack-0", "pack-1"]
    assert "waits 1" in _painted(board)
    _press(board, "down", "c")
    assert "cancel shop.pack[pack-1]? y/n" in _painted(board)
    _press(board, "n")
    assert board.limits.status("packers").waiting == 1
    _press(board, "c", "y")
    assert board.said == "pack-1: cancelled"
    assert board.limits.status("packers").waiting == 0
    _press(board, "c", "y")
    assert board.said == "pack-0: already running, and not stopped"
    _press(board, "escape")
    assert board.opened is None


def test_only_as_many_rows_as_fit_with_the_chosen_one_among_them(busy: Counter) -> None:
    for i in range(30):
        busy.bring("shop.odd", tenant=i + 100)
    board = Board(busy.limits, "hand:*", "key")
    board.look()
    _press(board, *["down"] * 20)
    text = _painted(board, 12)
    assert "hand:120" in text
    assert text.count("hand:") == 6
    assert "30 keys" in text


def test_a_store_that_is_away_is_told_and_the_board_goes_on() -> None:
    app = build({"broker_url": "memory://", "limits_store_url": "redis://:secret@127.0.0.1:1/0"})
    board = Board(Limits(app))
    board.look()
    assert "127.0.0.1:1" in board.trouble
    _press(board, "p", "r", "c", "enter", "down")
    text = _painted(board)
    assert "no keys are in use" in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1bOB", ["up", "down"]),
        ("\x1b", ["escape"]),
        ("\x1b[5~12\r\x7f", ["page up", "1", "2", "enter", "backspace"]),
        ("\x1b[15~x", ["x"]),
        ("é", ["é"]),
    ],
)
def test_keys_of_a_terminal(sent: str, keys: list[str]) -> None:
    assert split_presses(sent) == keys


# -- the command ----------------------------------------------------------------------------------------------------


def test_a_plain_table_where_there_is_no_terminal(command: Command, busy: Counter) -> None:
    said = command("top")
    assert said.rows[0][:2] == ["KEY", "KIND"]
    assert [row[0] for row in said.rows[1:]] == ["packers", "tenant:42", "warehouse", "carrier-api"]
    assert "\x1b" not in said.out


def test_json_lines(command: Command, busy: Counter) -> None:
    said = command("top", "--json", "--count", "2", "--interval", "0.1", "--sort", "key", "pack*")
    looks = [json.loads(line) for line in said.out.splitlines()]
    assert [[row["key"] for row in look] for look in looks] == [["packers"], ["packers"]]


def test_without_a_store_it_ends(busy: Counter) -> None:
    conf = {"broker_url": "memory://", "limits_store_url": "redis://127.0.0.1:1/0"}
    assert Command(build(conf), conf).json("top", code=1)["error"]["kind"] == "StoreUnavailable"


@pytest.fixture
def screen(command: Command, busy: Counter) -> Iterator[Any]:
    """Only ever waited for by reading it: one that nobody reads stands still once the terminal's buffer is full."""
    shown = command.terminal("limits", "top", "--interval", "0.2")
    yield shown
    shown.close(force=True)


def test_live_in_a_terminal(screen: pexpect.spawn[str], busy: Counter) -> None:
    limits = busy.limits
    screen.expect_exact("packers")
    screen.expect_exact("q quit")
    screen.send("p")
    screen.expect_exact("packers: paused")
    assert limits.status("packers").paused
    screen.send("p")
    screen.expect_exact("packers: resumed")
    assert not limits.status("packers").paused
    screen.send("r")
    screen.expect_exact("new size of packers")
    screen.send("2\r")
    screen.expect_exact("packers: 2; press u to undo it")
    assert limits.status("packers").size == 2
    screen.send("s")
    screen.expect_exact("sorted by held")
    screen.send("\x1b[H\x1b[B\x1b[A\r")
    screen.expect_exact("esc back")
    screen.send("q")
    screen.expect(pexpect.EOF)
    screen.close()
    assert screen.exitstatus == 0


def test_cancel_in_a_terminal_and_leave_by_ctrl_c(screen: pexpect.spawn[str], busy: Counter) -> None:
    screen.expect_exact("packers")
    screen.send("\r")
    screen.expect_exact("pack-1")
    screen.send("\x1b[B")
    screen.send("c")
    screen.expect_exact("cancel shop.pack[pack-1]?")
    screen.send("y")
    screen.expect_exact("pack-1: cancelled")
    assert busy.limits.status("packers").waiting == 0
    screen.sendintr()
    screen.expect(pexpect.EOF)
    screen.close()
    assert screen.exitstatus == 0


def test_the_terminal_is_as_before_at_the_end(command: Command, busy: Counter) -> None:
    shown = command.terminal("limits", "top", "--count", "1", "--interval", "0.1")
    text = shown.read()
    shown.close()
    assert shown.exitstatus == 0
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1, "the other screen, there and back"
    assert text.rstrip().endswith(("\x1b[?25h", "\x1b[?1049l")), "the cursor is shown again"


def test_help_and_run(board: Board) -> None:
    _press(board, "?")
    assert "let the chosen waiter pass its limits now" in _painted(board)
    _press(board, "q")
    assert "let the chosen waiter" not in _painted(board), "q closes the help, and not the board"
    _press(board, "enter", "down", "x", "y")
    assert "pack-1: let through past packers" in _painted(board)
    assert [(change.what, change.via) for change in board.limits.changes()] == [("run", "top")]
