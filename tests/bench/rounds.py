"""Measuring on a noisy machine: variants take turns in many short rounds, and only figures of one round are compared.

A block is a function that does so many units of work and returns what one of them cost. What is compared, and what
would be good, is left to the bench.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from redis import Redis

__all__ = [
    "Block",
    "Samples",
    "Spread",
    "Turn",
    "Work",
    "interleave",
    "on_client",
    "on_server",
    "say",
    "spread",
    "take_turns",
]

Block: TypeAlias = Callable[[int], float]
"""Units of work to do -> the cost of one, in microseconds."""

Work: TypeAlias = Callable[[int], Callable[[], object]]
"""Units of work to prepare -> the function that does them, and nothing else."""

Samples: TypeAlias = dict[str, list[float]]

Turn: TypeAlias = Callable[[], Mapping[str, float]]
"""One turn of one variant -> its figures, by name."""

WARM_UP = 3
"""Rounds that don't count: scripts are loaded, tables grown by the set-up are rehashed."""

MIN_ROUNDS = 10
"""However slow the machine is."""

HEAT = 5
"""Units at the start of each block that don't count either: its server may have slept since its last turn."""

_PROGRESS_SECONDS = 2.0


def say(text: str) -> None:
    """Progress, for whoever wonders whether it hangs; results are on stdout."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def interleave(what: str, blocks: Mapping[str, Block], *, seconds: float, units: int) -> Samples:
    """Every block once a round, in an order that chance gives it: what ran before leaves its traces in the caches."""
    names, samples = list(blocks), {name: list[float]() for name in blocks}
    said, chance, started, turn = 0.0, random.Random(1), time.monotonic(), -WARM_UP
    while turn < MIN_ROUNDS or time.monotonic() - started < seconds:
        if time.monotonic() - said > _PROGRESS_SECONDS:
            said = time.monotonic()
            say(f"  {what}: {said - started:.0f} of {seconds:.0f} s, round {max(turn, 0)}")
        chance.shuffle(names)
        for name in names:
            cost = blocks[name](units)
            if turn >= 0:
                samples[name].append(cost)
        turn += 1
    return samples


def take_turns(what: str, variants: Mapping[str, Turn], *, rounds: int) -> Samples:
    """Every variant once a round, in an order that chance gives it; for turns of seconds, of which there are few.

    The figures of a variant are named `variant figure`. A first round doesn't count.
    """
    names, samples, chance = list(variants), Samples(), random.Random(1)
    for turn in range(rounds + 1):
        say(f"  {what}: {f'round {turn} of {rounds}' if turn else 'warm-up'}")
        chance.shuffle(names)
        for name in names:
            figures = variants[name]()
            for figure, value in figures.items():
                kept = samples.setdefault(f"{name} {figure}", [])
                if turn:
                    kept.append(value)
    return samples


def on_server(client: Redis, work: Work, *commands: str, times: int = 1) -> Block:
    """The server's own time for `commands` (INFO commandstats; a script's includes what it calls).

    `times` as many units as the others: what is quickly done would else see too little of a round's noise.
    """

    def block(units: int) -> float:
        units *= times
        work(HEAT)()
        run = work(units)
        client.config_resetstat()
        run()
        stats = client.info("commandstats")
        assert isinstance(stats, dict)
        return sum(float(stats[f"cmdstat_{command}"]["usec"]) for command in commands) / units

    return block


def on_client(work: Work) -> Block:
    """This process's CPU time, user and system. What it waits for the server is not in it."""

    def block(units: int) -> float:
        work(HEAT)()
        run = work(units)
        before = time.process_time_ns()
        run()
        return (time.process_time_ns() - before) / 1000 / units

    return block


class Spread(NamedTuple):
    """Of one figure over all rounds: its median, and between what it lay in eight rounds of ten."""

    median: float
    low: float
    high: float


def spread(over: list[float], under: list[float] | None = None) -> Spread:
    """A cost, or with `under` the ratio of two, taken round by round."""
    figures = over if under is None else [a / b for a, b in zip(over, under, strict=True)]
    if len(figures) == 1:
        return Spread(figures[0], figures[0], figures[0])
    tenths = statistics.quantiles(figures, n=10, method="inclusive")
    return Spread(statistics.median(figures), tenths[0], tenths[-1])
