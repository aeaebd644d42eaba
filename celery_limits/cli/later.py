"""The command `later`: what waits in the store for its eta."""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import islice
from typing import Any

import click
from celery.bin.base import CeleryOption

from celery_limits.app.task_names import name_in
from celery_limits.message.header import task_id_of
from celery_limits.store.later import Delayed, count_delayed, read_delayed
from celery_limits.store.namespace_time import now_and_lead

from .base import Session, limits_command
from .shape import duration

__all__ = ["delayed_footer", "later"]

SHOWN = 50


def _data(entry: Delayed, now: float, lead: float) -> dict[str, Any]:
    due = entry.due - lead  # by the server's clock
    return {
        "task": name_in(entry.message),
        "task_id": task_id_of(entry.ticket),
        "queue": entry.queue,
        "due": round(due, 6),
        "due_at": datetime.fromtimestamp(due, timezone.utc).isoformat(),
        "due_in": round(max(0.0, entry.due - now), 3),
    }


@limits_command("later")
@click.option("--limit", type=click.IntRange(1), cls=CeleryOption, metavar="N",
              help=f"How many to list. Default: {SHOWN}, with --json all.")  # fmt: skip
def later(session: Session, limit: int | None) -> None:
    """List the tasks that wait in the store for their eta or countdown, the next one first."""
    store = session.limits.store
    (now, lead), most = now_and_lead(store), limit if limit is not None or session.as_json else SHOWN
    data = [_data(entry, now, lead) for entry in read_delayed(store, most)]
    if session.as_json:
        return session.emit(data)
    if not data:
        return session.say(data, "No task is delayed.")
    from .screen import table  # noqa: PLC0415  (imports rich)

    rows = [(row["task"] or "?", row["task_id"], row["queue"], duration(row["due_in"]), row["due_at"]) for row in data]
    session.emit(data, table(("TASK", "ID", "QUEUE", "DUE IN", "DUE AT"), rows, right=("DUE IN",)))
    if (more := count_delayed(store) - len(data)) > 0:
        click.echo(f"and {more} more; --limit lists more of them")
    return None


def delayed_footer(session: Session) -> str:
    """For `list`: '' where no task is delayed."""
    store = session.limits.store
    if not (count := count_delayed(store)):
        return ""
    first = next(islice(read_delayed(store, 1), 1), None)
    due = "" if first is None else f", the next one is due in {duration(max(0.0, first.due - now_and_lead(store)[0]))}"
    return f"{count} delayed until {'its' if count == 1 else 'their'} eta{due}; 'limits later' lists them"
