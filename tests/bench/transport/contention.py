"""What a full limit costs: the use made of its slots, how fast no-ops follow each other, how soon the next starts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

from tests.bench.report import Row
from tests.bench.rounds import spread, take_turns
from tests.bench.transport.fleet import Drain, Fleet, Plan
from tests.bench.transport.scale import Scale

__all__ = ["contention"]

SLOTS = 8
NAP = 0.05
SHORT_NAP = 0.005
USE_GOAL = 0.97
"""Of the use that plain Celery makes of as many places."""
RATE_GOAL = 0.8
"""Of the no-ops a second that plain Celery runs one by one."""
START_GOAL = 1.5
"""Times what plain Celery takes from publishing a task to its start."""


def contention(scale: Scale) -> Iterator[Row]:
    for pool in scale.contended:
        yield from _use(scale, pool)
        yield from _one_by_one(scale, pool)


def _use(scale: Scale, pool: str) -> Iterator[Row]:
    def use(drained: Drain) -> dict[str, float]:
        first, last = drained.entries[0].start, max(entry.end for entry in drained.entries)
        return {"use": sum(entry.end - entry.start for entry in drained.entries) / (last - first) / SLOTS}

    with ExitStack() as stack:
        plain = stack.enter_context(Fleet(Plan("redis", False, pool, SLOTS, conf=scale.conf)))
        ours = stack.enter_context(Fleet(Plan(scale.scheme, True, pool, SLOTS, workers=2, conf=scale.conf)))
        got = take_turns(
            f"slots, {pool}",
            {
                "plain": lambda: use(plain.filled("nap", "k", NAP, times=scale.naps)[1]),
                "ours": lambda: use(ours.filled(f"limited-nap-{SLOTS}", "k", NAP, times=scale.naps)[1]),
            },
            rounds=min(scale.rounds, 4),
        )
    section = f"{scale.naps} tasks of {NAP * 1000:g} ms at a limit of {SLOTS}, two workers of {SLOTS}, {pool}"
    yield Row(
        section,
        "use of the slots",
        spread(got["ours use"], got["plain use"]),
        f"of plain -c {SLOTS}",
        USE_GOAL,
        least=True,
    )
    yield Row(section, f"plain -c {SLOTS}", spread(got["plain use"]), "of all the time")


def _one_by_one(scale: Scale, pool: str) -> Iterator[Row]:
    with ExitStack() as stack:
        plain = stack.enter_context(Fleet(Plan("redis", False, pool, 1, conf=scale.conf)))
        ours = stack.enter_context(Fleet(Plan(scale.scheme, True, pool, 1, workers=2, conf=scale.conf)))

        def plain_turn() -> dict[str, float]:
            _, drained = plain.filled("noop", "k", times=scale.noops)
            return {"run": 1e6 / drained.rate, "start": _publish_to_start(plain, scale.probes)}

        def our_turn() -> dict[str, float]:
            _, drained = ours.filled("limited-noop-1", "k", times=scale.noops)
            _, naps = ours.filled("limited-nap-1", "k", SHORT_NAP, times=2 * scale.probes)
            return {"run": 1e6 / drained.rate, "start": _release_to_start(naps)}

        turns = {"plain": plain_turn, "ours": our_turn}
        got = take_turns(f"one by one, {pool}", turns, rounds=scale.rounds)
    section = f"At a limit of 1, two workers of 1, {pool}"
    ratio = spread(got["plain run"], got["ours run"])
    yield Row(section, f"{scale.noops:,} no-ops, tasks a second", ratio, "of plain -c 1", RATE_GOAL, least=True)
    ratio = spread(got["ours start"], got["plain start"])
    name = "from a body's end to the next one's start"
    yield Row(section, name, ratio, "times plain publish-to-start", START_GOAL, below=True)
    yield Row(section, name, spread(got["ours start"]), "ms")
    yield Row(section, "plain publish-to-start, worker idle", spread(got["plain start"]), "ms")
    yield Row(section, "plain -c 1", spread([1e6 / cost for cost in got["plain run"]]), "tasks/s")


def _publish_to_start(fleet: Fleet, probes: int) -> float:
    """Milliseconds, the median; one after the other, each on an idle worker."""
    times = []
    for _ in range(probes):
        sent = fleet.publish("noop", "k")
        fleet.wait_for(1)
        times.append((fleet.ledger.turn()[0].start - sent.began) / 1e6)
    return statistics.median(times)


def _release_to_start(drained: Drain) -> float:
    """Milliseconds, the median."""
    return statistics.median((after.start - before.end) / 1e6 for before, after in pairwise(drained.entries))
