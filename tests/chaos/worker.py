"""`python -m tests.chaos.worker worker ...`: Celery's own program, in a process that is prepared for the chaos run.

Its wall clock may be moved, and it is watched for being starved. The clock is moved before Celery is imported, so that
whoever takes `time.time` takes the moved one.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from tests.chaos.ledger import Ledger

__all__ = ["NAME", "SHIFT", "WATCH", "watch"]

NAME = "LIMITS_CHAOS_NAME"
SHIFT = "LIMITS_CHAOS_SHIFT"
"""Environment variable: seconds by which the clock is ahead."""

WATCH = 1.0
"""Seconds by which a thread that wanted to wake up was late when it is worth a line."""


def move_clock(seconds: float) -> None:
    """`time.time` and `time.time_ns` of this process and its pool. (Not `datetime`, which asks the system.)"""
    wall, wall_ns = time.time, time.time_ns
    time.time = lambda: wall() + seconds
    time.time_ns = lambda: wall_ns() + round(seconds * 1e9)


def watch(ledger: Ledger, worker: str, nap: float = 0.25) -> None:
    """Says when this process did not get to run: to others it was silent then, as one that is stopped."""

    def look() -> None:
        while True:
            before = time.monotonic()
            time.sleep(nap)
            late = time.monotonic() - before
            if late > nap + WATCH:
                ledger.note("starved", worker=worker, seconds=late)

    threading.Thread(target=look, name="chaos-watch", daemon=True).start()


def main() -> None:
    if shift := float(os.environ.get(SHIFT) or 0):
        move_clock(shift)
    from celery.__main__ import main as celery  # noqa: PLC0415

    sys.argv[0] = "celery"
    celery()


if __name__ == "__main__":
    main()
