"""Waiting in tests: on a condition, with a deadline, never for a length of time. The one place that polls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until"]

T = TypeVar("T")

# Seconds. Generous, since it only matters when a test is about to fail.
DEADLINE = 20.0
_PAUSE = 0.005


def wait_until(
    condition: Callable[[], T], what: str, *, within: float = DEADLINE, sleep: Callable[[float], object] = time.sleep
) -> T:
    """The first true value of `condition()`; an AssertionError that names `what` after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within:g} s in vain: {what} (last value: {value!r})")
        sleep(_PAUSE)
