"""Many seeds on many processes, each with a Redis of its own; what came of them, added up."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from queue import Empty
from typing import TypeAlias

from celery_limits.store.scripts import Script, load
from tests.redis_server import RedisServer

from .story import Story, Violation
from .trip import Stage

__all__ = ["Progress", "Tally", "default_jobs", "play", "replay", "spread"]

AT_ONCE = 25
"""Seeds after which a process reports."""


@dataclass
class Tally:
    seeds: int = 0
    calls: int = 0
    unanswered: int = 0
    bodies: int = 0
    messages: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violations: dict[int, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.calls += other.calls
        self.unanswered += other.unanswered
        self.bodies += other.bodies
        self.messages += other.messages
        self.faults += other.faults
        self.violations |= other.violations

    def note(self, story: Story) -> None:
        self.seeds += 1
        self.calls += story.schedule.calls
        self.unanswered += story.schedule.unanswered
        self.bodies += story.runs
        self.messages += len(story.referee.world.messages)
        self.faults += story.faults.struck


def play(seeds: Iterable[int], stage: Stage, *, stop_at_first: bool = False) -> Tally:
    tally = Tally()
    for seed in seeds:
        tally.add(_one(seed, stage))
        if stop_at_first and tally.violations:
            break
    return tally


def _one(seed: int, stage: Stage) -> Tally:
    tally, story = Tally(), Story(seed, stage)
    try:
        story.tell()
    except Violation as violation:
        tally.violations[seed] = str(violation)
    tally.note(story)
    return tally


def replay(seed: int, trace: Callable[[str], None], scripts: Callable[[str], Script] = load) -> str | None:
    """Tells one seed aloud; what is wrong with it, if anything."""
    with RedisServer() as server:
        stage = Stage(server.client(socket_timeout=None), scripts)
        try:
            Story(seed, stage, trace).tell()
        except Violation as violation:
            return str(violation)
        finally:
            stage.close()
    return None


Report: TypeAlias = tuple[int, Tally]
"""Of which process, and what came of the seeds since its last one."""


def _work(number: int, seeds: range, reports: multiprocessing.Queue[Report]) -> None:
    gc.disable()  # a story is one heap of references to one another; it goes when the next report is made
    with RedisServer() as server:
        stage = Stage(server.client(socket_timeout=None))
        parent, tally = os.getppid(), Tally()
        for seed in seeds:
            tally.add(_one(seed, stage))
            if tally.violations or tally.seeds == AT_ONCE or seed == seeds[-1]:
                reports.put((number, tally))  # a violation at once: whatever happens next, its seed is known
                tally = Tally()
                gc.collect()
                if os.getppid() != parent:  # it was killed, and nobody listens any more
                    break


@dataclass
class Progress:
    """All that is known so far. Every seed below `reached` has been told."""

    tally: Tally
    seconds: float
    reached: int


def spread(first: int, seeds: int, jobs: int) -> Iterator[Progress]:
    """All seeds on so many processes; the progress after each report."""
    context = multiprocessing.get_context("spawn")
    reports: multiprocessing.Queue[Report] = context.Queue()
    everything = range(first, first + seeds)
    shares = [everything[n::jobs] for n in range(jobs)]
    workers = [context.Process(target=_work, args=(n, share, reports), daemon=True) for n, share in enumerate(shares)]
    for worker in workers:
        worker.start()
    tally, began, told = Tally(), time.monotonic(), [0] * jobs
    while tally.seeds < seeds:
        try:
            number, more = reports.get(timeout=5)
        except Empty:
            dead = [w.exitcode for w in workers if w.exitcode]
            if dead:
                raise RuntimeError(f"a process of the simulation ended by itself: {dead}") from None
            continue
        tally.add(more)
        told[number] += more.seeds
        reached = min(
            (share[n] for n, share in zip(told, shares, strict=True) if n < len(share)), default=first + seeds
        )
        yield Progress(tally, time.monotonic() - began, reached)
    for worker in workers:
        worker.join()


def default_jobs() -> int:
    return os.cpu_count() or 1
