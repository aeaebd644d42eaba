"""What is seen of the demo: a live picture in a terminal, a line a second anywhere else; at the end, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .play import KeyView, View
from .verdict import Finding

__all__ = ["Show", "live", "plain", "show_verdict"]

COLOURS = {"acme": "red", "birch": "green", "cedar": "cyan"}
LONGEST_LINE = 40
"""Waiters that are drawn; of a longer line only the number is exact."""
NEWS = 6


class Show(Protocol):
    def __call__(self, view: View) -> Any: ...


@contextmanager
def live(console: Console) -> Iterator[Show]:
    """A picture that is drawn anew with each look, and stays as it was at the end."""
    with Live(console=console, auto_refresh=False) as screen:
        yield lambda view: screen.update(picture(view), refresh=True)


@contextmanager
def plain(console: Console) -> Iterator[Show]:
    """News at once, and once a second how far it is."""
    told, last = 0, -1

    def show(view: View) -> None:
        nonlocal told, last
        for line in view.news[told:]:
            console.print(line, highlight=False, soft_wrap=True)
        told = len(view.news)
        if int(view.seconds) != last and view.done:
            last = int(view.seconds)
            console.print(f"{view.seconds:5.1f} s  {_summary(view)}", highlight=False, soft_wrap=True)

    yield show


def _summary(view: View) -> str:
    tenants = ", ".join(f"{tenant} {view.done.get(tenant, 0)}/{total}" for tenant, total in view.total.items())
    slots = [key for key in view.keys if key.limit.isdigit()]
    keys = ", ".join(f"{key.key} {key.running}/{key.limit} (+{key.waiting})" for key in slots)
    return f"shipped: {tenants} | slots (+waiting): {keys}"


def picture(view: View) -> RenderableType:
    workers = Text("  ").join(
        Text(f"worker {name}: {state}", "bold white on red" if state == "KILLED" else "green")
        for name, state in view.workers.items()
    )
    news = [Text(line, "bold red" if "SIGKILL" in line else "dim") for line in view.news[-NEWS:]]
    group = Group(_tenants(view), Text(), _keys(view.keys), Text(), workers, Text(), *news)
    return Panel(group, title=f"celery_limits  {view.seconds:4.1f} s", border_style="blue", width=100)


def _tenants(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    for tenant, total in view.total.items():
        done = view.done.get(tenant, 0)
        colour = COLOURS[tenant]
        bar = ProgressBar(total, done, width=50, complete_style=colour, finished_style=colour)
        note = "floods" if tenant == "acme" else ""
        table.add_row(Text(tenant, colour), bar, f"{done}/{total} shipped", Text(note, "dim"))
    return table


def _keys(keys: Sequence[KeyView]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("KEY", "SLOTS IN USE", "LIMIT", "WAITING"):
        table.add_column(name, no_wrap=True)
    for key in keys:
        colour = COLOURS.get(key.key.partition(":")[2], "yellow")
        slots = Text("■" * key.running, colour)
        if key.limit.isdigit():
            slots.append("□" * max(0, int(key.limit) - key.running), "dim")
        line = Text("●" * min(key.waiting, LONGEST_LINE), colour) + Text(f" {key.waiting}" if key.waiting else "")
        table.add_row(Text(key.key, colour), slots, key.limit, line)
    return table


def show_verdict(console: Console, findings: Sequence[Finding], pictures: Sequence[str]) -> None:
    table = Table(box=None, padding=(0, 2), show_header=False)
    for finding in findings:
        mark = Text("ok", "bold green") if finding.kept else Text("BROKEN", "bold red")
        table.add_row(mark, finding.promise, finding.figures)
    broken = sum(not finding.kept for finding in findings)
    console.print()
    console.print(table)
    console.print()
    verdict = f"{broken} of {len(findings)} guarantees BROKEN" if broken else f"all {len(findings)} guarantees kept"
    console.print(Text(f"verdict: {verdict}", "bold red" if broken else "bold green"))
    console.print(f"running tasks over time: {', '.join(pictures)}", highlight=False, soft_wrap=True)
