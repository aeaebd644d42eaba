"""`top`: the keys, live in a terminal, with keys to pause, resize and cancel; a plain table anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import click
from celery.bin.base import CeleryOption

from .base import Session, limits_command
from .board import Board
from .complete import complete_key
from .reading import ORDERS
from .shape import grouped_data

__all__ = ["top"]


@limits_command("top")
@click.argument("pattern", default="*", shell_complete=complete_key)
@click.option("--sort", type=click.Choice(list(ORDERS)), default="waiting", cls=CeleryOption, help="What comes first.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, cls=CeleryOption,
              metavar="SECONDS", help="Time between two readings of the store.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), cls=CeleryOption, metavar="N",
              help="End after N readings. Default: never in a terminal, else after one.")  # fmt: skip
@click.option("--groups", is_flag=True, cls=CeleryOption,
              help="Show the groups of keys with fair_by: slots held, share, waiting, oldest wait.")  # fmt: skip
def top(session: Session, pattern: str, sort: str, interval: float, count: int | None, groups: bool) -> None:
    """Watch the keys that match PATTERN, and steer them.

    In a terminal: arrows choose a key, enter opens it, g shows its groups or its tasks, s sorts, p pauses or resumes,
    r resizes, u undoes the last resize of the key, c cancels a task, x lets a waiter pass its limits, ? explains the
    keys, q quits. Where the output is no terminal, or with --json, it is printed instead.
    """
    board = Board(session.limits, pattern, sort, session.explained, by_group=groups)
    if session.as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        _print(session, board, interval, count or 1)
    else:
        _watch(session, board, interval, count)


def _print(session: Session, board: Board, interval: float, count: int) -> None:
    for turn in range(count):
        if turn:
            time.sleep(interval)
        board.read()
        data = [grouped_data(status) for status in board.statuses]
        if session.as_json:
            session.emit(data)
            continue
        from .screen import all_groups_table, keys_table  # noqa: PLC0415  (imports rich)

        session.emit(data, (all_groups_table if board.by_group else keys_table)(board.statuses))


def _watch(session: Session, board: Board, interval: float, count: int | None) -> None:
    """Draws after each look and after each key, until `q`, Ctrl-C or the last look."""
    from rich.live import Live  # noqa: PLC0415

    from .keyboard import Keyboard  # noqa: PLC0415  (no terminal on some systems)
    from .paint import paint  # noqa: PLC0415

    console = session.console
    with Keyboard() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            for presses in _turns(board, keyboard.presses, interval, count):
                if not all(board.press(key) for key in presses):
                    return
                live.update(paint(board, console.height), refresh=True)
        except KeyboardInterrupt:
            return


def _turns(
    board: Board, presses: Callable[[float], list[str]], interval: float, count: int | None
) -> Iterator[list[str]]:
    """Looks when it is time to; yields the keys that were pressed meanwhile, at once."""
    looks = 0
    while count is None or looks < count:
        board.look()
        looks += 1
        yield []
        next_look = time.monotonic() + interval
        while (left := next_look - time.monotonic()) > 0:
            pressed = presses(left)
            if pressed:
                yield pressed
