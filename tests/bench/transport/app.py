"""The Celery app that is measured: no-ops and short sleeps, without limits and with.

Publisher and workers import it with its configuration in the environment. The plain variant never imports
`celery_limits`, so that what it is compared with is Celery as it comes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, signals

from tests.bench.transport.ledger import Lane

__all__ = ["CONF", "OPEN", "app", "build"]

CONF = "LIMITS_BENCH_CONF"
"""The environment variable that has the configuration, as JSON: broker, ledger, limits, and Celery's own in `conf`."""

LANE_ENTRIES = 400_000
WIDE = 10_000
"""A limit that nothing here fills."""

OPEN = "open"
"""What the name of a door's file ends with."""

_local = threading.local()


def build(given: dict[str, Any]) -> Celery:
    app = Celery("bench", broker=given["broker"], set_as_current=False)
    app.conf.update(task_ignore_result=True, worker_hijack_root_logger=True, **given["conf"])
    ledger = Path(given["ledger"])

    def noop(key: str) -> None:
        now = time.monotonic_ns()
        _lane(ledger).write(now, now)

    def nap(key: str, seconds: float) -> None:
        start = time.monotonic_ns()
        time.sleep(seconds)
        _lane(ledger).write(start, time.monotonic_ns())

    def hold(key: str) -> None:
        """Until whoever measures opens the door, with a file."""
        while not (ledger / f"{key}.{OPEN}").exists():
            time.sleep(0.05)

    app.task(name="noop")(noop)
    app.task(name="nap")(nap)
    signals.worker_ready.connect(lambda sender, **_: (ledger / f"{sender.hostname}.ready").touch(), weak=False)
    if given["limits"]:
        _with_limits(app, noop, nap, hold)
    return app


def _with_limits(app: Celery, noop: Any, nap: Any, hold: Any) -> None:
    from celery_limits import Concurrency, RateLimit  # noqa: PLC0415  (the plain variant does without)

    chain = [
        Concurrency("tenant:{key}", WIDE),
        Concurrency("warehouse", WIDE),
        RateLimit("api", "100000/s", burst=WIDE),
    ]
    app.task(name="chained-noop", limits=chain)(noop)
    app.task(name="limited-hold-1", limits=[Concurrency("{key}", 1)])(hold)
    for size in (1, 8):
        app.task(name=f"limited-noop-{size}", limits=[Concurrency("{key}", size)])(noop)
        app.task(name=f"limited-nap-{size}", limits=[Concurrency("{key}", size)])(nap)


def _lane(directory: Path) -> Lane:
    """One per thread. The parent of a pool of processes runs no body, so a child never inherits one."""
    lane: Lane | None = getattr(_local, "lane", None)
    if lane is None:
        lane = _local.lane = Lane(directory, LANE_ENTRIES)
    return lane


if CONF in os.environ:
    app = build(json.loads(os.environ[CONF]))
