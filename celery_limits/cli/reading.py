"""The commands that only look: `list`, `show`, `explain`, `tasks`."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import click
from celery.bin.base import CeleryOption

from celery_limits.app.summary import worst_first
from celery_limits.app.task_names import named, names_of
from celery_limits.printable import printable
from celery_limits.store.lookups import counted
from celery_limits.store.status import Explanation, Party, Status

from .base import Session, limits_command
from .complete import complete_key
from .later import delayed_footer
from .result import LookedUp, look_up
from .shape import (
    chain_data,
    duration,
    explanation_data,
    frequency,
    held_text,
    key_data,
    limit_text,
    shown_data,
    state,
)

__all__ = ["ORDERS", "explain", "list_", "show", "tasks"]

ORDERS: dict[str, Callable[[Status], Any]] = {
    "key": lambda status: status.key,
    "waiting": lambda status: (-status.waiting, status.key),
    "held": lambda status: (-status.held, status.key),
    "oldest": lambda status: (-(status.oldest_wait or 0.0), status.key),
    "rate": lambda status: (-(status.rate_now or 0.0), status.key),
    "health": worst_first,
}
"""How keys may be sorted."""

ASK_SECONDS = 2.0
"""How long workers are waited for; all that are alive have answered long before."""

ask_option = click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=ASK_SECONDS,
    show_default=True,
    metavar="SECONDS",
    cls=CeleryOption,
    help="How long to wait for workers to name what they run; 0 asks none.",
)


@limits_command("list")
@click.argument("pattern", default="*", shell_complete=complete_key)
@click.option("--sort", type=click.Choice(list(ORDERS)), default="key", cls=CeleryOption, help="What comes first.")
@click.option("--waited", is_flag=True, cls=CeleryOption, help="Only keys that tasks wait for.")
def list_(session: Session, pattern: str, sort: str, waited: bool) -> None:
    """List the keys: limit, slots held, bodies that run, waiting, oldest wait, how fast the line moves, and health.

    PATTERN chooses among them, such as 'tenant:*'. Keys that are in use or steered are listed, and those that a task
    declares by their full name.
    """
    statuses = sorted(
        (s for s in session.limits.overview() if fnmatchcase(s.key, pattern) and (s.waiting or not waited)),
        key=ORDERS[sort],
    )
    statuses = [counted(session.limits.store, status) for status in statuses]
    data = [key_data(status) for status in statuses]
    if session.as_json:
        return session.emit(data)
    if not statuses:
        session.say(data, "No keys are in use." if pattern == "*" else f"No keys match {pattern!r}.")
    else:
        from .screen import keys_table  # noqa: PLC0415  (imports rich)

        session.emit(data, keys_table(statuses))
    if footer := delayed_footer(session):
        click.echo(footer)
    return None


@limits_command("show")
@click.argument("key", shell_complete=complete_key)
@click.option("--page", type=click.IntRange(1, 1000), default=20, show_default=True, cls=CeleryOption, metavar="N",
              help="How many holders, waiters and groups to name.")  # fmt: skip
@ask_option
def show(session: Session, key: str, page: int, timeout: float) -> None:
    """Show who holds KEY, and who waits for it, in turn."""
    store = session.limits.store
    status = named(session.app, store, counted(store, session.status(key, page)), timeout)
    if session.as_json:
        return session.emit(shown_data(status))
    from .screen import groups_table, parties_table  # noqa: PLC0415  (imports rich)

    click.echo(_headline(status))
    if status.groups:
        click.echo("\nGroups, in turn")
        session.emit(None, groups_table(status.groups, status.now))
    if status.holders:
        click.echo(f"\nHolders ({_of(status.holders, status.holding)})")
        session.emit(None, parties_table(status.holders, status.now))
    if status.waiters:
        click.echo(f"\nWaiters, in turn ({_of(status.waiters, status.waiting)})")
        session.emit(None, parties_table(status.waiters, status.now, numbered=True))
    return None


def _of(named_: tuple[Party, ...], all_: int) -> str:
    return str(all_) if len(named_) >= all_ else f"{len(named_)} of {all_} named"


def _headline(status: Status) -> str:
    marks = state(status)
    parts = [f"{printable(status.key)}: {status.kind or 'kind not known'}, limit {limit_text(status)}"]
    if marks:
        parts[0] += f" ({marks})"
    if status.kind not in ("rate", "debounce"):
        parts.append(held_text(status))
        parts += [f"{status.bodies} running"] if status.held and status.bodies is not None else []
    parts.append("nobody waits" if not status.waiting else f"{status.waiting} waiting")
    if status.waiting:
        parts.append(f"the oldest for {duration(status.oldest_wait)}")
    if status.rate_now is not None:
        parts.append(f"the line moves at {frequency(status.rate_now)}")
    return ", ".join(parts)


@limits_command("explain")
@click.argument("task_id")
@ask_option
def explain(session: Session, task_id: str, timeout: float) -> int:
    """Explain where the task TASK_ID is, and why it does not run yet. Exit code 1 if the limits do not know it."""
    told = session.limits.explain(task_id)
    parties = [Party(s.ticket, task_id, s.state, s.worker, s.since) for s in told.tickets]
    names = names_of(session.app, session.limits.store, parties, timeout)
    result = None if told.tickets else look_up(session.app, task_id, timeout or ASK_SECONDS)
    session.say(explanation_data(told, names, result), _story(told, names, result))
    return 0 if told.tickets or told.cancelled or told.superseded_by else 1


def _story(told: Explanation, names: dict[str, str], result: LookedUp | None) -> str:
    lines = []
    for story in told.tickets:
        since = "" if story.since is None else f" for {duration(max(0.0, story.now - story.since))}"
        name = printable(names.get(story.ticket) or "task")
        state_ = f"was {story.state}, its worker counts as dead," if story.lapsed else story.state
        lines.append(f"{name}[{printable(told.task_id)}] {state_}{since}")
        chain = (f"[{printable(key)}]" if key in story.held else printable(key) for key in story.chain)
        if story.chain:
            lines.append(f"  chain: {' > '.join(chain)}")
        if story.held:
            lines[-1] += "  (holds those in brackets)"
        lines.append(f"  {story}")
    if told.superseded_by is not None:
        lines.append(told.trail)
    if told.cancelled or not (told.tickets or told.superseded_by):
        lines.append(str(Explanation(told.task_id, told.now, told.cancelled)))
    if result is not None:
        lines.append(f"{printable(told.task_id)}: {result}")
    return "\n".join(lines)


@limits_command("tasks")
@click.option("--all", "all_", is_flag=True, cls=CeleryOption, help="Also tasks without limits.")
def tasks(session: Session, all_: bool) -> None:
    """List the registered tasks with their declared limits, in the order in which they are walked."""
    declared = {chain.task: chain for chain in session.limits.declared()}
    names = sorted(name for name in session.app.tasks if all_ or name in declared)
    data = [chain_data(declared[name]) if name in declared else {"task": name, "limits": []} for name in names]
    if session.as_json:
        return session.emit(data)
    if not names:
        return session.say(data, "No registered task has limits.")
    from .screen import table  # noqa: PLC0415  (imports rich)

    rows = []
    for name in names:
        limits = declared[name].limits if name in declared else ()
        first = [name, *([""] * (len(limits) - 1))]
        rows += [[task, repr(limit)] for task, limit in zip(first, limits, strict=False)] or [[name, "-"]]
    return session.emit(data, table(("TASK", "LIMITS"), rows))
