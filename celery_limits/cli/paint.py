"""How `top` looks: a headline, as many rows as fit around the chosen one, and the keys that can be pressed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

from rich.console import Group
from rich.table import Table
from rich.text import Text

from celery_limits.printable import printable
from celery_limits.store.status import Party

from .board import Board
from .screen import GROUP_COLUMNS, GROUP_NUMBERS, KEY_COLUMNS, KEY_NUMBERS, group_row, key_row, party_row, table
from .shape import limit_text, state

__all__ = ["paint"]

ALL_KEYS = "? help  q quit  up/down choose  enter open  g groups  s sort  p pause  r resize  u undo  c cancel"
ONE_KEY = "? help  q quit  esc back  up/down choose  g groups/tasks  c cancel  x run  p pause  r resize  u undo"
HELP = (
    ("up, down, k, j", "choose the one above or below; page up, page down, home and end go further"),
    ("enter", "open the chosen key: who holds it, and who waits, in turn"),
    ("escape", "back to all keys"),
    ("g", "show the groups of keys with fair_by, or the tasks again"),
    ("s", "sort by another column; the choice stays with its key"),
    ("p", "pause the key, or resume it: nothing enters a paused key, what runs, runs on"),
    ("r", "resize the key until it is reset"),
    ("u", "undo the last resize of the key that was made here"),
    ("c", "cancel the chosen task, once that is confirmed"),
    ("x", "let the chosen waiter pass its limits now, once that is confirmed"),
    ("q, Ctrl-C", "quit"),
)
"""What each key does. All changes are recorded: celery limits changes."""
AROUND = 6
"""Lines that are not rows: headline, header, and what is below."""

T = TypeVar("T")


def _window(rows: Sequence[T], place: int, height: int) -> tuple[int, Sequence[T]]:
    """As many rows as there is room for, with the chosen one among them, and the number of the first."""
    first = max(0, min(place - height // 2, len(rows) - height))
    return first, rows[first : first + height]


def _mark(row: Sequence[Text], chosen: bool) -> list[Text]:
    if not chosen:
        return list(row)
    return [Text(cell.plain, style="reverse") for cell in row]


def _keys(board: Board, height: int) -> Table:
    first, shown = _window(board.statuses, board.place, height)
    rows = [_mark(key_row(status), first + i == board.place) for i, status in enumerate(shown)]
    return table(KEY_COLUMNS, rows, right=KEY_NUMBERS)


def _parties(board: Board, height: int) -> Table:
    opened = board.opened
    assert opened is not None
    holders = len(opened.holders)
    first, shown = _window(board.parties, board.place, height)

    def row(number: int, party: Party) -> list[Text]:
        role = "holds" if number < holders else f"waits {number - holders + 1}"
        *cells, _, since = [role, *party_row(party, opened.now)]
        cells.append(since)
        return _mark([Text(cell) for cell in cells], number == board.place)

    rows = [row(first + i, party) for i, party in enumerate(shown)]
    return table(("", "TASK", "ID", "STATE", "WORKER", "SINCE"), rows, right=("SINCE",))


def _groups(board: Board, height: int) -> Table:
    opened = board.opened
    assert opened is not None
    first, shown = _window(opened.groups, board.place, height)
    rows = [
        _mark([Text(cell) for cell in group_row(group, opened.now)], first + i == board.place)
        for i, group in enumerate(shown)
    ]
    return table(GROUP_COLUMNS, rows, right=GROUP_NUMBERS)


def _body(board: Board, height: int) -> Table | Text:
    if board.opened is None:
        return _keys(board, height) if board.statuses else Text("no keys are in use", style="dim")
    if not board.rows:
        return Text("no task holds this key or waits for it", style="dim")
    return _groups(board, height) if board.by_group else _parties(board, height)


def _headline(board: Board) -> Text:
    clock = time.strftime("%H:%M:%S")
    if board.opened is not None:
        one = board.opened
        marks = f" ({state(one)})" if state(one) else ""
        key = printable(one.key)
        text = f"{key}  limit {limit_text(one)}{marks}  {one.held} held  {one.waiting} waiting"
    else:
        waiting = sum(status.waiting for status in board.statuses)
        text = f"{len(board.statuses)} keys  {waiting} waiting  by {board.order}  {board.limits.url}"
    return Text.assemble((f"limits {clock}  ", "bold"), text, overflow="ellipsis", no_wrap=True)


def _foot(board: Board) -> Text:
    if board.question is not None:
        return Text.assemble((printable(board.question.text), "bold"), board.question.answer, ("_", "blink"))
    if board.trouble:
        return Text(printable(board.trouble), style="bold red")
    return Text(printable(board.said), style="bold")


def paint(board: Board, height: int) -> Group:
    """The board for a terminal of this height, in lines."""
    room = max(1, height - AROUND)
    if board.helping:
        shown = table(("KEY", "WHAT IT DOES"), HELP)
        return Group(_headline(board), Text(), shown, Text(), Text("? or esc closes this", style="dim"))
    keys = Text(ALL_KEYS if board.opened is None else ONE_KEY, style="dim", no_wrap=True, overflow="ellipsis")
    return Group(_headline(board), Text(), _body(board, room), Text(), _foot(board), keys)
