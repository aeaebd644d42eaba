"""The verbs by which people steer keys, queues and tasks. With an `Author` the change is recorded; see `changes`."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from celery_limits.declare.limits import MAX_SIZE, parse_rate

from .changes import Author
from .errors import translated
from .namespace_time import now_and_lead
from .outcomes import Aftermath, Forced, text
from .policy import microseconds
from .script_runner import Arg

__all__ = ["Steering", "StoppedQueue", "stopped_queues"]


def _author(author: Author | None) -> tuple[str, ...]:
    return () if author is None else author.fields


def _time(seconds: float | None) -> Arg:
    if seconds is not None and not 0 < seconds <= 10**9:
        raise ValueError(f"{seconds!r} seconds: a time above 0 is needed")
    return "" if seconds is None else microseconds(seconds)


class Steering:
    """A part of `Store`. With `seconds` a setting ends by itself, by the store's clock."""

    def _run(self, verb: str, *args: Arg) -> Any:
        raise NotImplementedError

    def resize(
        self, key: str, size: int | str, burst: int = 1, *, seconds: float | None = None, author: Author | None = None
    ) -> Aftermath:
        """Slots for a concurrency key, a rate like "100/m" for a rate key; in force for everyone until `reset`. For
        a time, it gives way to what was in force before."""
        if not isinstance(size, str) and not (type(size) is int and 0 <= size <= MAX_SIZE):
            raise ValueError(f"size {size!r} of {key!r}: a whole number from 0 to {MAX_SIZE} is needed")
        if type(burst) is not int or burst < 1:
            raise ValueError(f"burst {burst!r} of {key!r}: a whole number of 1 or more is needed")
        field, value = ("size", str(size))
        if isinstance(size, str):
            field, value = "rate", f"{parse_rate(size).interval} {burst}"
        return cast(Aftermath, self._run("resize", key, field, value, _time(seconds), *_author(author)))

    def reset(self, key: str, *, author: Author | None = None) -> Aftermath:
        """What the tasks declare is in force again."""
        return cast(Aftermath, self._run("resize", key, "size", "", "", *_author(author)))

    def pause(self, key: str, *, seconds: float | None = None, author: Author | None = None) -> Aftermath:
        """Nothing enters the key; what holds it runs on."""
        return cast(Aftermath, self._run("pause", "key", key, "1", _time(seconds), *_author(author)))

    def resume(self, key: str, *, author: Author | None = None) -> Aftermath:
        return cast(Aftermath, self._run("pause", "key", key, "", "", *_author(author)))

    def stop_queue(self, queue: str, *, seconds: float | None = None, author: Author | None = None) -> Aftermath:
        """Our transport fetches nothing from the queue. A task of it whose turn comes gives it to the next, and
        keeps its place."""
        return cast(Aftermath, self._run("pause", "queue", queue, "1", _time(seconds), *_author(author)))

    def start_queue(self, queue: str, *, author: Author | None = None) -> Aftermath:
        return cast(Aftermath, self._run("pause", "queue", queue, "", "", *_author(author)))

    def run_now(self, task_id: str, *, author: Author | None = None) -> Forced:
        """A task that waits passes all its limits, whether or not they have room."""
        return cast(Forced, self._run("run", task_id, *_author(author)))


@dataclass(frozen=True, slots=True)
class StoppedQueue:
    """A queue that nothing is fetched from. Times are seconds of the server's clock."""

    queue: str
    since: float | None
    until: float | None
    by: str
    reason: str


def stopped_queues(store: Any) -> dict[str, StoppedQueue]:
    """By name."""
    with translated("stopped_queues"):
        found = store.client.hgetall(f"{store.prefix}stopped")
    if not found:
        return {}
    _, lead = now_and_lead(store)
    return {text(name): _stopped(text(name), raw, lead) for name, raw in sorted(found.items())}


def _stopped(queue: str, raw: bytes, lead: float) -> StoppedQueue:
    entry: dict[str, Any] = {}
    with suppress(ValueError):
        entry = json.loads(raw.decode(errors="replace"))
    since, until = (float(entry[name]) / 1e6 if entry.get(name) else None for name in ("since", "until"))
    until = None if until is None else until - lead
    return StoppedQueue(queue, since, until, str(entry.get("by", "")), str(entry.get("reason", "")))
