"""Many seeds on many processes, each with a Redis of its own; what came of them, added up."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from queue import Empty

from celery_limits.store.scripts import Script, load
from tests.redis_server import RedisServer

from .story import Story, Violation
from .trip import Stage

__all__ = ["Tally", "play", "replay", "spread"]

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
        story = Story(seed, stage)
        try:
            story.tell()
        except Violation as violation:
            tally.violations[seed] = str(violation)
        tally.note(story)
        if stop_at_first and tally.violations:
            break
    return tally


def replay(seed: int, trace: Callable[[str], None], scripts: Callable[[str], Script] = load) -> str | None:
    """Tells one seed aloud; what is wrong with it, if anything."""
    with RedisServer() as server:
        stage = Stage(server.client(), scripts)
        try:
            Story(seed, stage, trace).tell()
        except Violation as violation:
            return str(violation)
        finally:
            stage.close()
    return None


def _work(seeds: range, reports: multiprocessing.Queue[Tally]) -> None:
    with RedisServer() as server:
        stage = Stage(server.client())
        parent = os.getppid()
        for start in range(0, len(seeds), AT_ONCE):
            if os.getppid() != parent:  # it was killed, and nobody listens any more
                break
            reports.put(play(seeds[start : start + AT_ONCE], stage))


def spread(first: int, seeds: int, jobs: int) -> Iterator[tuple[Tally, float]]:
    """All seeds on so many processes; after each report all that is known, and the seconds it took."""
    context = multiprocessing.get_context("spawn")
    reports: multiprocessing.Queue[Tally] = context.Queue()
    everything = range(first, first + seeds)
    workers = [context.Process(target=_work, args=(everything[n::jobs], reports), daemon=True) for n in range(jobs)]
    for worker in workers:
        worker.start()
    tally, began = Tally(), time.monotonic()
    while tally.seeds < seeds:
        try:
            tally.add(reports.get(timeout=5))
        except Empty:
            dead = [w.exitcode for w in workers if w.exitcode]
            if dead:
                raise RuntimeError(f"a process of the simulation ended by itself: {dead}") from None
            continue
        yield tally, time.monotonic() - began
    for worker in workers:
        worker.join()


def default_jobs() -> int:
    return os.cpu_count() or 1
