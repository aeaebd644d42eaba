"""Deadlocks of any size, from a picture of all lines: for the audit, and for a sweep that met a knot too large for it.

A ticket is stuck when all who hold what it waits for are. Since the picture is drawn line by line, while everything
goes on, a knot counts only if two pictures in a row show it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from .keys import glob_escape, split_line
from .outcomes import name_of
from .store import Store

__all__ = ["break_circles", "victims_of"]

MOST_NAMED = 10


def break_circles(store: Store, *, mend: bool) -> list[tuple[str, str]]:
    """The tickets that must start over so that all others can go on, each with who waits where; with `mend` they do."""
    first, _ = _picture(store)
    if not first:
        return []
    second, holders = _picture(store)
    stuck = {ticket: key for ticket, key in second.items() if first.get(ticket) == key}
    victims = victims_of(stuck, holders, lambda ticket: _order(store, ticket))
    if not victims:
        return []
    names = ", ".join(f"{ticket} waits at {key!r}" for ticket, key in sorted(stuck.items())[:MOST_NAMED])
    if len(stuck) > MOST_NAMED:
        names += f", and {len(stuck) - MOST_NAMED} more"
    found = store.inspect([("stuck", ticket) for ticket in victims], mend=mend)
    return [(ticket, f"{why}: {names}") for _, ticket, why in found]


def victims_of(
    stuck: dict[str, str], holders: dict[str, set[str]], order: Callable[[str], tuple[int, int]]
) -> list[str]:
    """Of those that hold what another one waits for, the last in line, as often as it takes until nobody is stuck: it
    would not get its slot back before those ahead of it. `stuck`: tickets, and the keys that they wait at."""
    left = dict(stuck)
    held_by: dict[str, set[str]] = {key: holders.get(key, set()) & stuck.keys() for key in stuck.values()}
    places = {ticket: order(ticket) for ticket in stuck}
    victims = list[str]()
    while left:
        waited_for = {ticket for ticket, key in left.items() for ticket in held_by[key] if ticket in left}
        others = {t for t in waited_for if any(t in held_by[key] for w, key in left.items() if w != t)}
        if not others:
            break
        victim = max(others, key=places.__getitem__)
        victims.append(victim)
        freed = [victim]
        while freed:
            for ticket in freed:
                left.pop(ticket, None)
            freed = [ticket for ticket, key in left.items() if held_by[key] - left.keys() or not held_by[key]]
    return victims


def _order(store: Store, ticket: str) -> tuple[int, int]:
    """Rank and arrival, as the lines are ordered."""
    task_id, _, nonce = ticket.rpartition(".")
    client: Any = store.client
    record = (client.hget(f"{store.prefix}task:{task_id}", nonce) or b"").split(b"\t")
    return (int(record[9]), int(record[4])) if len(record) > 9 else (-1, -1)


def _picture(store: Store) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Waiting tickets, with their keys, that no running, granted or free-going ticket can ever make room for; and who
    holds each key that is waited for."""
    client: Any = store.client
    prefix = store.prefix
    waits_at: dict[str, str] = {}
    holders: dict[str, set[str]] = defaultdict(set)
    for raw in client.scan_iter(match=f"{glob_escape(prefix)}line:*", count=1000):
        size_class, key = split_line(name_of(raw)[len(prefix) + 5 :])
        if not {"r", "d"}.isdisjoint(size_class[:2]):
            continue  # a rate and a debounce admit their waiters by themselves
        waits_at.update((name_of(ticket), key) for ticket, _ in client.zscan_iter(raw))
        holders[key] = {name_of(ticket) for ticket, _ in client.hscan_iter(f"{prefix}hold:{key}")}
    stuck = dict(waits_at)
    moving = True
    while moving:
        free = [t for t, key in stuck.items() if not holders[key] or holders[key] - stuck.keys()]
        moving = bool(free)
        for ticket in free:
            del stuck[ticket]
    return stuck, holders
