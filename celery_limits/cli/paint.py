"""How `top` looks: a headline, as many rows as fit around the chosen one, and the keys that can be pressed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

from rich.console import Group
from rich.table import Table
from rich.text import Text

from celery_limits.store.reads import Party

from .board import Board
from .screen import KEY_COLUMNS, KEY_NUMBERS, key_row, party_row, table
from .shape import limit_text, state

__all__ = ["paint"]

ALL_KEYS = "q quit  up/down choose  enter open  s sort  p pause  r resize  u undo  c cancel"
ONE_KEY = "q quit  esc back  up/down choose  c cancel  p pause  r resize  u undo"
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
        cells = [role, *party_row(party, opened.now)]
        return _mark([Text(cell) for cell in cells], number == board.place)

    rows = [row(first + i, party) for i, party in enumerate(shown)]
    return table(("", "TASK", "ID", "STATE", "WORKER", "SINCE"), rows, right=("SINCE",))


def _headline(board: Board) -> Text:
    clock = time.strftime("%H:%M:%S")
    if board.opened is not None:
        one = board.opened
        marks = f" ({state(one)})" if state(one) else ""
        text = f"{one.key}  limit {limit_text(one)}{marks}  {one.running} running  {one.waiting} waiting"
    else:
        waiting = sum(status.waiting for status in board.statuses)
        text = f"{len(board.statuses)} keys  {waiting} waiting  by {board.order}  {board.limits.url}"
    return Text.assemble((f"limits {clock}  ", "bold"), text, overflow="ellipsis", no_wrap=True)


def _foot(board: Board) -> Text:
    if board.question is not None:
        return Text.assemble((board.question.text, "bold"), board.question.answer, ("_", "blink"))
    if board.trouble:
        return Text(board.trouble, style="bold red")
    return Text(board.said, style="bold")


def paint(board: Board, height: int) -> Group:
    """The board for a terminal of so many lines."""
    room = max(1, height - AROUND)
    body = _keys(board, room) if board.opened is None else _parties(board, room)
    nothing = Text("nobody is here" if board.opened is not None else "no keys are in use", style="dim")
    rows = board.statuses if board.opened is None else board.parties
    keys = Text(ALL_KEYS if board.opened is None else ONE_KEY, style="dim", no_wrap=True, overflow="ellipsis")
    return Group(_headline(board), Text(), body if rows else nothing, Text(), _foot(board), keys)
