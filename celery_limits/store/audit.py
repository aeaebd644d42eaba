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

from .circles import break_circles
from .errors import translated
from .keys import BELLS, NOTE_SETTINGS, SETTINGS, glob_escape, split_line
from .outcomes import name_of
from .record import WIDTH
from .store import Store

__all__ = ["Finding", "audit", "leftovers"]

BATCH = 50
"""Subjects a script call; each is a handful of look-ups."""

MOST_SUMMED = 2000
"""Holders whose weights one script adds up; as in audit.lua."""

MAX_ROUNDS = 20
"""Mending one thing can lay bare another; this many rounds are plenty for any state the scripts can be in."""

Subject = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """A discrepancy between the store and the guarantees. `code` is its kind, `subject` the key, ticket or worker."""

    code: str
    subject: str
    message: str
    repaired: bool = False

    def __str__(self) -> str:
        return f"{self.code}: {self.subject}: {self.message}" + (" (repaired)" if self.repaired else "")


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
        Finding(what, subject, why, repaired=mend)
        for batch in _batches(_subjects(store))
        for what, subject, why in store.inspect(batch, mend=mend)
    ]
    knots = [Finding("deadlock", ticket, why, repaired=mend) for ticket, why in break_circles(store, mend=mend)]
    return findings + _large_sums(store, mend=mend) + knots


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
            yield from (("holder", rest, name_of(ticket)) for ticket, _ in client.hscan_iter(raw))
            yield ("weights", rest, "")
        elif kind == "line":
            size_class, key = split_line(rest)
            yield from (("waiter", size_class, key, name_of(ticket)) for ticket, _ in client.zscan_iter(raw))
        elif kind in _LISTS:
            yield from _list_subjects(store, kind, rest, raw)
        elif kind == "note":
            yield ("line", rest)
        elif kind in ("worker", "unacked", "drained"):
            yield (kind, rest)
        elif kind == "ready" or name in ("outbox", "later") or kind in _NEWEST:
            subject = (_NEWEST[kind], rest) if kind in _NEWEST else ("listed", name)
            yield from ((*subject, name_of(ticket)) for ticket, _ in client.zscan_iter(raw))
        else:
            yield from _shared_subjects(store, name, raw)


def _shared_subjects(store: Store, name: str, raw: bytes) -> Iterator[Subject]:
    """Of the keys of which a namespace has one."""
    client: Any = store.client
    if name == "leases":
        yield from (("worker", name_of(worker)) for worker, _ in client.zscan_iter(raw))
    elif name == "places":
        yield ("places",)
    elif name == "stopped":
        yield from (("queue", name_of(queue)) for queue in client.hkeys(raw))


_NEWEST = {"newest": "newest", "runs": "runs", "orders": "order"}
_LISTS = frozenset({"groups", "group", "turns", "idle", "begun"})


def _list_subjects(store: Store, kind: str, rest: str, raw: bytes) -> Iterator[Subject]:
    client: Any = store.client
    if kind == "begun":
        yield from (("begun", rest, name_of(ticket)) for ticket in client.sscan_iter(raw))
    elif kind in ("groups", "idle"):
        held = held_by_group(store, rest)
        yield ("fair", rest, "" if held is None else str(sum(held.values())))
        names = (name_of(field) for field, _ in client.hscan_iter(raw)) if kind == "groups" else ()
        for group in names:
            if "\t" not in group:
                yield ("group", rest, group, "" if held is None else str(held.get(group, 0)))
    elif kind == "turns":
        size_class, key = split_line(rest)
        yield from (("turn", size_class, key, name_of(member)) for member, _ in client.zscan_iter(raw))
    else:
        line, _, group = rest.partition("\t")
        size_class, key = split_line(line)
        yield from (("member", size_class, key, group, name_of(ticket)) for ticket, _ in client.zscan_iter(raw))


def _large_sums(store: Store, *, mend: bool) -> list[Finding]:
    """What holders use of keys that have too many of them for one script to add up. A sum that is made page by page may
    be one of several moments: it counts when two in a row differ by the same from what the store has noted."""
    client: Any = store.client
    findings = []
    for raw in client.scan_iter(match=f"{glob_escape(store.prefix)}hold:*", count=1000):
        if client.hlen(raw) <= MOST_SUMMED:
            continue
        key = name_of(raw)[len(store.prefix) + 5 :]
        first, second = _extra(store, key), _extra(store, key)
        if first == second and first[0] != first[1]:
            found = store.inspect([("weights", key, str(second[0]))], mend=mend)
            findings += [Finding(what, subject, why, repaired=mend) for what, subject, why in found]
    return findings


def _extra(store: Store, key: str) -> tuple[int, int]:
    """What the holders of a key use beyond a slot each, counted, and as the store has noted it."""
    client: Any = store.client
    counted = sum(int(weight) - 1 for _, weight in client.hscan_iter(f"{store.prefix}hold:{key}", count=1000))
    return counted, int(client.hget(f"{store.prefix}note:{key}", "extra") or 0)


MOST_GROUPED = 500
"""Holders whose groups one script counts; as in audit.lua."""


def held_by_group(store: Store, key: str) -> dict[str, int] | None:
    """What each group holds of a key that has too many holders for one script; None for others, or where two counts in
    a row differ."""
    client: Any = store.client
    if client.hlen(f"{store.prefix}hold:{key}") <= MOST_GROUPED:
        return None
    first = _count_groups(store, key)
    return first if first == _count_groups(store, key) else None


def _count_groups(store: Store, key: str) -> dict[str, int]:
    client: Any = store.client
    held: dict[str, int] = defaultdict(int)
    for ticket, weight in client.hscan_iter(f"{store.prefix}hold:{key}", count=1000):
        task_id, _, nonce = name_of(ticket).rpartition(".")
        record = name_of(client.hget(f"{store.prefix}task:{task_id}", nonce) or b"")
        fields = record.partition("\n\t")[2].split("\t")
        for i in range(0, len(fields) - WIDTH, WIDTH):
            if fields[i + 1] == key and fields[i + 4].count("|") >= 2:
                held[fields[i + 4].split("|", 2)[2]] += int(weight)
    return held


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
    """Whether the alarm is there to take away, in the end, a setting: one that is for a time, or the remembered
    size of a floating limit."""
    what, _, key = alarm.partition("|")
    client: Any = store.client
    if what == "queue":
        return bool(client.hexists(f"{store.prefix}stopped", key))
    if what in ("resume", "reset"):
        field = "paused.until" if what == "resume" else "size.until"
        return bool(client.hexists(f"{store.prefix}note:{key}", field))
    return what == "refresh" and bool(client.hexists(f"{store.prefix}note:{key}", "f.size"))
