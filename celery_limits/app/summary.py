"""How the limits are, in words: the health of a key, what set its size, and one paragraph about all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery_limits.store.status import Status
from celery_limits.store.steering import StoppedQueue

__all__ = ["HEALTHS", "duration", "health", "held_off", "report", "sentence", "set_by", "words", "worst_first"]

HEALTHS = ("paused", "held off", "at capacity", "backlogged", "active", "idle")
"""The worst first.

- paused: a person lets nothing in. held off: a body has closed it for a time.
- at capacity: every slot is held; of a rate, no token is left and tasks wait.
- backlogged: tasks wait although not every slot is held: the first is heavier than what is free, or a rate has
tokens again.
- active: it is used. idle: it is not."""


def duration(seconds: float | None) -> str:
    """The two largest units: "0.4s", "12s", "3m05s", "2h10m", "3d04h"."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"


def held_off(status: Status) -> float | None:
    """Seconds for which a body, or a person, has closed the key; None for one that is open."""
    left: Any = getattr(status, "held_off", None)
    return float(left) if left else None


def _is_full(status: Status) -> bool:
    if status.kind == "rate":
        return bool(status.waiting) and not status.tokens
    return isinstance(status.limit, int) and status.held >= status.limit and bool(status.held or status.waiting)


def health(status: Status) -> str:
    if status.paused:
        return "paused"
    if held_off(status):
        return "held off"
    if _is_full(status):
        return "at capacity"
    if status.waiting:
        return "backlogged"
    if status.held or (status.tokens is not None and status.tokens < (status.burst or 0)):
        return "active"
    return "idle"


def worst_first(status: Status) -> tuple[int, float, int, str]:
    """For sorting. A full key that nobody waits for is no trouble yet: it comes after those that are waited for."""
    rank = HEALTHS.index(health(status))
    if rank == HEALTHS.index("at capacity") and not status.waiting:
        rank = HEALTHS.index("active")
    return rank, -(status.oldest_wait or 0.0), -status.waiting, status.key


def set_by(status: Status) -> str:
    """What set the size that is in force: declared, floating or resized."""
    if status.steered:
        return "resized"
    return "floating" if status.kind == "floating" and status.floating is not None else "declared"


def _some(names: Sequence[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _keys(count: int) -> str:
    return f"{count} key" if count == 1 else f"{count} keys"


def _tasks(count: int) -> str:
    return f"{count} task" if count == 1 else f"{count} tasks"


def words(counts: Mapping[str, int], key: str, oldest: float | None) -> str:
    """How it is, in a sentence, by how many keys there are of each health and what is waited for longest:
    "3 keys at capacity, longest wait 4m03s at tenant:acme"."""
    parts = [f"{_keys(counts[name])} {name}" for name in HEALTHS[:4] if counts.get(name)]
    if oldest is not None:
        parts.append(f"longest wait {duration(oldest)} at {key}")
    if parts:
        return ", ".join(parts)
    return "nobody waits" if any(counts.values()) else "no limits are in use"


def sentence(statuses: Sequence[Status]) -> str:
    longest = max(statuses, key=lambda status: status.oldest_wait or 0.0, default=None)
    if longest is None:
        return words({}, "", None)
    return words(Counter(map(health, statuses)), longest.key, longest.oldest_wait)


def report(statuses: Iterable[Status], workers: int, stopped: Iterable[StoppedQueue] = ()) -> str:
    """One paragraph, for a chat or a mail."""
    statuses = list(statuses)
    waiting, held = sum(s.waiting for s in statuses), sum(s.held for s in statuses)
    said = sentence(statuses)
    lines = [f"{said[0].upper()}{said[1:]}."]
    lines.append(f"{_tasks(waiting)} {'waits' if waiting == 1 else 'wait'} for limits; {held} slots are held.")
    for name, keys in (
        ("Paused", [_set(s.key, s.paused_by, s.now) for s in statuses if s.paused]),
        ("Resized", [_set(f"{s.key} to {s.limit}", s.resized_by, s.now) for s in statuses if s.steered]),
        ("Paused queues", [_stopped(queue) for queue in stopped]),
    ):
        if keys:
            lines.append(f"{name}: {_some(keys)}.")
    lines.append(f"{workers} workers hold a lease." if workers != 1 else "1 worker holds a lease.")
    return " ".join(lines)


def _set(text: str, setting: Any, now: float) -> str:
    told = []
    if setting is not None and setting.by:
        told.append(f"by {setting.by}")
    if setting is not None and setting.until:
        told.append(f"for another {duration(max(0.0, setting.until - now))}")
    if setting is not None and setting.reason:
        told.append(setting.reason)
    return f"{text} ({', '.join(told)})" if told else text


def _stopped(queue: StoppedQueue) -> str:
    return (
        _set(queue.queue, queue, queue.until or 0.0)
        if not queue.until
        else _set(queue.queue, queue, queue.since or 0.0)
    )
