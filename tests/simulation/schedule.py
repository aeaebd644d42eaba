"""Virtual time: threads of virtual processes, calls under way between them and the store, all from one seed.

A thread is a generator. It yields `Sleep`, `Idle` or `Call` and is resumed when that is over; between any two yields
every other thread may have its turn. A call takes time to reach the store and its answer takes time to come back; on
either way it may be lost, its sender may be stopped, and its sender may die.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.store.actors import SECOND, Clock

__all__ = ["Call", "Idle", "Process", "Schedule", "Sleep", "Steps", "Thread", "Unreachable", "Weather"]

MILLISECOND = SECOND // 1000
LATEST = 4
"""Seconds after which a request that was thought to be lost arrives at the latest."""

ATTEMPTS = 3
"""How often a call is sent when its connection breaks, as in `celery_limits.store.script_runner`."""


class Unreachable(Exception):
    """The caller got no answer. Whether the call was executed, it can't know."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """For so many microseconds of the process's own clock."""

    us: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Until woken, or for so many microseconds."""

    us: int


@dataclass(frozen=True, slots=True)
class Call:
    what: str
    run: Callable[[], Any]
    attempts: int = ATTEMPTS
    """How often it is sent when its connection breaks."""


Steps: TypeAlias = Generator[Sleep | Idle | Call, Any, Any]


@dataclass(eq=False, slots=True)
class Process:
    """Something that can be stopped and killed. `rate`: how fast its clock runs."""

    name: str
    rate: float = 1.0
    alive: bool = True
    stopped_until: int = 0
    cut_until: int = 0
    """Until when it does not reach the store."""
    parent: Process | None = None
    pid: int = 0

    @property
    def cut(self) -> int:
        return self.parent.cut_until if self.parent else self.cut_until


@dataclass(slots=True)
class Weather:
    """How calls fare: shares of them that are lost on the way there, on the way back, or are slow."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    """Of those that are lost on the way there: they arrive after all, when nobody waits for their answer any more."""
    slow: float = 0.0
    outage_until: int = 0

    def clear(self) -> None:
        self.lost_request = self.lost_answer = self.late = self.slow = 0.0
        self.outage_until = 0


class Thread:
    __slots__ = ("idle", "over", "process", "steps", "turn")

    def __init__(self, steps: Steps, process: Process) -> None:
        self.steps, self.process = steps, process
        self.turn = 0
        self.idle = False
        self.over = False


class Schedule:
    """`now` is true time; the clock of the store's server is ahead of it by `leap`, or behind."""

    def __init__(self, seed: int, clock: Clock, trace: Callable[[str], None] | None) -> None:
        self.dice = random.Random(seed)
        self.clock = clock
        self.now = clock.now
        self.leap = 0
        self.weather = Weather()
        self.calls = self.unanswered = 0
        self.late = 0
        """Requests that are still under way, though nobody waits for an answer."""
        self.lingers = False
        """Whether the answer that is made now is slow."""
        self.current: Thread | None = None
        """Whose turn it is."""
        self.looked: Callable[[], None] = lambda: None
        self._trace = trace
        self.traced = trace is not None
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._began = clock.now

    # -- telling ----------------------------------------------------------------------------------------------

    def say(self, who: str, what: object) -> None:
        if self._trace is not None:
            self._trace(f"{(self.now - self._began) / SECOND:11.6f}  {who:<14} {what}")

    # -- events -----------------------------------------------------------------------------------------------

    def at(self, when: int, do: Callable[..., None], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, do, args))

    def after(self, seconds: float, do: Callable[..., None], *args: Any) -> None:
        self.at(self.now + round(seconds * SECOND), do, *args)

    def run(self, until: int, over: Callable[[], bool] = lambda: False) -> None:
        """Until that time, or until `over`."""
        while self._events and self._events[0][0] <= until and not over():
            when, _, do, args = heapq.heappop(self._events)
            self.now = when
            do(*args)
        if not over():
            self.now = max(self.now, until)

    # -- threads ----------------------------------------------------------------------------------------------

    def start(self, steps: Steps, process: Process) -> Thread:
        thread = Thread(steps, process)
        self._resume_at(self.now, thread, None)
        return thread

    def wake(self, thread: Thread) -> None:
        if thread.idle and not thread.over:
            thread.idle = False
            self._resume_at(self.now, thread, None)

    def kill(self, thread: Thread) -> None:
        thread.over = True

    def _resume_at(self, when: int, thread: Thread, answer: Any) -> None:
        thread.turn += 1
        self.at(when, self._resume, thread, thread.turn, answer)

    def _resume(self, thread: Thread, turn: int, answer: Any) -> None:
        process = thread.process
        if thread.over or turn != thread.turn or not process.alive:
            return
        if process.stopped_until > self.now:
            self.at(process.stopped_until, self._resume, thread, turn, answer)
            return
        thread.idle = False
        self.current = thread
        try:
            if isinstance(answer, Unreachable):
                step = thread.steps.throw(answer)
            else:
                step = thread.steps.send(answer)
        except StopIteration:
            thread.over = True
            return
        if isinstance(step, Call):
            self._send(thread, thread.turn, step, 1)
        elif isinstance(step, Sleep):
            self._resume_at(self.now + max(1, round(step.us / process.rate)), thread, None)
        else:
            thread.idle = True
            self._resume_at(self.now + max(1, round(step.us / process.rate)), thread, None)

    # -- calls ------------------------------------------------------------------------------------------------

    def _delay(self) -> int:
        dice = self.dice
        if self.weather.slow and dice.random() < self.weather.slow:
            return dice.randrange(100 * MILLISECOND, 2 * SECOND)
        return dice.randrange(100, 2 * MILLISECOND)

    def _linger(self) -> int:
        lingers, self.lingers = self.lingers, False
        return self.dice.randrange(SECOND // 2, 2 * SECOND) if lingers else 0

    def _send(self, thread: Thread, turn: int, call: Call, attempt: int) -> None:
        self.at(self.now + self._delay(), self._arrive, thread, turn, call, attempt)

    def _arrive(self, thread: Thread, turn: int, call: Call, attempt: int) -> None:
        weather, process = self.weather, thread.process
        dead = not process.alive or thread.over
        if dead and self.dice.random() < 0.5:
            return None  # it died before it had sent it
        if weather.outage_until > self.now or process.cut > self.now:
            return self._unanswered(thread, turn, call, call.attempts)
        if self.dice.random() < weather.lost_request:
            if self.dice.random() < weather.late:
                self.late += 1
                self.after(self.dice.random() * LATEST, self._arrive_late, call, process)
            return self._unanswered(thread, turn, call, attempt)
        answer = self._execute(call, process, " (its sender is dead)" if dead else "")
        if self.dice.random() < weather.lost_answer:
            return self._unanswered(thread, turn, call, attempt)
        return self.at(self.now + self._delay() + self._linger(), self._resume, thread, turn, answer)

    def _arrive_late(self, call: Call, process: Process) -> None:
        self.late -= 1
        self._execute(call, process, " (too late)")

    def _execute(self, call: Call, process: Process, how: str) -> Any:
        self.clock.server = max(self.clock.server, self.now + self.leap)
        self.calls += 1
        self.current = None
        answer = call.run()
        self.looked()
        if self.traced:
            self.say(process.name, f"{call.what} -> {answer}{how}")
        return answer

    def _unanswered(self, thread: Thread, turn: int, call: Call, attempt: int) -> None:
        """A connection that broke is opened again and the call repeated; one that hangs is given up."""
        if attempt < call.attempts and self.dice.random() < 0.7 and thread.process.alive and not thread.over:
            self.say(thread.process.name, f"{call.what} is sent again")
            return self._send(thread, turn, call, attempt + 1)
        self.say(thread.process.name, f"{call.what} is not answered")
        self.unanswered += 1
        wait = self.dice.choice((MILLISECOND, 50 * MILLISECOND, 400 * MILLISECOND))
        return self.at(self.now + wait, self._resume, thread, turn, Unreachable())
