"""The audit: recomputes everything from the sets and names each discrepancy; `repair` mends it.

It walks the namespace in small steps, so nothing stands still meanwhile; what looks wrong on the way counts only
if the script that examines it, alone and atomically, finds it wrong. Only circles of waiting tickets need the whole
picture: a circle is reported when two pictures in a row show it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .errors import translated
from .keys import BELLS, NOTE_SETTINGS, SETTINGS, glob_escape, split_line
from .outcomes import name_of
from .store import Store

__all__ = ["Finding", "audit", "leftovers"]

BATCH = 50
"""Subjects a script call; each is a handful of look-ups."""

MAX_ROUNDS = 20
"""Mending one thing can lay bare another; this many rounds are plenty for any state the scripts can be in."""

Subject = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as the guarantees say: `what` is its kind, `subject` the key, ticket or worker."""

    what: str
    subject: str
    why: str
    mended: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.subject}: {self.why}" + (" (mended)" if self.mended else "")


def audit(store: Store, *, repair: bool = False) -> list[Finding]:
    """Every discrepancy in the namespace. With `repair` each is mended, and what that leads to is looked at again."""
    findings = _pass(store, mend=repair)
    if not repair:
        return list(dict.fromkeys(findings))
    fresh = findings
    for _ in range(MAX_ROUNDS):
        while store.sweep().after.more:
            pass
        if not fresh:
            break
        fresh = _pass(store, mend=True)
        findings += fresh
    return list(dict.fromkeys(findings))


def _pass(store: Store, *, mend: bool) -> list[Finding]:
    with translated("audit"):
        return _examine(store, mend=mend)


def _examine(store: Store, *, mend: bool) -> list[Finding]:
    findings = [
        Finding(what, subject, why, mended=mend)
        for batch in _batches(_subjects(store))
        for what, subject, why in store.inspect(batch, mend=mend)
    ]
    return findings + _circles(store, mend=mend)


def _batches(subjects: Iterator[Subject]) -> Iterator[list[Subject]]:
    batch: list[Subject] = []
    for subject in subjects:
        batch.append(subject)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _subjects(store: Store) -> Iterator[Subject]:
    """Everything there is to examine, by scanning the keys of the namespace."""
    client: Any = store.client
    prefix = store.prefix
    pattern = glob_escape(prefix) + "*"
    for raw in client.scan_iter(match=pattern, count=1000):
        name = name_of(raw)[len(prefix) :]
        kind, _, rest = name.partition(":")
        if kind == "task":
            fields = {name_of(field) for field in client.hkeys(raw)}
            yield from (("ticket", f"{rest}.{nonce}") for nonce in fields if ":" not in nonce)
            yield from (("message", f"{rest}.{f[:-2]}") for f in fields if f.endswith(":m") and f[:-2] not in fields)
        elif kind == "hold":
            yield from (("holder", rest, name_of(member)) for member in client.sscan_iter(raw))
        elif kind == "line":
            size_class, key = split_line(rest)
            yield from (("waiter", size_class, key, name_of(ticket)) for ticket, _ in client.zscan_iter(raw))
        elif kind == "note":
            yield ("line", rest)
        elif kind in ("worker", "unacked"):
            yield (kind, rest)
        elif kind == "ready":
            yield from (("listed", name, name_of(ticket)) for ticket in client.lrange(raw, 0, -1))
        elif name == "outbox":
            yield from (("listed", name, name_of(ticket)) for ticket, _ in client.zscan_iter(raw))
        elif name == "leases":
            yield from (("worker", name_of(worker)) for worker, _ in client.zscan_iter(raw))


def _circles(store: Store, *, mend: bool) -> list[Finding]:
    """Tickets that wait for each other. Of those that hold what others wait for, the last in line starts over when
    mending: it would not get its slot back before those ahead of it."""
    first = _stuck(store)
    stuck = _stuck(store) if first else {}
    both = {ticket: key for ticket, key in stuck.items() if first.get(ticket) == key}
    if not both:
        return []
    waited_for = set[str]().union(*_holders_of(store, set(both.values())))
    holding = [ticket for ticket in both if ticket in waited_for]
    youngest = max(holding or both, key=lambda ticket: _order(store, ticket))
    names = ", ".join(f"{ticket} waits at {key!r}" for ticket, key in sorted(both.items())[:10])
    found = store.inspect([("stuck", youngest)], mend=mend)
    return [Finding("deadlock", youngest, f"{why}: {names}", mended=mend) for _, _, why in found]


def _order(store: Store, ticket: str) -> tuple[int, int]:
    """Rank and arrival, as the lines are ordered."""
    task_id, _, nonce = ticket.rpartition(".")
    client: Any = store.client
    record = (client.hget(f"{store.prefix}task:{task_id}", nonce) or b"").split(b"\t")
    return (int(record[9]), int(record[4])) if len(record) > 9 else (-1, -1)


def _holders_of(store: Store, keys: set[str]) -> list[set[str]]:
    client: Any = store.client
    return [{name_of(m).partition("#")[0] for m in client.sscan_iter(f"{store.prefix}hold:{key}")} for key in keys]


def _stuck(store: Store) -> dict[str, str]:
    """Waiting tickets, with their keys, that no running, granted or free-going ticket can ever let go on."""
    client: Any = store.client
    prefix = store.prefix
    waits_at: dict[str, str] = {}
    holders: dict[str, set[str]] = defaultdict(set)
    for raw in client.scan_iter(match=f"{prefix}line:*", count=1000):
        letter, _, rest = name_of(raw)[len(prefix) + 5 :].partition(":")
        if letter == "r":
            continue  # a rate lets its waiters go by itself
        key = rest.partition(":")[2]
        waits_at.update((name_of(ticket), key) for ticket, _ in client.zscan_iter(raw))
        holders[key] = _holders_of(store, {key})[0]
    stuck = dict(waits_at)
    moving = True
    while moving:
        free = [t for t, key in stuck.items() if not holders[key] or holders[key] - stuck.keys()]
        moving = bool(free)
        for ticket in free:
            del stuck[ticket]
    return stuck


def leftovers(store: Store) -> list[str]:
    """Keys, and fields of notes, that the catalogue does not call a setting: empty when all is quiet (guarantee 13)."""
    client: Any = store.client
    left = []
    with translated("leftovers"):
        for raw in client.scan_iter(match=f"{store.prefix}*", count=1000):
            name = name_of(raw)[len(store.prefix) :]
            if name.startswith("note:"):
                fields = [name_of(field) for field in client.hkeys(raw)]
                left += [f"{name} {field}" for field in fields if not NOTE_SETTINGS.fullmatch(field)]
            elif name == "alarms":
                alarms = [name_of(alarm) for alarm in client.zrange(raw, 0, -1)]
                left += [f"alarm {alarm}" for alarm in alarms if not _keeps_setting(store, alarm)]
            elif name not in SETTINGS and not name.startswith(BELLS):
                left.append(name)
    return left


def _keeps_setting(store: Store, alarm: str) -> bool:
    """Whether the alarm is there to take away, in the end, the remembered size of a floating limit."""
    what, _, key = alarm.partition("|")
    client: Any = store.client
    return what == "refresh" and bool(client.hexists(f"{store.prefix}note:{key}", "f.size"))
