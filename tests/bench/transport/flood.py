"""A line never clogs a queue: what a flood on one full key does to a task on a free one, and how fast it is sifted."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.bench.report import Row
from tests.bench.rounds import Spread, say, spread, take_turns
from tests.bench.transport.fleet import Fleet, Plan
from tests.bench.transport.scale import Scale
from tests.waiting import wait_until

__all__ = ["flood", "sift"]

START_GOAL = 100.0
"""Milliseconds from publishing a task to its start."""
SIFT_GOAL = 5.0
"""Times as many messages a second as the worker runs no-ops."""
BLOCK = 5_000
SIFT_SECONDS = 120.0


def flood(scale: Scale) -> Iterator[Row]:
    """One place of the worker is taken by the holder of the full key; the other is idle."""
    pool = scale.contended[0]
    with Fleet(Plan(scale.scheme, True, pool, scale.concurrency, conf=scale.conf)) as fleet:
        fleet.publish("limited-hold-1", "full")
        wait_until(lambda: not fleet.queued(), "the holder was fetched")
        before = _probe(fleet, scale.probes)
        sent = 0.0
        for done in range(0, scale.flood, BLOCK):
            say(f"  flood: {done:,} of {scale.flood:,}")
            sent += fleet.publish("limited-noop-1", "full", times=min(BLOCK, scale.flood - done)).seconds
        queued = fleet.queued()
        after = _probe(fleet, scale.probes)
        fleet.redis.flushall()  # else the worker runs the whole line before it ends
        fleet.open("full")
    section = f"After {scale.flood:,} publishes on a full key ({pool} -c {scale.concurrency})"
    name = "a task on a free key in the same queue, publish-to-start"
    yield Row(section, name, spread(after), "ms", START_GOAL, below=True)
    yield Row(section, "the slowest of them", _single(max(after)), "ms", START_GOAL, below=True)
    yield Row(section, "the same before the flood", spread(before), "ms")
    yield Row(section, "left in the queue by the flood", _single(queued), "messages")
    yield Row(section, "publishing into the line", _single(scale.flood / sent), "publishes/s")


def _probe(fleet: Fleet, probes: int) -> list[float]:
    times = []
    for number in range(probes):
        sent = fleet.publish("limited-noop-1", f"free-{number}")
        fleet.wait_for(1)
        times.append((fleet.ledger.turn()[0].start - sent.began) / 1e6)
    return times


def _single(value: float) -> Spread:
    return Spread(value, value, value)


def sift(scale: Scale) -> Iterator[Row]:
    for pool in scale.contended:
        with Fleet(Plan(scale.scheme, True, pool, scale.concurrency, conf=scale.conf)) as fleet:
            turns = {
                "noop": lambda fleet=fleet: {"run": 1e6 / fleet.filled("noop", "k", times=scale.noops)[1].rate},
                "sift": lambda fleet=fleet: {"run": _sift(fleet, scale.sifted)},
            }
            got = take_turns(f"sift, {pool}", turns, rounds=min(scale.rounds, 4))
        section = (
            f"{scale.sifted:,} messages of a key that filled after they were published ({pool} -c {scale.concurrency})"
        )
        ratio = spread(got["noop run"], got["sift run"])
        yield Row(section, "taken out of the queue", ratio, "times the rate of no-ops", SIFT_GOAL, least=True)
        yield Row(section, "taken out of the queue", spread([1e6 / cost for cost in got["sift run"]]), "messages/s")


def _sift(fleet: Fleet, count: int) -> float:
    """Microseconds a message, from the first one that is taken out to the moment when all are in line."""
    fleet.stop()
    fleet.resize("sifted", count)  # a size that is said here counts instead of the declared one
    fleet.publish("limited-noop-1", "sifted", times=count)
    full = fleet.queued()
    fleet.resize("sifted", 0)
    fleet.go()
    wait_until(lambda: fleet.queued() < full, "the first message is taken")
    left, began = fleet.queued(), time.monotonic_ns()
    wait_until(lambda: fleet.queued() == 0 and fleet.waiting("sifted") == count, "all are in line", within=SIFT_SECONDS)
    cost = (time.monotonic_ns() - began) / 1000 / left
    fleet.resize("sifted", count)
    fleet.drain(count)
    return cost
