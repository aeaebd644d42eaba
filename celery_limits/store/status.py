"""What the reads return: one key, one task, as a person asks about them. Times are seconds of the server's clock."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from celery_limits.printable import printable

from .outcomes import superseded_by
from .parties import Group, GroupPlace, Party, number, parties, seconds
from .sentences import ticket_text
from .sizes import declared_sizes

__all__ = ["Explanation", "Group", "GroupPlace", "Party", "Setting", "Status", "TicketStory", "rate_text"]

_KINDS = {"c": "concurrency", "f": "floating", "r": "rate", "d": "debounce", "w": "concurrency"}
_UNITS = (("s", 10**6), ("m", 60 * 10**6), ("h", 3600 * 10**6), ("d", 86_400 * 10**6), ("w", 604_800 * 10**6))


@dataclass(frozen=True, slots=True)
class Setting:
    """Who has set something, why, and when it ends by itself; None where it lasts until it is taken back."""

    by: str
    reason: str
    until: float | None

    @classmethod
    def decode(cls, special: dict[str, Any], what: str) -> Setting | None:
        if what == "paused" and "paused" not in special:
            return None
        by, reason = special.get(f"{what}.by", ""), special.get(f"{what}.reason", "")
        return cls(by, reason, seconds(special.get(f"{what}.until")))


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
    follows_workers: bool = False
    """Whether the declared size is `WORKERS`; `declared` is how many places that is now, None where nobody can tell."""
    groups: tuple[Group, ...] = ()
    """Those that wait first, in turn; then those that only hold. Empty for a key without `fair_by`."""
    holding: int = 0
    """Tasks that hold the key. `running` is the slots that they hold."""
    sizes: tuple[int, ...] = ()
    """The sizes that tasks here declare for a concurrency key, as far as they were read: one, unless they differ."""
    bodies: int | None = None
    """How many of its holders run; None where there are too many to count at once."""
    forced: int = 0
    """How many tasks people have let through past it, ever."""
    paused_by: Setting | None = None
    resized_by: Setting | None = None

    @classmethod
    def decode_all(cls, reply: bytes) -> list[Status]:
        return [cls._decode(raw) for raw in json.loads(reply.decode(errors="replace"))]

    @classmethod
    def _decode(cls, raw: dict[str, Any]) -> Status:
        special = raw["special"] or {}
        letter, size, extra = raw["declared"] or ("", None, "")
        holders, waiters = parties(raw["holders"]), parties(raw["waiters"])
        return cls(
            key=raw["key"],
            running=raw["used"],
            waiting=raw["waiting"],
            size=number(special.get("size")),
            rate=special.get("rate"),
            floating=number(special.get("f.size")),
            paused="paused" in special,
            now=float(raw["now"]) / 1e6,
            next_token=seconds(raw["tat"]),
            holders=holders,
            waiters=waiters,
            kind=_KINDS.get(letter) or _kind_by_traces(raw["tat"], special),
            declared=f"{size} {extra}" if letter == "r" else number(size),
            follows_workers=letter == "w",
            oldest=seconds(raw["oldest"]),
            pace=seconds(special.get("pace")),
            paced=seconds(special.get("paced")),
            groups=tuple(Group.decode(one) for one in raw["groups"] or ()),
            holding=raw["holding"],
            sizes=declared_sizes(
                letter, (size, raw["held_size"], *(p.size for p in holders + waiters)), raw["classes"] or ()
            ),
            bodies=number(raw.get("bodies")),
            forced=number(raw.get("forced")) or 0,
            paused_by=Setting.decode(special, "paused"),
            resized_by=Setting.decode(special, "size") if "size" in special or "rate" in special else None,
        )

    @property
    def known(self) -> bool:
        """Whether there is anything in the store about this key."""
        return bool(self.running or self.waiting or self.steered or self.paused or self.kind)

    @property
    def held(self) -> int:
        """Slots that are taken: by tasks that run, that have their turn, and that wait at a later link."""
        return self.running

    @property
    def steered(self) -> bool:
        return self.size is not None or self.rate is not None

    @property
    def limit(self) -> int | str | None:
        """The size in force, or the rate ("100/m"); None where it is only known to tasks of which none is there."""
        if self.kind == "rate" or self.rate is not None:
            pair = _paced(self.rate or self.declared)
            return rate_text(pair[0]) if pair else None
        if self.kind == "debounce":
            return f"{self.declared / 1e6:g}s quiet" if isinstance(self.declared, int) else None
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
    if "d.due" in special:
        return "debounce"
    return "concurrency" if "size" in special else None


def _spent(waits: str) -> tuple[tuple[int, float], ...]:
    pairs = (pair.partition(":") for pair in waits.split())
    return tuple((int(link) - 1, int(us) / 1e6) for link, _, us in pairs if link.isdigit() and us.isdigit())


def _reason(text: str) -> str:
    """As results say it. The store writes 'superseded <task id>', or one word."""
    word, _, by = text.partition(" ")
    return superseded_by(by) if by else word


@dataclass(frozen=True, slots=True)
class TicketStory:
    """Where one ticket is and why. What follows `chain` is set while it waits, `estimate` once the line has moved and
    while it can move. `lapsed` is of its own worker; `workers` is how many hold a lease."""

    ticket: str
    state: str
    since: float | None
    worker: str
    reason: str
    held: tuple[str, ...]
    now: float
    chain: tuple[str, ...] = ()
    lapsed: bool = False
    workers: int | None = None
    key: str | None = None
    kind: str | None = None
    link: int | None = None
    place: int | None = None
    waiting: int | None = None
    size: int | None = None
    running: int | None = None
    paused: bool = False
    due: float | None = None
    estimate: float | None = None
    holders: tuple[Party, ...] = ()
    fair: GroupPlace | None = None
    holding: int = 0
    resized: bool = False
    stopped: bool = False
    """The limit, or the rate, is 0."""
    kinds: tuple[str, ...] = ()
    spent: tuple[tuple[int, float], ...] = ()
    """The lines it has stood in since it was published or last ran: link (from 0) and seconds."""

    @classmethod
    def decode(cls, raw: dict[str, Any], now: float) -> TicketStory:
        links = raw.get("links") or []
        base: dict[str, Any] = {
            "ticket": raw["ticket"],
            "state": raw["state"],
            "since": seconds(raw.get("since")),
            "worker": raw.get("worker", ""),
            "reason": _reason(raw.get("reason", "")),
            "held": tuple(link["key"] for link in links if link["held"]),
            "now": now,
            "chain": tuple(link["key"] for link in links),
            "lapsed": raw.get("lapsed", False),
            "workers": raw.get("workers"),
            "kinds": tuple(_KINDS.get(link.get("kind", ""), "") for link in links),
            "spent": _spent(raw.get("waits", "")),
        }
        if "at" not in raw:
            return cls(**base, due=seconds(raw.get("due")))
        special, link = raw["special"] or {}, links[raw["at"] - 1]
        story = cls(
            **base,
            key=link["key"],
            kind=_KINDS.get(link["kind"]),
            link=raw["at"] - 1,
            place=raw["place"],
            waiting=raw["waiting"],
            size=number(raw["size"]),
            running=raw["used"],
            paused="paused" in special,
            due=seconds(raw["due"]),
            holders=parties(raw["holders"]),
            fair=GroupPlace(**raw["fair"]) if raw["fair"] else None,
            holding=raw["holding"],
            resized="size" in special or "rate" in special,
            stopped=raw["stopped"],
        )
        return replace(story, estimate=story._estimate(seconds(special.get("pace"))))

    def _estimate(self, pace: float | None) -> float | None:
        """None where nothing says that the line will go on moving as it did."""
        over = self.size is not None and (self.running or 0) > self.size
        if pace is None or self.paused or self.stopped or over or not self.workers:
            return None
        if any(holder.lapsed for holder in self.holders):
            return None
        place = self.place or 1
        return pace * (min(self.fair.grants, self.waiting or 1) if self.fair else place)

    def __str__(self) -> str:
        return printable(ticket_text(self))


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that the store knows about a task id."""

    task_id: str
    now: float
    cancelled: bool
    tickets: tuple[TicketStory, ...] = field(default=())
    more: bool = False
    """Whether the task has more tickets than these."""
    superseded_by: str | None = None
    """The id of the task that took its place."""
    successor: str | None = None
    """The last of those that took each other's places, after so many `steps`; and where its tickets are."""
    steps: int = 0
    successors: tuple[TicketStory, ...] = ()

    @classmethod
    def decode(cls, task_id: str, reply: bytes) -> Explanation:
        raw = json.loads(reply.decode(errors="replace"))
        now = float(raw["now"]) / 1e6
        stories = tuple(TicketStory.decode(one, now) for one in raw["tickets"] or ())
        told = cls(task_id, now, raw["cancelled"], stories, raw["more"])
        if not (trail := raw["superseded"]):
            return told
        after = tuple(TicketStory.decode(one, now) for one in trail["tickets"] or ())
        return replace(told, superseded_by=trail["by"], successor=trail["last"], steps=trail["steps"], successors=after)

    @property
    def trail(self) -> str:
        """Who took its place, and where that one is."""
        if self.superseded_by is None:
            return ""
        text = f"{self.task_id}: superseded by {self.superseded_by}"
        if self.steps > 1:
            text += f", and that by others; the last of {self.steps} is {self.successor}"
        where = "; ".join(map(str, self.successors)) or "the limits know it no more: it has ended, or is in its queue"
        return printable(f"{text}; {where}")

    def __str__(self) -> str:
        lines, task_id = [str(story) for story in self.tickets], printable(self.task_id)
        if self.superseded_by is not None:
            lines.append(self.trail)
        if self.more:
            lines.append(f"{task_id}: and more tickets of this task")
        if self.cancelled:
            lines.append(f"{task_id}: cancelled; a message that turns up is refused")
        return "\n".join(lines) or f"{task_id}: not known to the limits (not limited, finished, or still in its queue)"
