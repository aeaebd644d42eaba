"""The commands that change something: `resize`, `reset`, `pause`, `resume`, `cancel`, `run`. Each is recorded in
the log of changes."""

from __future__ import annotations

from fnmatch import filter as fnfilter

import click
from celery.bin.base import CeleryOption

from celery_limits.declare.limits import parse_rate
from celery_limits.errors import LimitError, Refused
from celery_limits.printable import printable
from celery_limits.store.changes import Author
from celery_limits.store.steering import stopped_queues

from .base import Failure, Session, limits_command
from .complete import complete_key
from .shape import duration, key_data, limit_text, use_text
from .times import DURATION

__all__ = ["cancel", "pause", "reset", "resize", "resume", "run", "size_of"]

_GLOB = frozenset("*?[")
NAMED = 5
"""Keys that an error names."""
_NEW = " To steer it all the same, before anyone uses it, add --new."

key_argument = click.argument("key", shell_complete=complete_key)
new_option = click.option("--new", is_flag=True, cls=CeleryOption, help="KEY may be one that nobody has used yet.")


reason_option = click.option("--reason", default="", metavar="TEXT", cls=CeleryOption,
                             help="Why, for the log of changes.")  # fmt: skip
for_option = click.option("--for", "seconds", type=DURATION, metavar="TIME", cls=CeleryOption,
                          help="It ends by itself after this time: 30s, 10m, 1h30m.")  # fmt: skip


def _author(reason: str) -> Author:
    return Author(via="cli", reason=reason)


def _lasts(seconds: float | None, else_: str) -> str:
    return else_ if seconds is None else f"for {duration(seconds)}"


def _existing(session: Session, key: str, new: bool) -> None:
    """A misspelt key, or a pattern, would be steered in vain, and nobody would know."""
    if not new:
        if not _GLOB.isdisjoint(key) and not session.limits.store.status(key, 0).known:
            raise _pattern(session, key)
        session.status(key, hint=_NEW)


def _pattern(session: Session, key: str) -> Failure:
    store = session.limits.store
    found = fnfilter(store.keys(), key)
    named = f"; these match it: {', '.join(map(repr, found[:NAMED]))}" if found else ", and no key matches it"
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return Failure(f"{key!r} is a pattern, and one key is steered at a time{named}{more}", "Pattern")


def _after(session: Session, key: str, text: str) -> None:
    status = session.limits.catalogue().complete(session.limits.store.status(key, 0))
    session.say(key_data(status), f"{printable(text)}; {use_text(status)}")


def size_of(key: str, kind: str | None, text: str) -> int | str:
    """What was written, as the kind of the key needs it."""
    is_rate = kind == "rate" or (kind is None and not text.isdecimal())
    if not is_rate:
        if not text.isdecimal():
            raise Failure(f"{key!r} is a limit of concurrency: its size is a whole number, not {text!r}", "BadSize")
        return int(text)
    if text.isdecimal() and text != "0":
        units = f"'{text}/s', '{text}/m', '{text}/h', '{text}/d' or '{text}/w'"
        raise Failure(f"{key!r} is a rate: write {units}", "BadSize")
    try:
        return parse_rate(text).text
    except Refused as error:
        raise Failure(str(error), "BadSize") from None


@limits_command("resize")
@key_argument
@click.argument("size")
@click.option("--burst", type=click.IntRange(1), cls=CeleryOption, help="For a rate: how many may pass at once.")
@for_option
@reason_option
@new_option
def resize(
    session: Session, key: str, size: str, burst: int | None, seconds: float | None, reason: str, new: bool
) -> None:
    """Give KEY another SIZE: slots ("5"), or a rate ("100/m").

    It is in force for all tasks at once, whatever they declare, and stays so through restarts and deploys until
    `reset`; with --for, until the time is up, and then what was in force before is so again. What runs already runs on.
    """
    status = session.limits.catalogue().complete(session.limits.store.status(key, 0))
    _existing(session, key, new)
    value = size_of(key, status.kind, size)
    if burst is not None and not isinstance(value, str):
        raise Failure(f"--burst is for rates, and {key!r} is none", "BadSize")
    try:
        session.limits.resize(key, value, burst or status.burst or 1, seconds=seconds, author=_author(reason))
    except Refused as error:
        raise LimitError(str(error)) from None
    before = limit_text(status)
    lasts = _lasts(seconds, "until 'limits reset'")
    _after(session, key, f"{key}: limit {value} instead of {before}, {lasts}")


@limits_command("reset")
@key_argument
@reason_option
@new_option
def reset(session: Session, key: str, reason: str, new: bool) -> None:
    """Let what the tasks declare for KEY be in force again."""
    _existing(session, key, new)
    session.limits.reset(key, author=_author(reason))
    _after(session, key, f"{key}: limit as declared")


some_key = click.argument("key", required=False, shell_complete=complete_key)
queue_option = click.option("--queue", metavar="NAME", cls=CeleryOption, help="A queue in place of a key.")


def _one_of(key: str | None, queue: str | None) -> None:
    if (key is None) == (queue is None):
        raise click.UsageError("Give either a KEY or --queue NAME.")


def _queue_data(session: Session, queue: str) -> dict[str, object]:
    found = stopped_queues(session.limits.store).get(queue)
    data: dict[str, object] = {"queue": queue, "paused": found is not None}
    if found is not None:
        data |= {"since": found.since, "until": found.until, "by": found.by, "reason": found.reason}
    return data


def _known_queue(session: Session, queue: str, new: bool) -> None:
    """A misspelt queue would be paused in vain, and nobody would know."""
    names = sorted(session.app.amqp.queues)
    if not new and queue not in names and queue not in stopped_queues(session.limits.store):
        raise Failure(
            f"the app declares no queue {queue!r}, only {', '.join(map(repr, names[:NAMED]))}; for one that workers "
            "are told to consume by name (-Q), add --new",
            "UnknownQueue",
        )


@limits_command("pause")
@some_key
@queue_option
@for_option
@reason_option
@new_option
def pause(session: Session, key: str | None, queue: str | None, seconds: float | None, reason: str, new: bool) -> None:
    """Let nothing enter KEY until `resume`; what runs, runs on.

    With --queue, workers on limits+redis:// fetch nothing from that queue; what they have fetched, runs. With
    --for, it ends by itself.
    """
    _one_of(key, queue)
    lasts = _lasts(seconds, "until 'limits resume'")
    if queue is not None:
        _known_queue(session, queue, new)
        session.limits.pause_queue(queue, seconds=seconds, author=_author(reason))
        return session.say(_queue_data(session, queue), f"queue {printable(queue)}: paused {lasts}")
    assert key is not None
    _existing(session, key, new)
    session.limits.pause(key, seconds=seconds, author=_author(reason))
    return _after(session, key, f"{key}: paused {lasts}")


@limits_command("resume")
@some_key
@queue_option
@reason_option
@new_option
def resume(session: Session, key: str | None, queue: str | None, reason: str, new: bool) -> None:
    """Let tasks enter the paused KEY, or workers fetch from the paused queue, again."""
    _one_of(key, queue)
    if queue is not None:
        _known_queue(session, queue, new)
        session.limits.resume_queue(queue, author=_author(reason))
        return session.say(_queue_data(session, queue), f"queue {printable(queue)}: resumed")
    assert key is not None
    _existing(session, key, new)
    session.limits.resume(key, author=_author(reason))
    return _after(session, key, f"{key}: resumed")


@limits_command("run")
@click.argument("task_id")
@reason_option
def run(session: Session, task_id: str, reason: str) -> int:
    """Let the task TASK_ID, which waits, pass its limits now, although they have no room.

    It holds its slots like any other, so nobody else enters those keys until they are below their size again; a rate is
    charged. It is counted, shown as forced, and recorded in the log of changes. Exit code 1 if the task does not wait.
    """
    forced = session.limits.run(task_id, author=_author(reason))
    data = {"task_id": task_id, "ran": forced.let, "begun": forced.begun, "over": list(forced.keys)}
    shown = printable(task_id)
    if forced.let:
        keys = ", ".join(map(printable, forced.keys))
        session.say(data, f"{shown}: let through past {keys}; until the first ends there, the limit is exceeded")
        return 0
    why = "runs, or has its turn already" if forced.begun else "does not wait for a limit"
    session.say(data, f"{shown}: {why}; nothing was changed")
    return 0 if forced.begun else 1


@limits_command("cancel")
@click.argument("task_id")
@reason_option
def cancel(session: Session, task_id: str, reason: str) -> None:
    """End the task TASK_ID where it waits: its result is revoked, and it will not start.

    What has begun runs on: `celery control terminate` ends it.
    """
    outcome = session.limits.cancel(task_id, author=_author(reason))
    data = {"task_id": task_id, "ended": len(outcome.ended), "running": outcome.running}
    shown = printable(task_id)
    text = f"{shown}: not waiting for a limit; if its message is still in a queue, the task will not start"
    if outcome.ended:
        text = f"{shown}: cancelled; its result is REVOKED"
    if outcome.running:
        text = f"{shown}: already running, and not stopped; 'celery control terminate SIGTERM {shown}' stops it"
    session.say(data, text)
