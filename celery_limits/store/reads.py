"""What the reads return: one key, one task, as a person asks about them. Times are seconds of the server's clock."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Explanation", "Party", "Status", "TicketStory"]


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
    """A ticket that holds a key or waits at it."""

    ticket: str
    task_id: str
    state: str
    worker: str
    since: float | None

    @classmethod
    def decode(cls, raw: dict[str, Any]) -> Party:
        task_id = raw.get("task_id", raw["ticket"].rpartition(".")[0])
        since = _seconds(raw.get("since"))
        return cls(raw["ticket"], task_id, raw.get("state", "missing"), raw.get("worker", ""), since)


def _parties(raw: Any) -> tuple[Party, ...]:
    return tuple(Party.decode(one) for one in raw or ())  # Lua's empty table arrives as {}


@dataclass(frozen=True, slots=True)
class Status:
    """One key as it is now. `size` and `rate` are set where someone steers it; else each task's declaration holds."""

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

    @classmethod
    def decode(cls, reply: bytes) -> Status:
        raw = json.loads(reply.decode(errors="replace"))
        special = raw["special"] or {}
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
        )


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
            return f"{self.ticket}: {self.state}{where}{why}"
        text = f"{self.ticket}: waits at {self.key!r}, {self.place} of {self.waiting} in line"
        if self.paused:
            return f"{text}; the key is paused"
        if self.due is not None:
            text += f"; it may pass in {max(0.0, self.due - self.now):.1f} s"
        if self.size is not None:
            text += f"; {self.running} of {self.size} slots are taken"
        if self.holders:
            text += ", held by " + ", ".join(f"{p.task_id} on {p.worker or p.state}" for p in self.holders[:3])
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
