"""Tables, through rich: coloured in a terminal, plain and never cut in a file or pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from celery_limits.app.summary import health, set_by
from celery_limits.printable import printable
from celery_limits.store.status import Group, Party, Status

from .shape import duration, frequency, limit_text, state

__all__ = [
    "GROUP_COLUMNS",
    "GROUP_NUMBERS",
    "KEY_COLUMNS",
    "KEY_NUMBERS",
    "all_groups_table",
    "console",
    "group_row",
    "groups_table",
    "key_row",
    "keys_table",
    "parties_table",
    "party_row",
    "table",
]

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
        result.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    return result


KEY_COLUMNS = (
    *("KEY", "KIND", "LIMIT", "HELD", "BODIES", "WAITING", "OLDEST WAIT", "RATE NOW", "HEALTH", "SET BY", "STATE"),
)
KEY_NUMBERS = ("LIMIT", "HELD", "BODIES", "WAITING", "OLDEST WAIT", "RATE NOW")


def _style(status: Status) -> str:
    if status.paused:
        return "yellow"
    if status.waiting:
        return "bold"
    return "" if status.running else "dim"


def key_row(status: Status) -> list[Text]:
    cells = (
        printable(status.key),
        status.kind or "?",
        limit_text(status),
        "-" if status.kind in ("rate", "debounce") else str(status.held),
        "-" if status.kind in ("rate", "debounce") or status.bodies is None else str(status.bodies),
        str(status.waiting),
        duration(status.oldest_wait),
        frequency(status.rate_now),
        health(status),
        set_by(status),
        state(status),
    )
    return [Text(cell, style=_style(status)) for cell in cells]


def keys_table(statuses: Iterable[Status]) -> Table:
    rows = [key_row(status) for status in statuses]
    return table(KEY_COLUMNS, rows, right=KEY_NUMBERS)


def party_row(party: Party, now: float) -> list[str]:
    since = duration(None if party.since is None else max(0.0, now - party.since))
    worker = f"{party.worker} (lease lapsed)" if party.lapsed else party.worker or "-"
    weight = "" if party.weight is None else str(party.weight)
    shown = (party.task or "?", party.task_id, party.state, worker, weight, since)
    return [printable(cell) for cell in shown]


def parties_table(parties: Sequence[Party], now: float, *, numbered: bool = False) -> Table:
    """Those who hold a key, or (numbered) those who wait for it."""
    heavy = any(party.weight not in (None, 1) for party in parties)
    rows = []
    for place, party in enumerate(parties, 1):
        *cells, weight, since = party_row(party, now)
        rows.append([*([str(place)] if numbered else []), *cells, *([weight] if heavy else []), since])
    columns = (*(["#"] if numbered else []), "TASK", "ID", "STATE", "WORKER", *(["SLOTS"] if heavy else []), "SINCE")
    return table(columns, rows, right=("#", "SLOTS", "SINCE"))


GROUP_COLUMNS = ("GROUP", "HELD", "SHARE", "WAITING", "OLDEST WAIT")
GROUP_NUMBERS = GROUP_COLUMNS[1:]


def group_row(group: Group, now: float) -> list[str]:
    wait = duration(None if group.since is None else max(0.0, now - group.since))
    return [printable(group.group), str(group.held), f"{group.share:g}", str(group.waiting), wait]


def all_groups_table(statuses: Iterable[Status]) -> Table:
    """The groups of several keys. Keys without `fair_by` have none, and are not shown."""
    rows = [[printable(s.key), *group_row(group, s.now)] for s in statuses for group in s.groups]
    return table(("KEY", *GROUP_COLUMNS), rows, right=GROUP_NUMBERS)


def groups_table(groups: Sequence[Group], now: float) -> Table:
    """In turn: whose turn comes next is first."""
    return table(GROUP_COLUMNS, [group_row(group, now) for group in groups], right=GROUP_NUMBERS)
