"""The shop that the demo runs: orders of three tenants, shipped under a chain of three limits.

A worker imports it with `LIMITS_DEMO`, the directory of this run, in its environment.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from celery_limits import Concurrency, FloatingConcurrency, RateLimit

from .ledger import Ledger

__all__ = ["RATE", "SIZES", "TENANTS", "app", "ledger", "ship"]

DIRECTORY = Path(os.environ["LIMITS_DEMO"])
TENANTS = ("acme", "birch", "cedar")
PER_TENANT = 3
DOCKS = 4
MORE_DOCKS = 6
RATE, BURST = 10, 5
"""Calls of the carrier's API a second, and at once."""

SIZES = {**{f"tenant:{tenant}": PER_TENANT for tenant in TENANTS}, "warehouse": DOCKS}
"""Keys and their limits, as they are at first."""

ledger = Ledger(DIRECTORY / "ledger.jsonl")

app: Any = Celery("demo.shop", broker=f"limits+embedded://{DIRECTORY}/redis")
app.conf.update(
    limits_lease=float(os.environ.get("LIMITS_DEMO_LEASE", "2.5")),
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


def docks() -> int:
    """How much the warehouse can do at once, asked every second: it opens more docks when told to."""
    size = MORE_DOCKS if (DIRECTORY / "more-docks").exists() else DOCKS
    ledger.note("size", key="warehouse", size=size)
    return size


@app.task(
    bind=True,
    acks_late=True,  # else what a killed worker ran would be lost, as ever with Celery
    limits=[
        Concurrency("tenant:{tenant}", PER_TENANT),
        FloatingConcurrency("warehouse", default=DOCKS, refresh="demo.shop:docks", every=1, fair_by="{tenant}"),
        RateLimit("carrier-api", f"{RATE}/s", burst=BURST, fair_by="{tenant}"),
    ],
)
def ship(self: Any, tenant: str, order: int) -> None:
    """The body: it tells the ledger that it runs, and takes its time."""
    worker = os.getppid()
    ledger.note("start", task_id=self.request.id, tenant=tenant, worker=worker)
    time.sleep(0.25 + 0.05 * (order % 6))
    ledger.note("end", task_id=self.request.id, tenant=tenant, worker=worker)
