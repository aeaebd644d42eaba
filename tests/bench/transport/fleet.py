"""What is measured on: a private Redis, a publisher and workers, all in processes of their own.

A fleet is one variant. Its workers are stopped (SIGSTOP) while its queue is filled and let go all at once, so that a
drain is measured from a full queue and publishing is measured alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.bench.transport.app import CONF, OPEN
from tests.bench.transport.ledger import Entry, Ledger
from tests.bench.transport.profiled import OUTPUT
from tests.redis_server import RedisServer
from tests.waiting import wait_until

__all__ = ["Drain", "Fleet", "Plan", "Sent"]

ROOT = Path(__file__).parents[3]
QUEUE = "celery"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
DRAIN_SECONDS = 180.0
_PAUSE = 0.02
"""Between looks at the ledger. Seldom, since the machine has better things to do."""
_LEASE = 600
"""So long that no stopped worker is taken for dead."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a fleet is made. `scheme` is the broker's, such as `redis` or `limits+redis`."""

    scheme: str
    limits: bool
    pool: str
    concurrency: int
    workers: int = 1
    conf: dict[str, Any] = field(default_factory=dict)
    profile: Path | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """Seconds for all, and of the publisher's processor; `began` is a moment on the clock of the ledger."""

    seconds: float
    cpu: float
    began: int


@dataclass(frozen=True, slots=True)
class Drain:
    """What ran, in the order of starts, and the processor seconds of the workers and their pools meanwhile."""

    entries: list[Entry]
    cpu: float

    @property
    def seconds(self) -> float:
        """From the first body's start to the last one's."""
        return (self.entries[-1].start - self.entries[0].start) / 1e9

    @property
    def rate(self) -> float:
        return (len(self.entries) - 1) / self.seconds


class Fleet:
    """A context manager. Whatever happens, no process of it is left afterwards."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._stack = ExitStack()
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Fleet:
        with ExitStack() as stack:
            self._stack = stack
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="limits-bench-")))
            self.port = _free_port()
            self.server = stack.enter_context(RedisServer(port=self.port, bind="127.0.0.1"))
            self.redis = stack.enter_context(self.server.client())
            self.ledger = Ledger(self.directory / "ledger")
            self.given = {
                "broker": f"{self.plan.scheme}://127.0.0.1:{self.port}/0",
                "ledger": str(self.ledger.directory),
                "limits": self.plan.limits,
                "conf": {**({"limits_lease": _LEASE} if self.plan.limits else {}), **self.plan.conf},
            }
            self._publisher = self._popen_publisher()
            stack.callback(self._end_publisher)
            for number in range(self.plan.workers):
                self._start_worker(number)
            self._wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, task: str, *args: Any, times: int = 1, keys: int = 1) -> Sent:
        return Sent(**self._order(task=task, args=args, times=times, keys=keys))

    def resize(self, key: str, size: int) -> None:
        self._order(resize=key, size=size)

    def waiting(self, key: str) -> int:
        return int(self._order(waiting=key)["waiting"])

    def open(self, door: str) -> None:
        """Lets a task that holds go on."""
        (self.ledger.directory / f"{door}.{OPEN}").touch()

    def _order(self, **order: Any) -> dict[str, Any]:
        assert self._publisher.stdin is not None
        assert self._publisher.stdout is not None
        self._publisher.stdin.write(json.dumps(order).encode() + b"\n")
        self._publisher.stdin.flush()
        answer = self._publisher.stdout.readline()
        if not answer:
            raise AssertionError(f"the publisher ended:\n{self._log('publisher')}")
        return json.loads(answer)  # type: ignore[no-any-return]

    # -- draining -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Holds the workers where they are; children of a pool have nothing to do then."""
        for worker in self._workers:
            worker.send_signal(signal.SIGSTOP)

    def go(self) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGCONT)

    def drain(self, count: int) -> Drain:
        """Lets the workers go and waits until `count` bodies ran."""
        before = self._cpu()
        self.go()
        self.wait_for(count)
        return Drain(self.ledger.turn(), self._cpu() - before)

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while (ran := self.ledger.count()) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{ran} of {count} bodies ran in {DRAIN_SECONDS:g} s:\n{self._log('worker0')}")
            self._check_alive()
            time.sleep(_PAUSE)

    def filled(self, task: str, *args: Any, times: int, keys: int = 1) -> tuple[Sent, Drain]:
        """One turn: fill the queue, then drain it."""
        self.stop()
        sent = self.publish(task, *args, times=times, keys=keys)
        return sent, self.drain(times)

    def queued(self) -> int:
        return int(self.redis.llen(QUEUE))

    # -- processes ----------------------------------------------------------------------------------------------------

    def _environment(self, profile: str) -> dict[str, str]:
        given = {**os.environ, CONF: json.dumps(self.given), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        if self.plan.profile is not None:
            given[OUTPUT] = str(self.plan.profile / profile)
        return given

    def _popen_publisher(self) -> subprocess.Popen[bytes]:
        with (self.directory / "publisher.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.bench.transport.publisher"],
                cwd=ROOT,
                env=self._environment("publisher"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def _end_publisher(self) -> None:
        assert self._publisher.stdin is not None
        self._publisher.stdin.close()
        try:
            self._publisher.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._publisher.kill()

    def _start_worker(self, number: int) -> None:
        module = "celery" if self.plan.profile is None else "tests.bench.transport.profiled"
        command = [sys.executable, "-m", module, "-A", "tests.bench.transport.app", "worker", "-l", "warning"]
        command += ["-n", f"worker{number}@bench", "-P", self.plan.pool, "-c", str(self.plan.concurrency)]
        command += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
        with (self.directory / f"worker{number}.log").open("ab") as log:
            worker = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._environment(f"worker{number}"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._workers.append(worker)
        self._stack.callback(self._end_worker, worker)

    def _wait_ready(self) -> None:
        """When all have said so, and have run a body with every place of their pools."""

        def ready() -> bool:
            self._check_alive()
            return len(list(self.ledger.directory.glob("*.ready"))) == len(self._workers)

        wait_until(ready, "the workers are ready", within=START_SECONDS)
        self.filled("noop", "ready", times=8 * self.plan.workers * self.plan.concurrency)

    def _check_alive(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker.poll() is not None:
                raise AssertionError(f"worker {number} ended by itself:\n{self._log(f'worker{number}')}")

    def _end_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """Warmly, so that a profile is written; else by force, with its pool."""
        pool = psutil.Process(worker.pid).children(recursive=True) if worker.poll() is None else []
        worker.send_signal(signal.SIGCONT)
        worker.terminate()
        try:
            worker.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        for child in pool:
            if child.is_running():
                child.kill()

    def _cpu(self) -> float:
        parents = [psutil.Process(worker.pid) for worker in self._workers]
        family = [process for parent in parents for process in (parent, *parent.children(recursive=True))]
        return float(sum(sum(process.cpu_times()[:2]) for process in family))

    def _log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")[-4000:]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
