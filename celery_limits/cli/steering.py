"""The commands that change something: `resize`, `reset`, `pause`, `resume`, `cancel`."""

from __future__ import annotations

import click
from celery.bin.base import CeleryOption

from celery_limits.errors import LimitError, Refused
from celery_limits.limits import parse_rate

from .base import Failure, Session, limits_command
from .complete import complete_key
from .shape import key_data, limit_text

__all__ = ["cancel", "pause", "reset", "resize", "resume", "size_of"]

_NEW = " To steer it all the same, before anyone uses it, add --new."

key_argument = click.argument("key", shell_complete=complete_key)
new_option = click.option("--new", is_flag=True, cls=CeleryOption, help="KEY may be one that nobody has used yet.")


def _existing(session: Session, key: str, new: bool) -> None:
    """A misspelt key would be steered in vain, and nobody would know."""
    if not new:
        session.status(key, hint=_NEW)


def _after(session: Session, key: str, text: str) -> None:
    status = session.limits.catalogue().complete(session.limits.store.status(key, 0))
    session.say(key_data(status), f"{text}; {status.running} running, {status.waiting} waiting")


def size_of(key: str, kind: str | None, text: str) -> int | str:
    """What was written, as the kind of the key needs it."""
    is_rate = kind == "rate" or (kind is None and not text.isdecimal())
    if not is_rate:
        if not text.isdecimal():
            raise Failure(f"{key!r} is a limit of concurrency: its size is a whole number, not {text!r}", "BadSize")
        return int(text)
    if text.isdecimal() and text != "0":
        raise Failure(f"{key!r} is a rate: write '{text}/s', '{text}/m' or '{text}/h'", "BadSize")
    try:
        return parse_rate(text).text
    except Refused as error:
        raise Failure(str(error), "BadSize") from None


@limits_command("resize")
@key_argument
@click.argument("size")
@click.option("--burst", type=click.IntRange(1), cls=CeleryOption, help="For a rate: how many may pass at once.")
@new_option
def resize(session: Session, key: str, size: str, burst: int | None, new: bool) -> None:
    """Give KEY another SIZE: slots ("5"), or a rate ("100/m").

    It is in force for all tasks at once, whatever they declare, and stays so through restarts and deploys until
    `reset`. What runs already runs on.
    """
    status = session.limits.catalogue().complete(session.limits.store.status(key, 0))
    _existing(session, key, new)
    value = size_of(key, status.kind, size)
    if burst is not None and not isinstance(value, str):
        raise Failure(f"--burst is for rates, and {key!r} is none", "BadSize")
    try:
        session.limits.resize(key, value, burst or status.burst or 1)
    except Refused as error:
        raise LimitError(str(error)) from None
    before = limit_text(status)
    _after(session, key, f"{key}: {value} instead of {before}, until it is reset")


@limits_command("reset")
@key_argument
@new_option
def reset(session: Session, key: str, new: bool) -> None:
    """Let what the tasks declare for KEY be in force again."""
    _existing(session, key, new)
    session.limits.reset(key)
    _after(session, key, f"{key}: as declared")


@limits_command("pause")
@key_argument
@new_option
def pause(session: Session, key: str, new: bool) -> None:
    """Let nothing enter KEY until `resume`; what runs, runs on."""
    _existing(session, key, new)
    session.limits.pause(key)
    _after(session, key, f"{key}: paused until it is resumed")


@limits_command("resume")
@key_argument
@new_option
def resume(session: Session, key: str, new: bool) -> None:
    """Let tasks enter the paused KEY again."""
    _existing(session, key, new)
    session.limits.resume(key)
    _after(session, key, f"{key}: resumed")


@limits_command("cancel")
@click.argument("task_id")
def cancel(session: Session, task_id: str) -> None:
    """End the task TASK_ID where it waits: its result is revoked, and it will not start.

    What has begun runs on: `celery control terminate` ends it.
    """
    outcome = session.limits.cancel(task_id)
    data = {"task_id": task_id, "ended": len(outcome.ended), "running": outcome.running}
    text = f"{task_id}: does not wait for a limit; if it is in a queue, it will not start"
    if outcome.ended:
        text = f"{task_id}: ended where it waited"
    if outcome.running:
        text = f"{task_id}: runs already, and runs on; 'celery control terminate SIGTERM {task_id}' ends it"
    session.say(data, text)
