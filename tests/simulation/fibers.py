"""Product code as a virtual thread: it runs in a greenlet, and where it would block, its thread yields to the schedule.

So the simulation needs no second implementation of anything that blocks. `run` makes a virtual thread of a function;
`block` is called, at any depth inside of it, by what stands in for the store, the clock and locks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from tests.store.actors import SECOND

from .schedule import Call, Idle, Schedule, Sleep, Steps, Thread, Unreachable

__all__ = ["VirtualEvent", "VirtualLock", "abandon_all", "block", "drive", "run"]

_live: set[greenlet] = set()
_closing = False


def run(function: Callable[..., Any], *args: Any) -> Steps:
    """The steps of a thread that calls this function; its result is that of the function."""
    fiber = greenlet(function)
    _live.add(fiber)
    try:
        step = fiber.switch(*args)
        while not fiber.dead:
            try:
                answer = yield step
            except Unreachable as error:
                step = fiber.throw(error)
            else:
                step = fiber.switch(answer)
        return step
    finally:
        if fiber.dead:
            _live.discard(fiber)


def block(step: Call | Idle | Sleep) -> Any:
    """What the schedule answers to this step. Inside of `run` only."""
    parent = getcurrent().parent
    if _closing:
        raise GreenletExit
    assert parent is not None, f"{step} outside of a virtual thread"
    return parent.switch(step)


def drive(steps: Steps) -> Any:
    """The steps of a virtual thread, as a part of this one."""
    answer: Any = None
    try:
        step = next(steps)
        while True:
            try:
                answer = block(step)
            except Unreachable as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


def abandon_all() -> None:
    """The story is over: what is still under way unwinds now, and not whenever it is collected."""
    global _closing  # noqa: PLW0603  (one story at a time)
    _closing = True
    try:
        for fiber in tuple(_live):
            with suppress(BaseException):
                fiber.throw(GreenletExit)
    finally:
        _live.clear()
        _closing = False


class _Waited:
    """Something that virtual threads wait for."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._waiting: list[Thread] = []

    def _wait(self, seconds: float) -> None:
        me = self._schedule.current
        assert me is not None
        self._waiting.append(me)
        try:
            block(Idle(max(1, round(seconds * SECOND))))
        finally:
            self._waiting.remove(me)

    def _wake(self) -> None:
        for thread in tuple(self._waiting):
            self._schedule.wake(thread)


class VirtualEvent(_Waited):
    """As `threading.Event`."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._wake()

    def wait(self, timeout: float) -> bool:
        if not self._is_set:
            self._wait(timeout)
        return self._is_set


class VirtualLock(_Waited):
    """As what `_thread.allocate_lock` makes, as far as it is used: it may be released by anyone."""

    FOREVER = 3600.0

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self._locked = False

    def acquire(self, timeout: float = -1) -> bool:
        if self._locked:
            self._wait(self.FOREVER if timeout < 0 else timeout)
        if self._locked:
            return False
        self._locked = True
        return True

    def release(self) -> None:
        self._locked = False
        self._wake()
