"""The commands that only look: `list`, `show`, `explain`, `tasks`."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import click
from celery.bin.base import CeleryOption

from celery_limits.naming import named, names_of
from celery_limits.store.reads import Explanation, Party, Status

from .base import Session, limits_command
from .complete import complete_key
from .shape import chain_data, duration, explanation_data, frequency, key_data, limit_text, shown_data, state

__all__ = ["ORDERS", "explain", "list_", "show", "tasks"]

ORDERS: dict[str, Callable[[Status], Any]] = {
    "key": lambda status: status.key,
    "waiting": lambda status: (-status.waiting, status.key),
    "running": lambda status: (-status.running, status.key),
    "oldest": lambda status: (-(status.oldest_wait or 0.0), status.key),
    "rate": lambda status: (-(status.rate_now or 0.0), status.key),
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
    """List the keys: limit, running, waiting, oldest wait, and how fast the line moves.

    PATTERN chooses among them, such as 'tenant:*'. Keys that are in use or steered are listed, and those that a task
    declares by their full name.
    """
    statuses = sorted(
        (s for s in session.limits.overview() if fnmatchcase(s.key, pattern) and (s.waiting or not waited)),
        key=ORDERS[sort],
    )
    data = [key_data(status) for status in statuses]
    if session.as_json:
        return session.emit(data)
    if not statuses:
        return session.say(data, "No keys are in use." if pattern == "*" else f"No key is like {pattern!r}.")
    from .screen import keys_table  # noqa: PLC0415  (imports rich)

    return session.emit(data, keys_table(statuses))


@limits_command("show")
@click.argument("key", shell_complete=complete_key)
@click.option("--page", type=click.IntRange(1, 1000), default=20, show_default=True, cls=CeleryOption, metavar="N",
              help="How many holders and waiters to name.")  # fmt: skip
@ask_option
def show(session: Session, key: str, page: int, timeout: float) -> None:
    """Show who holds KEY, and who waits for it, in turn."""
    status = named(session.app, session.limits.store, session.status(key, page), timeout)
    if session.as_json:
        return session.emit(shown_data(status))
    from .screen import parties_table  # noqa: PLC0415  (imports rich)

    click.echo(_headline(status))
    if status.holders:
        click.echo(f"\nHolders ({_of(status.holders, status.running)})")
        session.emit(None, parties_table(status.holders, status.now))
    if status.waiters:
        click.echo(f"\nWaiters, in turn ({_of(status.waiters, status.waiting)})")
        session.emit(None, parties_table(status.waiters, status.now, numbered=True))
    return None


def _of(named_: tuple[Party, ...], all_: int) -> str:
    return str(all_) if len(named_) >= all_ else f"{len(named_)} of {all_} named"


def _headline(status: Status) -> str:
    marks = state(status)
    parts = [f"{status.key}: {status.kind or 'kind not known'}, limit {limit_text(status)}"]
    if marks:
        parts[0] += f" ({marks})"
    parts.append("nobody runs" if not status.running else f"{status.running} running")
    if status.kind == "rate":
        parts.pop()
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
    session.say(explanation_data(told, names), _story(told, names))
    return 0 if told.tickets or told.cancelled else 1


def _story(told: Explanation, names: dict[str, str]) -> str:
    lines = []
    for story in told.tickets:
        since = "" if story.since is None else f" for {duration(max(0.0, story.now - story.since))}"
        lines.append(f"{names.get(story.ticket) or 'task'}[{told.task_id}] {story.state}{since}")
        lines.append(f"  chain: {' > '.join(f'[{key}]' if key in story.held else key for key in story.chain)}")
        if story.held:
            lines[-1] += "  (holds those in brackets)"
        lines.append(f"  {story}")
    if told.cancelled or not told.tickets:
        lines.append(str(Explanation(told.task_id, told.now, told.cancelled)))
    if not told.tickets:
        lines.append(f"'celery result {told.task_id}' tells what became of it, if its result is kept")
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
