"""Who holds a key or waits at it: tickets and groups, as the reads return them. Times are of the server's clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_limits.printable import printable

from .sentences import holder_text

__all__ = ["Group", "GroupPlace", "Party", "number", "parties", "seconds"]


def seconds(value: Any) -> float | None:
    """Damaged or not there, a time is shown as none."""
    try:
        return float(value) / 1e6 or None
    except (TypeError, ValueError):
        return None


def number(value: Any) -> int | None:
    """Steered by hand, or by someone else: what is no number is shown as none."""
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Party:
    """A ticket that holds a key or waits at it. `task` is the task's name, where a reader has looked for it; `weight`
    is how much of the key a holder has; `size` is the limit that it declares; `lapsed`: it runs on a worker whose lease
    has lapsed, so that its slots are taken until a live worker reclaims them."""

    ticket: str
    task_id: str
    state: str
    worker: str
    since: float | None
    task: str | None = None
    weight: int | None = None
    size: int | None = None
    lapsed: bool = False

    @classmethod
    def decode(cls, raw: dict[str, Any]) -> Party:
        return cls(
            raw["ticket"],
            raw.get("task_id", raw["ticket"].rpartition(".")[0]),
            raw.get("state", "missing"),
            raw.get("worker", ""),
            seconds(raw.get("since")),
            weight=number(raw.get("weight")),
            size=number(raw.get("size")),
            lapsed=raw.get("lapsed", False),
        )

    def __str__(self) -> str:
        return printable(holder_text(self))


def parties(raw: Any) -> tuple[Party, ...]:
    return tuple(Party.decode(one) for one in raw or ())  # Lua's empty table arrives as {}


@dataclass(frozen=True, slots=True)
class Group:
    """A group that holds a key or waits at it. `since`: when the first in turn of it began to wait."""

    group: str
    held: int
    share: float
    waiting: int
    since: float | None

    @classmethod
    def decode(cls, raw: dict[str, Any]) -> Group:
        share, since = float(raw["share"]), seconds(raw.get("since"))
        return cls(raw["group"], int(raw["held"]), share, int(raw["waiting"]), since)


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where a ticket stands in its group, and the group among those that wait: `ahead` have their turn before it."""

    group: str
    place: int
    waiting: int
    share: float
    held: int
    groups: int
    ahead: int

    @property
    def grants(self) -> int:
        """About how many must be served before it is: each other group as often as its own."""
        return self.ahead + 1 + (self.place - 1) * max(1, self.groups)

    def __str__(self) -> str:
        turn = "next" if not self.ahead else f"after {self.ahead} other group{'s' if self.ahead > 1 else ''}"
        return f"{self.place} of {self.waiting} in the group {self.group!r}, whose turn is {turn}"
