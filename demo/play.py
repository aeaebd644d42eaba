"""The play: starts the workers, sends the orders, opens docks, kills a worker halfway, and waits for the end.

It looks at the ledger and at the limit store a few times a second and hands what it saw, as a `View`, to the screen.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery_limits import Limits
from celery_limits.store.audit import leftovers

from .ledger import Run, runs_of
from .load import Order, orders
from .shop import DIRECTORY, TENANTS, app, ledger, ship
from .workers import Worker

__all__ = ["KeyView", "Play", "View"]

KEYS = [*(f"tenant:{tenant}" for tenant in TENANTS), "warehouse", "carrier-api"]

PAUSE = 0.15
"""Seconds between two looks."""

SETTLING = 10.0
"""Seconds within which the store must be empty after the last worker has left."""

PATIENCE = 150.0
"""Seconds after which whatever is not shipped counts as lost. A machine with nothing else to do needs twenty."""


@dataclass(frozen=True)
class KeyView:
    """One key in the store."""

    key: str
    limit: str
    running: int
    waiting: int


@dataclass
class View:
    """What there is to see at one moment."""

    seconds: float = 0.0
    total: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    keys: list[KeyView] = field(default_factory=list)
    workers: dict[str, str] = field(default_factory=dict)
    news: list[str] = field(default_factory=list)
    """What has happened, the latest last."""


class Play:
    """One run. `show` is called with the same view, brought up to date, after each look."""

    def __init__(self, count: int, show: Callable[[View], Any]) -> None:
        self._orders = orders(count)
        self._half = count // 2
        self._show = show
        self._limits = Limits(app)
        self._workers: list[Worker] = []
        self._began = time.monotonic()
        self._victims: set[str] = set()
        self.view = View(total=dict(Counter(order.tenant for order in self._orders)))

    def run(self) -> list[str]:
        """Plays to the end; what the audit finds wrong afterwards."""
        try:
            self._start_workers()
            self._ship_all()
        finally:
            self._say("the workers are told to stop")
            for worker in self._workers:
                worker.stop()
        return [*map(str, self._limits.audit()), *(f"left behind: {name}" for name in self._left())]

    def _left(self) -> list[str]:
        """What is in the store although nobody is at work. A rate is forgotten when its burst is whole again."""
        store, deadline = self._limits.store, time.monotonic() + SETTLING
        while True:
            more = store.sweep().after.more
            left = leftovers(store)
            if not (left or more) or time.monotonic() > deadline:
                return left
            time.sleep(PAUSE)

    @property
    def was_cut_off(self) -> bool:
        """Whether a worker could not reach the store for longer than its lease: on a machine that is far too busy."""
        return any("cut off from the store" in worker.log for worker in self._workers)

    # -- the acts --------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        self._workers = [Worker(name, DIRECTORY) for name in ("one", "two")]
        self._say("two workers are started, and a Redis of their own")
        while not all(worker.is_ready for worker in self._workers):
            self._look([])

    def _ship_all(self) -> None:
        self._began = time.monotonic()
        self._say("acme floods the queue; birch and cedar order as always, and the docks are shared fairly")
        waiting = list(self._orders)
        while True:
            while waiting and waiting[0].at <= time.monotonic() - self._began:
                self._send(waiting.pop(0))
            runs = runs_of(ledger.entries())
            done = {run.task_id for run in runs if run.finished}
            self._direct(runs, len(done))
            self._look(runs)
            if len(done) == len(self._orders) or time.monotonic() - self._began > PATIENCE:
                return

    @staticmethod
    def _send(order: Order) -> None:
        task_id = f"{order.tenant}-{order.number}"
        ledger.note("sent", task_id=task_id, tenant=order.tenant)  # first: nothing of it happens before this time
        ship.apply_async((order.tenant, order.number), task_id=task_id)

    def _direct(self, runs: list[Run], done: int) -> None:
        """What happens when so many are done."""
        more_docks = DIRECTORY / "more-docks"
        if done >= self._half // 2 and not more_docks.exists():
            more_docks.touch()
            self._say("the warehouse opens more docks: its floating limit grows at the next refresh")
        busy = any(run.ended is None for run in runs)
        killed = any(worker.killed for worker in self._workers)
        if not killed and ((done >= self._half and busy) or done == len(self._orders)):
            self._kill_busiest(runs)
        if self._victims and self._victims <= {run.task_id for run in runs if run.finished}:
            self._say(f"all {len(self._victims)} orders that died with the worker were shipped by the other one")
            self._victims.clear()

    def _kill_busiest(self, runs: list[Run]) -> None:
        running = Counter(run.worker for run in runs if run.ended is None)
        victim = max(self._workers, key=lambda worker: running[worker.pid])
        victim.kill()
        ledger.note("killed", worker=victim.pid)
        runs = [run for run in runs_of(ledger.entries()) if run.worker == victim.pid]
        self._victims = {run.task_id for run in runs if not run.finished}
        lease = self._limits.settings.lease
        self._say(
            f"SIGKILL: worker {victim.name} (pid {victim.pid}) is dead, and {len(self._victims)} orders with it; "
            f"its lease lapses in {lease:g} s"
        )

    # -- seeing ----------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self.view.news.append(f"{time.monotonic() - self._began:5.1f} s  {text}")

    def _look(self, runs: list[Run]) -> None:
        view = self.view
        view.seconds = time.monotonic() - self._began
        view.done = dict(Counter(tenant for tenant, _ in {(run.tenant, run.task_id) for run in runs if run.finished}))
        running = Counter(run.worker for run in runs if run.ended is None)
        view.workers = {worker.name: _state_of(worker, running[worker.pid]) for worker in self._workers}
        catalogue = self._limits.catalogue()
        found = [catalogue.complete(status) for status in self._limits.store.statuses(KEYS)]
        view.keys = [KeyView(s.key, str(s.limit or ""), s.running, s.waiting) for s in found]
        self._show(view)
        time.sleep(PAUSE)


def _state_of(worker: Worker, running: int) -> str:
    if worker.killed:
        return "KILLED"
    return f"runs {running}" if worker.is_ready else "starting"
