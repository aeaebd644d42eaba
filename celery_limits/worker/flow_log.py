"""One line in the log when a task is parked, resumed, superseded or discarded; a flood of them is counted instead.

A task that its publisher, or the transport, put straight into a line never came to a worker: only its resumption is
logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from celery.utils.log import get_logger

from celery_limits.declare.chain import DebounceLink, Link, RateLink
from celery_limits.declare.limits import NEWEST_WINS
from celery_limits.printable import printable
from celery_limits.store.outcomes import Admitted, Parked

__all__ = ["LINES", "SECONDS", "Bounded", "log_ended", "log_parked", "log_resumed", "ordinal"]

logger = get_logger(__name__)

LINES = 20
SECONDS = 10.0
"""So many lines of one sort are written in this time; the next one tells how many were left out."""


class Bounded:
    """Writes lines of one sort at INFO."""

    def __init__(self, sort: str) -> None:
        self._sort = sort
        self._lock = threading.Lock()
        self._since = 0.0
        self._written = self._left_out = 0

    def say(self, text: str, *args: object) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        with self._lock:
            now = time.monotonic()
            left_out = 0
            if now - self._since >= SECONDS:
                left_out, self._left_out = self._left_out, 0
                self._since, self._written = now, 0
            elif self._written >= LINES:
                self._left_out += 1
                return
            self._written += 1
        if left_out:
            logger.info("limits: %d more were %s, and not logged one by one", left_out, self._sort)
        logger.info(text, *args)


_parked, _resumed, _discarded = Bounded("parked"), Bounded("resumed"), Bounded("discarded")
_superseded = Bounded("superseded")


def _name_of(request: Any) -> tuple[str, str]:
    return printable(request.name), printable(request.id)


def log_parked(request: Any, links: Sequence[Link], outcome: Parked) -> None:
    link = links[outcome.link]
    _parked.say("limits: %s[%s] parked at %r%s", *_name_of(request), link.key, _place(link, outcome))


def _place(link: Link, outcome: Parked) -> str:
    if outcome.place is None:
        return ""
    group = "" if link.group is None else f" of the group {printable(link.group)!r}"
    return f", {ordinal(outcome.place)} of {outcome.waiting}{group}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def log_resumed(request: Any, links: Sequence[Link], outcome: Admitted) -> None:
    waits = [wait for wait in outcome.waits if wait.link < len(links)]
    if waits:
        at = ", ".join(repr(links[wait.link].key) for wait in waits)
        seconds = sum(wait.seconds for wait in waits)
        _resumed.say("limits: %s[%s] resumed after %.1f s at %s", *_name_of(request), seconds, at)


def log_ended(request: Any, links: Sequence[Link], reason: str, link: int | None = None) -> None:
    """Revoked, expired, superseded or discarded; `link` is the one that discards."""
    if reason.startswith("superseded"):
        _superseded.say("limits: %s[%s] is %s", *_name_of(request), printable(reason))
        return
    if reason != "discarded" or link is None:
        logger.info("limits: %s[%s] is %s", *_name_of(request), reason)
        return
    why = _why(links[link]) if link < len(links) else ""
    _discarded.say("limits: %s[%s] discarded: %s", *_name_of(request), why or "a limit is full")


def _why(link: Link) -> str:
    if isinstance(link, (RateLink, DebounceLink)) or link.on_full in NEWEST_WINS:
        return ""
    if link.on_full == "discard":
        return f"{link.key!r} is full (on_full='discard')"
    return f"the line at {link.key!r} is full (max_waiting={link.max_waiting})"
