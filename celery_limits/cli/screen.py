"""Tables, through rich: coloured in a terminal, plain and never cut in a file or pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from celery_limits.store.reads import Party, Status

from .shape import duration, frequency, limit_text, state

__all__ = ["KEY_COLUMNS", "KEY_NUMBERS", "console", "key_row", "keys_table", "parties_table", "party_row", "table"]

ENDLESS = 10_000
"""Columns of an output that nobody looks at in a window."""


def console(*, no_color: bool) -> Console:
    width = None if sys.stdout.isatty() else ENDLESS
    return Console(no_color=no_color or None, highlight=False, width=width, soft_wrap=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, right: Iterable[str] = ()) -> Table:
    """Columns named in `right` are numbers."""
    result = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    numbers = set(right)
    for name in columns:
        justify: JustifyMethod = "right" if name in numbers else "left"
        result.add_column(name, justify=justify, overflow="fold", min_width=len(name.partition(" ")[0]))
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return result


KEY_COLUMNS = ("KEY", "KIND", "LIMIT", "RUNNING", "WAITING", "OLDEST WAIT", "RATE NOW", "STATE")
KEY_NUMBERS = ("LIMIT", "RUNNING", "WAITING", "OLDEST WAIT", "RATE NOW")


def _style(status: Status) -> str:
    if status.paused:
        return "yellow"
    if status.waiting:
        return "bold"
    return "" if status.running else "dim"


def key_row(status: Status) -> list[Text]:
    cells = (
        status.key,
        status.kind or "?",
        limit_text(status),
        "-" if status.kind == "rate" else str(status.running),
        str(status.waiting),
        duration(status.oldest_wait),
        frequency(status.rate_now),
        state(status),
    )
    return [Text(cell, style=_style(status)) for cell in cells]


def keys_table(statuses: Iterable[Status]) -> Table:
    rows = [key_row(status) for status in statuses]
    return table(KEY_COLUMNS, rows, right=KEY_NUMBERS)


def party_row(party: Party, now: float) -> list[str]:
    since = duration(None if party.since is None else max(0.0, now - party.since))
    return [party.task or "?", party.task_id, party.state, party.worker or "-", since]


def parties_table(parties: Sequence[Party], now: float, *, numbered: bool = False) -> Table:
    """Those who hold a key, or (numbered) those who wait for it."""
    rows = [[*([str(place)] if numbered else []), *party_row(party, now)] for place, party in enumerate(parties, 1)]
    columns = (*(["#"] if numbered else []), "TASK", "ID", "STATE", "WORKER", "SINCE")
    return table(columns, rows, right=("#", "SINCE"))
