"""`Debounce`: of the calls that arrive at a key, only the newest goes on, when they have ceased for a while."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from celery_limits.errors import Refused, shorten

from .limits import Key, Limit, declared_key

__all__ = ["MAX_QUIET", "MIN_QUIET", "Debounce", "check_times"]

MIN_QUIET, MAX_QUIET = 0.001, 30 * 86400.0
"""Seconds for which nothing may come."""


def _seconds(value: object, name: str) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise Refused(f"{name} must be seconds or a timedelta, not {shorten(value)}")
    if not MIN_QUIET <= seconds <= MAX_QUIET:  # NaN fails this too
        raise Refused(f"{name} must be between {MIN_QUIET} seconds and 30 days, not {shorten(value)}")
    return float(seconds)


def check_times(quiet: float, at_most: float | None) -> None:
    if at_most is not None and at_most < quiet:
        raise Refused(f"at_most {at_most:g} is less than quiet {quiet:g}, so calls would never be waited for")


@dataclass(frozen=True, repr=False)
class Debounce(Limit):
    """Lets pass the newest of the calls that share a key, when no other has come for a while; the others end as
    superseded. Nothing is held: put a `Concurrency` behind it to keep bodies from running at once.

    key: a template over the task's arguments, `"index:{doc}"`, or a callable.
    quiet: seconds (or a timedelta) for which no other call may have come.
    at_most: seconds (or a timedelta) after the first call at which the newest passes in any case. None: calls that
        never cease are waited for without end.
    """

    kind = "debounce"
    holds = False
    fair_by = None
    share = 1
    _shown_plain = ("key", "quiet")

    key: Key
    quiet: float | timedelta
    at_most: float | timedelta | None = None

    def __post_init__(self) -> None:
        with self._declaring():
            quiet = _seconds(self.quiet, "quiet")
            at_most = None if self.at_most is None else _seconds(self.at_most, "at_most")
            check_times(quiet, at_most)
            self._set(key=declared_key(self.key), quiet=quiet, at_most=at_most)
