"""Deliveries that wait for a store that is away, when the connection is lost that brought them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_limits.worker.deferred import Deferred
from celery_limits.worker.passage import Passage, Pool


class Qos:
    value = 4

    def increment_eventually(self) -> int:
        self.value += 1
        return self.value

    def decrement_eventually(self) -> int:
        self.value -= 1
        return self.value


class Loop:
    """What `Deferred` needs of a worker: an event loop that does one thing after the other."""

    def __init__(self, *, forked: bool) -> None:
        self.forked, self.qos = forked, Qos()
        self.asked: list[Any] = []
        self._inbox: deque[Callable[[], Any]] = deque()

    def call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        self._inbox.append(lambda: function(*args))

    def resubmit(self, request: Any) -> None:
        self.asked.append(request)

    def turn(self) -> None:
        while self._inbox:
            self._inbox.popleft()()


def delivery() -> Passage:
    request: Any = SimpleNamespace(id="t")
    host: Any = None
    return Passage(request, 1, Pool(True, True, lambda _: False), host)


def new(*, forked: bool) -> tuple[Loop, Deferred]:
    loop = Loop(forked=forked)
    worker: Any = loop
    return loop, Deferred(worker)


@pytest.mark.parametrize("forked", [True, False])
def test_what_is_deferred_is_asked_about_again(forked: bool) -> None:
    loop, deferred = new(forked=forked)
    passage = delivery()
    deferred.add(passage)
    loop.turn()
    assert loop.qos.value == 5
    deferred.come_back()
    loop.turn()
    assert loop.asked == [passage.request]
    assert loop.qos.value == 4


def test_what_the_event_loop_has_not_come_to_is_dropped_with_the_connection() -> None:
    """Its message goes back. Kept after that, it would ask again, and run beside the copy that went back."""
    loop, deferred = new(forked=True)
    passage = delivery()
    deferred.add(passage)
    assert deferred.drop() == {passage}
    loop.turn()
    deferred.come_back()
    loop.turn()
    assert loop.asked == []
    assert loop.qos.value == 4


def test_what_a_thread_has_asked_about_meanwhile_goes_on() -> None:
    """A pool of threads keeps the messages of its threads, whatever becomes of the connection."""
    loop, deferred = new(forked=False)
    passage = delivery()
    deferred.add(passage)
    assert deferred.drop() == set()
    loop.turn()
    deferred.come_back()
    loop.turn()
    assert loop.asked == [passage.request]
