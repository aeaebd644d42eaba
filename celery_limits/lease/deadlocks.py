"""What a worker says and does when its sweep has met a deadlock.

A sweep unties what one script can look at; the alarm that had it look is rung once, so one worker says it, once. What
is larger is left to a picture of all lines, as the audit draws it, at most once in `EVERY` seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery.utils.log import get_logger

from celery_limits.printable import printable
from celery_limits.store import Store
from celery_limits.store.circles import break_circles
from celery_limits.store.outcomes import Untied

__all__ = ["Deadlocks"]

logger = get_logger(__name__)

EVERY = 60.0

UNTIED = (
    "limits: deadlock: tasks held what each other waited for: %s. %d gave up their slots and wait in their old places: "
    "%s. Limits that are taken in opposite orders cause this; see 'Order' in the documentation"
)


class Deadlocks:
    """`on_untied(ticket, key)` is called for each ticket that gave up its slots; `key` is what it waited at."""

    def __init__(self, store: Store, clock: Callable[[], float], on_untied: Callable[[str, str], Any]) -> None:
        self._store, self._clock, self._on_untied = store, clock, on_untied
        self._next_picture = 0.0

    def report(self, untied: Sequence[Untied]) -> None:
        victims = [(one.ticket, one.key) for one in untied if one.ticket]
        if victims:
            self._say("; ".join(dict.fromkeys(one.stuck for one in untied if one.ticket)), victims)
        if any(not one.ticket for one in untied) and self._clock() >= self._next_picture:
            self._next_picture = self._clock() + EVERY
            if found := break_circles(self._store, mend=True):
                self._say(found[0][1], [(ticket, "") for ticket, _ in found])

    def _say(self, stuck: str, victims: Sequence[tuple[str, str]]) -> None:
        names = ", ".join(ticket for ticket, _ in victims[:10]) + (", ..." if len(victims) > 10 else "")
        logger.warning(UNTIED, printable(stuck), len(victims), printable(names))
        for ticket, key in victims:
            self._on_untied(ticket, key)
