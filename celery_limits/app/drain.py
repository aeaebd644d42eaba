"""Back to plain Celery: every message that the store keeps goes back into its queue as an ordinary message.

On our own transport each step is one script: a message is in the store or in its queue, never in both and never in
neither, whenever this process dies. On another broker a message is published, confirmed, and then taken out of the
store: where this process dies in between, the next drain publishes it again. Called again, it goes on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from celery_limits.errors import LimitError
from celery_limits.store.kept import KEPT, Kept, interrupted, read_kept
from celery_limits.store.lookups import live_workers, workers_known
from celery_limits.transport.lists import list_names

from .handle import Limits

__all__ = ["Counts", "StillRunning", "count", "drain"]

BATCH = 200
"""Tickets that one script is given; it does as many as its budget allows."""

ROUNDS = 20
"""Publishers may go on meanwhile, and a worker's death may bring something back."""

NAP = 0.2

Counts = dict[str, int]
Progress = Callable[[int, int], None]


class StillRunning(LimitError):
    """Limited workers run: they would park again what is drained."""


class Drained(NamedTuple):
    """`drained` by state; `left`: messages that could not be put back, such as those of a broker that is away."""

    drained: Counts
    left: int


def count(limits: Limits) -> Counts:
    """How many messages the store keeps, by state."""
    return _counted(kept for kept in read_kept(limits.store) if _is_message(kept))


def _is_message(kept: Kept) -> bool:
    return kept.here and kept.state != "finished"


def _counted(found: Iterable[Kept]) -> Counts:
    counts = Counts.fromkeys(KEPT, 0)
    for kept in found:
        counts["granted" if kept.state == "away" else kept.state] += 1
    return counts


def drain(limits: Limits, *, force: bool = False, progress: Progress | None = None) -> Drained:
    """Raises `StillRunning`, having changed nothing, while limited workers run, unless `force`."""
    store = limits.store
    running = live_workers(store)
    if running and not force:
        raise StillRunning(
            f"{len(running)} limited worker{'s run' if len(running) > 1 else ' runs'} ({', '.join(running[:5])}): stop "
            f"{'them' if len(running) > 1 else 'it'} first. A worker that was killed counts until its lease of "
            f"{limits.settings.lease:g} s has lapsed. --force drains all the same; running workers take part of it back"
        )
    if not running:
        _bury(limits)
    limits.outbox.work_off()
    total = dict.fromkeys(KEPT, 0)
    for into in interrupted(store):
        _put_back(limits, into)
    for _ in range(1 if running else ROUNDS):
        found = [kept for kept in read_kept(store) if _is_message(kept)]
        moved = _drain_all(limits, found, progress)
        for state, number in moved.items():
            total[state] += number
        if not found or not sum(moved.values()):
            break
    if not running:
        _forget(limits)
    while store.sweep().after.more:  # nobody waits any more where they would be woken
        pass
    left = sum(1 for kept in read_kept(store) if _is_message(kept))
    return Drained(total, left)


def _bury(limits: Limits) -> None:
    """Waits until workers that died are declared dead, and what they had is back: in its queue, or in its line. After a
    silence of all of them that takes up to a lease."""
    until = time.monotonic() + 3 * limits.settings.lease
    while True:
        after = limits.store.sweep().after
        if not after.more and (not workers_known(limits.store) or time.monotonic() > until):
            return
        if not after.more:
            time.sleep(NAP)


def _drain_all(limits: Limits, found: list[Kept], progress: Progress | None) -> Counts:
    done, moved = 0, list[Kept]()
    for into, tickets in _lists(limits, found).items():
        pending = list(tickets)
        while pending:
            batch = pending[:BATCH]
            seen, _, _ = limits.store.drain(into, [kept.ticket for kept in batch], last=False)
            moved += pending[:seen]
            del pending[:seen]
            done += seen
            if progress is not None:
                progress(done, len(found))
        if into:
            _put_back(limits, into)
        else:
            limits.outbox.work_off()
    gone = {kept.ticket for kept in moved} - {kept.ticket for kept in read_kept(limits.store) if _is_message(kept)}
    return _counted(kept for kept in moved if kept.ticket in gone)


def _put_back(limits: Limits, into: str) -> None:
    while not limits.store.drain(into, (), last=True).complete:
        pass


def _lists(limits: Limits, found: Iterable[Kept]) -> dict[str, list[Kept]]:
    """By the list that they go into, in order; those of another broker under ''."""
    by_list: dict[str, list[Kept]] = defaultdict(list)
    ordered = sorted(found, key=lambda kept: kept.order)
    if not any(kept.queue for kept in ordered):
        return {"": ordered} if ordered else {}
    if not limits.on_broker:
        raise LimitError(
            "the store keeps messages of queues in its own Redis, but the broker is another one: run the command with "
            "the limits+redis:// URL that the workers had"
        )
    with limits.app.connection_for_write() as connection:
        name = list_names(connection)
        for kept in ordered:
            by_list[name(kept.queue, kept.rank) if kept.queue else ""].append(kept)
    return by_list


def _forget(limits: Limits) -> None:
    """What the store remembers of messages that the broker has: their places in line, and slots that were granted to
    them. Publishers leave etas to Celery from now on, until a limited worker joins."""
    store = limits.store
    client: Any = store.client
    client.hdel(f"{store.prefix}config", "delays")
    gone: Sequence[str] = [kept.ticket for kept in read_kept(store) if not kept.here]
    while gone:
        store.forget(gone[:BATCH])
        gone = gone[BATCH:]
