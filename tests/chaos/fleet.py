"""The processes of the chaos run: the servers of its site, a Redis for results, and workers behind proxies.

Every worker that is started has a name of its own (`w2.5`: the fifth in place 2) and reaches Redis through the proxy of
its place. Processes are only ever signalled by their id.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGUSR1, Signals
from typing import Any

import psutil

from celery_limits import Limits
from tests.chaos.app import CONF, build
from tests.chaos.bugs import BUG
from tests.chaos.ledger import Ledger
from tests.chaos.sites import SITES
from tests.chaos.worker import NAME, SHIFT
from tests.chaos.world import OLD
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.stage import is_alive

__all__ = ["FORGET", "GRANT", "LEASE", "Fleet", "Place"]

LEASE = 6.0
"""Seconds. A machine on which other things run, too, keeps a worker from renewing it for one or two."""
GRANT = 4 * LEASE
"""Seconds for which a turn is kept while there may be no worker to take it: all of them may be starting."""
FORGET = 20.0
ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 60.0


class Worker:
    """One `celery worker` and its pool."""

    def __init__(
        self, place: int, count: int, conf: dict[str, Any], directory: Path, *options: str, environment: dict[str, str]
    ) -> None:
        name = f"w{place}.{count}"
        self.name, self.place = f"{name}@chaos", place
        self.log_file = directory / f"{name}.log"
        command = [sys.executable, "-m", "tests.chaos.worker", "-A", "tests.chaos.app", "worker", "-n", self.name]
        mine = {CONF: json.dumps(conf), NAME: self.name, "PYTHONPATH": str(ROOT), **environment}
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--without-mingle", "--without-gossip", "-l", "info", *options],
                cwd=ROOT, env={**os.environ, **mine}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.pid = self._process.pid
        self.family = {self.pid}
        self._was_ready = False

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        if not self._was_ready:
            self._was_ready = f"{self.name} ready".encode() in self.log_file.read_bytes()
        return self._was_ready and self.is_running

    def children(self) -> list[int]:
        try:
            found = [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            found = []
        self.family.update(found)
        return sorted(found)

    def signal(self, number: Signals) -> None:
        self.children()
        self._process.send_signal(number)

    def signal_all(self, number: Signals) -> None:
        """The parent first when it stops, last when it goes on: so that it sees nobody of its pool stop or go on."""
        pids = [self.pid, *self.children()]
        for pid in pids if number == SIGSTOP else reversed(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_gone(self, within: float = STOP_SECONDS) -> None:
        try:
            wait_until(lambda: not self.is_running, f"{self.name} ends", within=within)
        except AssertionError:
            self.signal(SIGUSR1)  # Celery logs the stack of every thread
            with suppress(AssertionError):
                wait_until(lambda: b"LOCAL VARIABLES" in self.log_file.read_bytes(), "it says where it stands")
            raise
        wait_until(lambda: not any(map(is_alive, self.family)), f"the pool of {self.name} ends", within=within)

    def end(self) -> None:
        """By force, if need be."""
        if self.is_running:
            self.signal_all(SIGCONT)
            self.signal(SIGKILL)
            self._process.wait()
        for pid in self.family:
            if is_alive(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, SIGKILL)


class Place:
    """Where one worker after another runs. Faults that need the worker hold the lock."""

    def __init__(self, fleet: Fleet, number: int, pool: str) -> None:
        self.number, self.pool = number, pool
        self.wire = fleet.site.wire(fleet.directory / f"wire{number}")
        self.lock = threading.Lock()
        self.worker: Worker | None = None
        self._fleet, self._count, self._ready_since = fleet, 0, float("inf")

    @property
    def mode(self) -> str:
        """Threads can't be ended, so theirs run on when the lease is lost."""
        return "terminate" if self.pool == "prefork" else "continue"

    def start(self, *, shift: float = 0.0) -> Worker:
        """`shift`: seconds by which its clock is ahead."""
        self._count += 1
        self._ready_since = float("inf")
        fleet = self._fleet
        mine = {**fleet.site.conf(self.wire), "limits_on_lost_lease": self.mode}
        options = ("-P", self.pool, "-c", "3" if self.pool == "prefork" else "5")
        self.worker = Worker(
            self.number,
            self._count,
            {**fleet.conf, **mine},
            fleet.directory,
            *options,
            environment={**fleet.environment, SHIFT: f"{shift}"},
        )
        fleet.ledger.note("begins", worker=self.worker.name, pool=self.pool, mode=self.mode, shift=shift)
        return self.worker

    def has_been_ready(self, seconds: float) -> bool:
        if self.worker is None or not self.worker.is_ready:
            self._ready_since = float("inf")
        else:
            self._ready_since = min(self._ready_since, time.monotonic())
        return time.monotonic() - self._ready_since >= seconds

    def calm_down(self) -> None:
        self._ready_since = float("inf")

    def wait_ready(self) -> None:
        """Or gone: then whoever looks after the fleet starts another."""
        worker = self.worker
        assert worker is not None
        wait_until(lambda: worker.is_ready or not worker.is_running, f"{worker.name} is ready", within=START_SECONDS)


class Fleet:
    """All of it, in one directory; a context manager that leaves nothing running."""

    def __init__(self, directory: Path, pools: tuple[str, ...], *, on: str = "redis", bug: str = "") -> None:
        self.directory = directory
        self.ledger = Ledger(directory / "ledger")
        self.site = SITES[on]()
        self.results = RedisServer()
        self._pools = pools
        self.environment = {BUG: bug}
        self.places: list[Place] = []
        self.conf: dict[str, Any] = {}
        self.ended: list[Worker] = []
        self._replacing = threading.Lock()

    def __enter__(self) -> Fleet:
        try:
            self.site.start()
            self.results.start()
            self.conf = {
                **self.site.conf(),
                "result_backend": f"redis+socket://{self.results.socket}",
                "ledger": str(self.ledger.path),
                "declared": OLD,
                "limits_lease": LEASE,
                "limits_place_ttl": FORGET,
                "limits_revoke_ttl": FORGET,
                "limits_grant_timeout": GRANT,
                "limits_store_timeout": 2.0,
            }
            self.places = [Place(self, number, pool) for number, pool in enumerate(self._pools, 1)]
            for place in self.places:
                place.start()
            for place in self.places:
                place.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for place in self.places:
            if place.wire is not None:
                place.wire.close()
        for worker in [place.worker for place in self.places if place.worker] + self.ended:
            worker.end()
        gc.collect()  # results that nobody asks for say goodbye to their backend while it is there
        for name, log in self.site.logs.items():
            with suppress(FileNotFoundError):  # one that was not even started
                shutil.copy(log, self.directory / f"{name}.log")
        self.site.close()
        self.results.close()

    def publisher(self) -> Any:
        """An app that reaches Redis directly, with the declarations of the day."""
        return build(self.conf)

    def limits(self) -> Limits:
        return Limits(self.publisher())

    def replace(self, place: Place, *, shift: float = 0.0) -> None:
        """A new worker, where the old one has ended or soon will."""
        with self._replacing:
            if place.worker is not None:
                self.ended = [worker for worker in self.ended if worker.is_running] + [place.worker]
        place.start(shift=shift)

    def behind_the_wire_of(self, place: Place) -> list[str]:
        """The names of the workers that reach Redis through it: its own, and those before it that have not ended."""
        own = [place.worker] if place.worker is not None else []
        before = [worker for worker in self.ended if worker.place == place.number and worker.is_running]
        return [worker.name for worker in (*own, *before)]


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A short name, since there are sockets in it."""
    return tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp")
