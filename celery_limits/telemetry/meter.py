"""Where the package says what happens: one call for each event, to nobody unless someone measures.

Whoever tells asks first, `if meter() is not None`, so that nothing is made up for nobody. What a pool's child process
tells is not heard by its parent; everything that can be told in the parent is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["SENT_HEADER", "Meter", "measure_with", "meter"]

SENT_HEADER = "limits_sent"
"""When a message was published, in seconds since 1970, by publishers that have `limits_metrics_port` set."""


class Meter(Protocol):
    """What is told. `task` is a task's name, `key` a resolved key, times are seconds."""

    def admitted(self, task: str) -> None: ...

    def waited(self, task: str) -> None:
        """A task was admitted that had been parked. The store itself counts parkings (`store.lookups`)."""

    def ended(self, task: str, reason: str) -> None:
        """It will not run: `reason` is discarded, expired, revoked or superseded."""

    def reclaimed(self, workers: int) -> None:
        """Workers were found dead, and what they held was given to others."""

    def waited_for_limit(self, task: str, key: str, seconds: float) -> None: ...

    def waited_for_worker(self, task: str, seconds: float) -> None: ...

    def held(self, task: str, keys: Sequence[str], seconds: float) -> None: ...


_current: list[Meter] = []


def meter() -> Meter | None:
    """Who measures in this process; mostly nobody."""
    return _current[0] if _current else None


def measure_with(new: Meter | None) -> None:
    """From now on this one is told; None: nobody."""
    _current[:] = [] if new is None else [new]
