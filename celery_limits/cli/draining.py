"""The command `drain`: back to plain Celery."""

from __future__ import annotations

import click
from celery.bin.base import CeleryOption

from celery_limits.app.drain import Counts, StillRunning, count
from celery_limits.app.drain import drain as drain_store
from celery_limits.store.aside import read_aside

from .base import Failure, Session, limits_command

__all__ = ["drain"]


@limits_command("drain")
@click.option("--dry-run", is_flag=True, cls=CeleryOption, help="Only count the messages.")
@click.option("--force", is_flag=True, cls=CeleryOption, help="Drain although limited workers run.")
def drain(session: Session, dry_run: bool, force: bool) -> int:
    """Put every message that the store keeps back into its queue, for plain Celery workers to run.

    Those are tasks that wait for a limit, that were granted one and have not begun, and that are delayed until their
    eta. Stop the limited workers first. If the command is interrupted, run it again. Exit code 1 if messages are left.
    """
    limits = session.limits
    if dry_run:
        found = count(limits)
        session.say(
            {"dry_run": True, **found, "total": sum(found.values())}, f"{_told(found)} would go to their queues"
        )
        return 0
    try:
        outcome = drain_store(limits, force=force, progress=None if session.as_json else _say)
    except StillRunning as error:
        raise Failure(str(error), "StillRunning") from None
    aside = len(read_aside(limits.store))
    data = {"dry_run": False, **outcome.drained, "total": sum(outcome.drained.values()), "left": outcome.left,
            "aside": aside}  # fmt: skip
    lines = [f"{_told(outcome.drained)} are back in their queues"]
    if outcome.left:
        lines.append(f"{outcome.left} are left; see the log above, and run the command again")
    if aside:
        lines.append(f"{aside} were set aside before; 'limits aside' shows them")
    session.say(data, "\n".join(lines))
    return 1 if outcome.left else 0


def _told(found: Counts) -> str:
    return f"{sum(found.values())} messages ({', '.join(f'{number} {state}' for state, number in found.items())})"


def _say(done: int, all_: int) -> None:
    click.echo(f"{done} of {all_}", err=True)
