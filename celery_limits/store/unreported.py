"""Ends that nobody could report: for the audit. A ticket that ended in the store stays in the outbox until its result
backend has been told; a worker tries again and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .audit import Finding
from .errors import translated
from .namespace_time import now_and_lead
from .outcomes import name_of, text
from .store import Store

__all__ = ["LATE", "unreported_findings"]

LATE = 60.0
"""Seconds after which an end is late that nobody has tried to report."""

_PAGE = 500
_SINCE = 13
"""The field of a record: see `lua/include/decode.lua`."""


def unreported_findings(store: Store) -> list[Finding]:
    """Each is left to a person: nothing in the store is wrong, but no process could do what is to be done."""
    with translated("unreported"):
        return list(_findings(store))


def _findings(store: Store) -> Iterator[Finding]:
    client: Any = store.client
    (now, _), page = now_and_lead(store), list[str]()
    for ticket, _ in client.zscan_iter(f"{store.prefix}outbox", count=_PAGE):
        page.append(name_of(ticket))
        if len(page) == _PAGE:
            yield from _late(store, page, now)
            page = []
    yield from _late(store, page, now)


def _late(store: Store, tickets: list[str], now: float) -> Iterator[Finding]:
    if not tickets:
        return
    client: Any = store.client
    pipe = client.pipeline(transaction=False)
    for ticket in tickets:
        task_id, _, nonce = ticket.rpartition(".")
        pipe.hget(f"{store.prefix}task:{task_id}", nonce)
        pipe.hget(f"{store.prefix}unreported", ticket)
    found = pipe.execute()
    for ticket, record, tried in zip(tickets, found[::2], found[1::2], strict=True):
        fields = (record or b"").split(b"\t")
        if fields[0] != b"ended" or len(fields) <= _SINCE or not fields[_SINCE].isdigit():
            continue
        ago = max(0.0, now - int(fields[_SINCE]) / 1e6)
        if tried is not None or ago > LATE:
            yield Finding("unreported-end", ticket, _why(text(fields[8]), ago, tried, now))


def _why(reason: str, ago: float, tried: bytes | None, now: float) -> str:
    ended = f"ended as {reason} {ago:.0f} s ago, and its result backend was not told"
    parts = text(tried).split(" ", 2) if tried is not None else []
    if len(parts) < 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return f"{ended}: no worker has tried to"
    failures, last, error = parts
    times = "once" if failures == "1" else f"{failures} times"
    since = max(0.0, now - int(last) / 1e6)
    return f"{ended}: that failed {times}, last {since:.0f} s ago with {error}; it is tried again"
