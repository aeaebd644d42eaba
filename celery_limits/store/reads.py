"""What the reads return: one key, one task, as a person asks about them. Times are seconds of the server's clock."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Explanation", "Party", "Status", "TicketStory", "rate_text"]

_KINDS = {"c": "concurrency", "f": "floating", "r": "rate"}
_UNITS = (("s", 10**6), ("m", 60 * 10**6), ("h", 3600 * 10**6))


def _seconds(value: Any) -> float | None:
    """Damaged or not there, a time is shown as none."""
    try:
        return float(value) / 1e6 or None
    except (TypeError, ValueError):
        return None


def _number(value: Any) -> int | None:
    """Steered by hand, or by someone else: what is no number is shown as none."""
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Party:
    """A ticket that holds a key or waits at it. `task` is the task's name, where a reader has looked for it."""

    ticket: str
    task_id: str
    state: str
    worker: str
    since: float | None
    task: str | None = None

    @classmethod
    def decode(cls, raw: dict[str, Any]) -> Party:
        task_id = raw.get("task_id", raw["ticket"].rpartition(".")[0])
        since = _seconds(raw.get("since"))
        return cls(raw["ticket"], task_id, raw.get("state", "missing"), raw.get("worker", ""), since)

    def __str__(self) -> str:
        return f"{self.task_id} on {self.worker}" if self.worker else f"{self.task_id} ({self.state})"


def _parties(raw: Any) -> tuple[Party, ...]:
    return tuple(Party.decode(one) for one in raw or ())  # Lua's empty table arrives as {}


def rate_text(interval: float) -> str:
    """A rate as it is declared, from the microseconds between two tokens: in the first unit that makes it whole."""
    if not interval:
        return "0/s"
    for unit, span in _UNITS:
        count = span / interval
        if count >= 1 and abs(count - round(count)) < 1e-6 * count:
            return f"{round(count)}/{unit}"
    return f"{_UNITS[0][1] / interval:.4g}/s"


def _paced(text: Any) -> tuple[float, int] | None:
    """Interval and burst of "<interval> <burst>"."""
    try:
        interval, burst = str(text).split()
        return float(interval), int(burst)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Status:
    """One key as it is now. `size` and `rate` are set where someone steers it; else each task's declaration holds.

    `kind` and `declared` are as the first in line declares the key, or else one who holds it; None where nobody is
    there to tell. `declared` of a rate is "<interval> <burst>", as `rate` is.
    """

    key: str
    running: int
    waiting: int
    size: int | None
    rate: str | None
    floating: int | None
    paused: bool
    now: float
    next_token: float | None
    holders: tuple[Party, ...] = ()
    waiters: tuple[Party, ...] = ()
    kind: str | None = None
    declared: int | str | None = None
    oldest: float | None = None
    pace: float | None = None
    paced: float | None = None

    @classmethod
    def decode_all(cls, reply: bytes) -> list[Status]:
        return [cls._decode(raw) for raw in json.loads(reply.decode(errors="replace"))]

    @classmethod
    def _decode(cls, raw: dict[str, Any]) -> Status:
        special = raw["special"] or {}
        letter, size, extra = raw["declared"] or ("", None, "")
        return cls(
            key=raw["key"],
            running=raw["used"],
            waiting=raw["waiting"],
            size=_number(special.get("size")),
            rate=special.get("rate"),
            floating=_number(special.get("f.size")),
            paused="paused" in special,
            now=float(raw["now"]) / 1e6,
            next_token=_seconds(raw["tat"]),
            holders=_parties(raw["holders"]),
            waiters=_parties(raw["waiters"]),
            kind=_KINDS.get(letter) or _kind_by_traces(raw["tat"], special),
            declared=f"{size} {extra}" if letter == "r" else _number(size),
            oldest=_seconds(raw["oldest"]),
            pace=_seconds(special.get("pace")),
            paced=_seconds(special.get("paced")),
        )

    @property
    def known(self) -> bool:
        """Whether there is anything in the store about this key."""
        return bool(self.running or self.waiting or self.steered or self.paused or self.kind)

    @property
    def steered(self) -> bool:
        return self.size is not None or self.rate is not None

    @property
    def limit(self) -> int | str | None:
        """The size in force, or the rate ("100/m"); None where it is only known to tasks of which none is there."""
        if self.kind == "rate" or self.rate is not None:
            pair = _paced(self.rate or self.declared)
            return rate_text(pair[0]) if pair else None
        size = self.size if self.size is not None else self.floating if self.kind == "floating" else None
        return size if size is not None else self.declared

    @property
    def burst(self) -> int | None:
        pair = _paced(self.rate or self.declared) if self.kind == "rate" else None
        return pair[1] if pair else None

    @property
    def tokens(self) -> int | None:
        """How many calls of a rate limit could pass at once now."""
        pair = _paced(self.rate or self.declared) if self.kind == "rate" else None
        if not pair:
            return None
        interval, burst = pair
        if not interval:
            return 0
        owed = max(0.0, (self.next_token or 0.0) - self.now) * 1e6 / interval
        return max(0, int(burst - owed + 1e-6))

    @property
    def oldest_wait(self) -> float | None:
        """Seconds for which the one that arrived first has waited here."""
        return None if self.oldest is None else max(0.0, self.now - self.oldest)

    @property
    def rate_now(self) -> float | None:
        """How many a second leave the line, on average of late; None while nobody waits, or none has left yet. A line
        that stands still is slower than its average was: then its standstill counts."""
        if self.pace is None or self.paced is None:
            return None
        return 1 / max(self.pace, self.now - self.paced, 1e-6)


def _kind_by_traces(tat: Any, special: dict[str, Any]) -> str | None:
    """What is left in the store of a key that nobody holds or waits for."""
    if tat is not None or "rate" in special:
        return "rate"
    if "f.name" in special:
        return "floating"
    return "concurrency" if "size" in special else None


_MEANING = {
    "granted": "; it has its slots, and its message is on the way to a worker",
    "away": "; it holds no slot (its worker died or gave it back, or none came for it in time) and goes on when its "
    "message is delivered again. Had it begun without acks_late when its worker died, it is gone, as always in Celery",
}
"""What someone who reads the name of a state is to make of it, where the name does not tell."""


@dataclass(frozen=True, slots=True)
class TicketStory:
    """Where one ticket is and why. What follows `held` is set while it waits, `estimate` once the line has moved."""

    ticket: str
    state: str
    since: float | None
    worker: str
    reason: str
    held: tuple[str, ...]
    now: float
    chain: tuple[str, ...] = ()
    key: str | None = None
    link: int | None = None
    place: int | None = None
    waiting: int | None = None
    size: int | None = None
    running: int | None = None
    paused: bool = False
    due: float | None = None
    estimate: float | None = None
    holders: tuple[Party, ...] = ()

    @classmethod
    def decode(cls, raw: dict[str, Any], now: float) -> TicketStory:
        links = raw.get("links") or []
        base: dict[str, Any] = {
            "ticket": raw["ticket"],
            "state": raw["state"],
            "since": _seconds(raw.get("since")),
            "worker": raw.get("worker", ""),
            "reason": raw.get("reason", ""),
            "held": tuple(link["key"] for link in links if link["held"]),
            "now": now,
            "chain": tuple(link["key"] for link in links),
        }
        if "at" not in raw:
            return cls(**base)
        special, place = raw["special"] or {}, raw["place"]
        pace = _seconds(special.get("pace"))
        return cls(
            **base,
            key=links[raw["at"] - 1]["key"],
            link=raw["at"] - 1,
            place=place,
            waiting=raw["waiting"],
            size=_number(raw["size"]),
            running=raw["used"],
            paused="paused" in special,
            due=_seconds(raw["due"]),
            estimate=None if pace is None or "paused" in special else pace * place,
            holders=_parties(raw["holders"]),
        )

    def __str__(self) -> str:
        if self.state != "waiting":
            where = f" on {self.worker}" if self.worker else ""
            why = f" ({self.reason})" if self.reason else ""
            return f"{self.ticket}: {self.state}{where}{why}{_MEANING.get(self.state, '')}"
        text = f"{self.ticket}: waits at {self.key!r}, {self.place} of {self.waiting} in line"
        if self.paused:
            return f"{text}; the key is paused"
        if self.due is not None:
            text += f"; it may pass in {max(0.0, self.due - self.now):.1f} s"
        if self.size is not None:
            text += f"; {self.running} of {self.size} slots are taken"
        if self.holders:
            text += ", held by " + ", ".join(map(str, self.holders[:3]))
        return text if self.estimate is None else f"{text}; about {self.estimate:.1f} s to go"


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that the store knows about a task id."""

    task_id: str
    now: float
    cancelled: bool
    tickets: tuple[TicketStory, ...] = field(default=())

    @classmethod
    def decode(cls, task_id: str, reply: bytes) -> Explanation:
        raw = json.loads(reply.decode(errors="replace"))
        now = float(raw["now"]) / 1e6
        stories = tuple(TicketStory.decode(one, now) for one in raw["tickets"] or ())
        return cls(task_id, now, raw["cancelled"], stories)

    def __str__(self) -> str:
        lines = [str(story) for story in self.tickets]
        if self.cancelled:
            lines.append(f"{self.task_id}: cancelled; a message that turns up is refused")
        return (
            "\n".join(lines)
            or f"{self.task_id}: not known to the limits (not limited, finished, or still in its queue)"
        )
