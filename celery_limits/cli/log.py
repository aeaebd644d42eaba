"""`changes`: who changed what, and why; `report`: how it is, in one paragraph."""

from __future__ import annotations

from datetime import datetime, timezone

import click
from celery.bin.base import CeleryOption

from celery_limits.app.summary import duration, report
from celery_limits.printable import printable
from celery_limits.store.changes import MOST_KEPT, Change
from celery_limits.store.lookups import leases
from celery_limits.store.steering import stopped_queues

from .base import Session, limits_command
from .shape import change_data, key_data, stopped_data

__all__ = ["change_text", "changes", "report_"]


def clock(seconds: float) -> str:
    """In this machine's time zone."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def change_text(change: Change) -> str:
    """What was changed, without when, who and why."""
    if change.what in ("resize", "reset"):
        text = f"{change.old or 'as declared'} to {change.new or 'as declared'}"
    elif change.what in ("run", "cancel"):
        text = change.new or ""
    else:
        text = ""
    return text if change.until is None else f"{text} for {duration(change.until - change.at)}".strip()


@limits_command("changes")
@click.argument("key", required=False)
@click.option("--count", type=click.IntRange(1, MOST_KEPT), default=50, show_default=True, cls=CeleryOption,
              metavar="N", help="How many to show.")  # fmt: skip
def changes(session: Session, key: str | None, count: int) -> None:
    """Show what people have changed, the newest first: when, who, what, from what to what, and why.

    With KEY, only the changes of that key. The store keeps the last 1000.
    """
    found = session.limits.changes(count, key)
    data = [change_data(change) for change in found]
    if session.as_json:
        return session.emit(data)
    if not found:
        return session.say(data, "Nobody has changed anything.")
    from .screen import table  # noqa: PLC0415  (imports rich)

    rows = [
        [clock(o.at), o.by or "-", o.via, o.what, printable(o.subject), printable(change_text(o)), printable(o.reason)]
        for o in found
    ]
    return session.emit(data, table(("WHEN", "WHO", "VIA", "WHAT", "OF", "CHANGE", "REASON"), rows))


@limits_command("report")
def report_(session: Session) -> None:
    """Say how the limits are, in one paragraph, for a chat or a cron job."""
    limits = session.limits
    statuses, stopped = limits.overview(), stopped_queues(limits.store)
    workers = leases(limits.store)
    alive = [name for name, until in workers.items() if until > 0]
    text = report(statuses, len(alive), stopped.values())
    data = {
        "report": text,
        "keys": len(statuses),
        "waiting": sum(status.waiting for status in statuses),
        "held": sum(status.held for status in statuses),
        "workers": len(alive),
        "paused": [key_data(status)["key"] for status in statuses if status.paused],
        "resized": [status.key for status in statuses if status.steered],
        "queues": [stopped_data(queue) for queue in stopped.values()],
    }
    session.say(data, printable(text))
