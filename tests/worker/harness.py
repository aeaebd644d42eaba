"""Real `celery worker` processes for tests: started, watched and ended by process id, nothing of them left behind.

`Workers` keeps one worker of a kind for as many tests as can share it. `Worker` is one process and its children.
A `Scene` is one test's view: publish, wait for what the ledger or the store says, open latches.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from celery_limits import Limits
from celery_limits.store.keys import NOTE_SETTINGS, SETTINGS
from celery_limits.transport.transports import client_of
from tests.redis_server import RedisServer
from tests.waiting import DEADLINE, wait_until
from tests.worker.proj import CONF, build
from tests.worker.stage import Entry, Stage, is_alive

__all__ = ["LEASE", "MINGLES", "Scene", "Sent", "Worker", "Workers", "celery_program", "leftovers"]

OURS = os.environ.get("LIMITS_TEST_TRANSPORT", "")
"""`limits+` to run the tests on our own transport."""

LEASE = 300.0
"""Of shared workers. Long, so that what happens soon after an end was not brought about by a beat."""
MINGLES = "mingles"
"""In place of an option: the worker asks the others who they are when it starts, as workers do by default."""
ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0
STOP_SECONDS = 30.0


def environment(conf: dict[str, Any]) -> dict[str, str]:
    return {**os.environ, CONF: json.dumps(conf), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def celery_program(conf: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `celery` with these arguments to its end."""
    command = [sys.executable, "-m", "celery", "-A", "tests.worker.proj", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment(conf), capture_output=True, text=True, check=False, timeout=START_SECONDS
    )


class Worker:
    """One worker process. `conf` is JSON-able; options are those of `celery worker`."""

    def __init__(self, conf: dict[str, Any], directory: Path, name: str, *options: str) -> None:
        self.name = f"{name}@test"
        self.namespace = conf.get("limits_namespace", "")
        self.log_file = directory / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.worker.proj", "worker", "-n", self.name, "-l", "info"]
        alone = () if MINGLES in options else ("--without-mingle",)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *alone, "--without-gossip", *(option for option in options if option != MINGLES)],
                cwd=ROOT,
                env=environment(conf),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.family: set[int] = {self._process.pid}

    def __repr__(self) -> str:
        return f"<Worker {self.name} pid={self._process.pid}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self) -> Worker:
        def ready() -> bool:
            if not self.is_running:
                raise AssertionError(f"{self!r} ended by itself:\n{self.log[-3000:]}")
            return f"{self.name} ready" in self.log

        wait_until(ready, f"{self!r} is ready", within=START_SECONDS)
        return self

    def wait_for_log(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.log.count(text) >= times, f"{self.name} logs {text!r}")

    def children(self) -> set[int]:
        """The processes of its pool, as they are now."""
        try:
            found = {child.pid for child in psutil.Process(self.pid).children(recursive=True)}
        except psutil.NoSuchProcess:
            found = set()
        self.family |= found
        return found

    def signal(self, number: signal.Signals) -> None:
        self.children()
        self._process.send_signal(number)

    def wait_gone(self, within: float = STOP_SECONDS) -> int:
        """Its exit code, when it and every process of its pool have ended. One that does not end says where it is."""
        try:
            wait_until(lambda: not self.is_running, f"{self!r} ends", within=within)
        except AssertionError:
            self._process.send_signal(signal.SIGUSR1)  # Celery logs the stack of every thread
            with suppress(AssertionError):
                self.wait_for_log("LOCAL VARIABLES")
            raise
        wait_until(lambda: not any(map(is_alive, self.family)), f"the pool of {self!r} ends", within=within)
        return self._process.wait()

    def stop(self) -> None:
        """Warmly if it can, else by force; afterwards no process is left."""
        if self.is_running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        try:
            self.wait_gone(within=STOP_SECONDS)
        except AssertionError:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to the worker alone, then to whatever of its pool outlives it by more than a moment."""
        if self.is_running:
            self.signal(signal.SIGKILL)
        self._process.wait()
        for pid in self.family:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, self.family)), f"the pool of {self!r} ends")


class Workers:
    """The workers of a session. `shared` ones serve many tests; a test that ends one launches its own."""

    def __init__(self, conf: dict[str, Any], directory: Path) -> None:
        self.conf, self.directory = conf, directory
        self._shared: dict[str, Worker] = {}
        self._own: list[Worker] = []
        self._seen: list[Worker] = []
        self._count = 0

    def launch(self, conf: dict[str, Any], pool: str, *options: str) -> Worker:
        """A worker for one test alone; see `Scene.start`."""
        self._count += 1
        worker = Worker(conf, self.directory, f"{pool}{self._count}", "-P", pool, *options)
        self._own.append(worker)
        self._seen.append(worker)
        return worker

    def shared(self, pool: str) -> Worker:
        """The one that serves every test of its pool, on a queue that is called like it."""
        worker = self._shared.get(pool)
        if worker is None or not worker.is_running:
            self._count += 1
            kind = ("-P", pool, "-c", "4", "-Q", pool)
            worker = Worker(self.conf, self.directory, f"{pool}{self._count}", *kind)
            self._shared[pool] = worker
        self._seen.append(worker)
        return worker.wait_ready()

    def seen(self) -> list[Worker]:
        """Those that this test had to do with, for its report; they may have ended."""
        return list(self._seen)

    def forget(self) -> None:
        """A new test begins."""
        self._seen.clear()

    def stop_own(self) -> None:
        """Ends what this test started. One with a namespace of its own is killed: nobody is there to mind how it goes,
        and a worker takes seconds to leave."""
        for worker in self._own:
            if worker.namespace != self.conf.get("limits_namespace", ""):
                worker.kill()
        _stop_all(worker for worker in self._own if worker.is_running)
        self._own.clear()

    def stop(self) -> None:
        self.stop_own()
        _stop_all(self._shared.values())
        self._shared.clear()


def _stop_all(found: Iterable[Worker]) -> None:
    workers = list(found)
    for worker in workers:
        if worker.is_running:
            worker.signal(signal.SIGCONT)
            worker.signal(signal.SIGTERM)
    for worker in workers:
        worker.stop()


def leftovers(limits: Limits) -> list[str]:
    """What is in the store beyond settings, leases of live workers, and what is remembered of revokes and trails."""
    store = limits.store
    client: Any = store.client
    left = []
    for raw in client.scan_iter(match=f"{store.prefix}*", count=1000):
        name = raw.decode()[len(store.prefix) :]
        kind = name.partition(":")[0]
        if kind == "note":
            fields = (found.decode() for found in client.hkeys(raw))
            left += [f"{name} {found}" for found in fields if not NOTE_SETTINGS.fullmatch(found)]
        elif kind == "worker":
            left += [f"{name} {member.decode()}" for member in client.zrange(raw, 0, -1) if member != b"!"]
        elif kind == "alarms":
            members = (member.decode() for member in client.zrange(raw, 0, -1))
            left += [f"alarm {member}" for member in members if not member.startswith("cancelled|")]
        elif kind not in SETTINGS | {
            "leases",
            "places",
            "pulse",
            "cancelled",
            "remembered",
            "rates",
            "successors",
            "trails",
        }:
            left.append(name)
    return left


class Sent:
    """A published call. Reads its result from the backend when asked, and keeps no connection for it."""

    def __init__(self, app: Any, task_id: str) -> None:
        self.id, self._app = task_id, app

    @property
    def meta(self) -> Any:
        return self._app.backend.get_task_meta(self.id, cache=False)

    @property
    def state(self) -> str:
        return str(self.meta["status"])

    def wait(self, *expected: str, within: float = 20.0) -> Any:
        """Its result, once it is in one of these states."""
        wait_until(lambda: self.state in expected, f"{self.id} is {expected}, not {self.state}", within=within)
        return self.meta["result"]

    def get(self, within: float = 20.0) -> Any:
        return self.wait("SUCCESS", within=within)


class Scene:
    """One test: its own key and stage, and the queue of the worker that it talks to."""

    def __init__(self, app: Any, workers: Workers, directory: Path, tag: str) -> None:
        self.app, self.key, self.conf = app, tag, workers.conf
        self.limits = Limits(app)
        self.queue = tag
        self.sizes: dict[str, int] = {}  # keys that allow more than one body at once
        self._workers = workers
        self._brokers: dict[str, Any] = {}
        directory = directory / tag
        directory.mkdir()
        self.stage = Stage(directory)

    def share(self, pool: str) -> str:
        """Publishes to the worker that other tests use as well."""
        self._workers.shared(pool)
        self.queue = pool
        return pool

    def configure(self, **conf: Any) -> None:
        """Another app, on a namespace of its own, for tests that end workers or need other settings."""
        mine = {"limits_namespace": self.key, "task_default_queue": self.key, "limits_revoke_ttl": 2.0}
        self.conf = {**self._workers.conf, **mine, **conf}
        self.app = build(self.conf)
        self.limits = Limits(self.app)

    def launch(self, pool: str, *options: str, concurrency: int = 4, **conf: Any) -> Worker:
        """A worker of this test alone, on a queue of its own; it may not be ready yet."""
        kind = ("-c", str(concurrency), "-Q", self.queue, *options)
        return self._workers.launch({**self.conf, **conf}, pool, *kind)

    def start(self, pool: str, *options: str, concurrency: int = 4, **conf: Any) -> Worker:
        return self.launch(pool, *options, concurrency=concurrency, **conf).wait_ready()

    def send(self, task: str, name: str, how: str = "return", *, key: str = "", **options: Any) -> Sent:
        """Publishes one call."""
        kwargs = {"key": self.key + (f":{key}" if key else ""), "name": name}
        if task != "plain":
            kwargs["how"] = how
        result = self.app.tasks[task].apply_async(kwargs=kwargs, **{"queue": self.queue, **options})
        return Sent(self.app, result.id)

    def wait_started(self, name: str, times: int = 1, *, within: float = 20.0) -> Entry:
        """The ledger's line for the latest start of this body."""
        wait_until(lambda: len(self.stage.starts(name)) >= times, f"{name!r} starts ({times})", within=within)
        return self.stage.starts(name)[times - 1]

    def wait_ended(self, name: str, times: int = 1) -> Entry:
        wait_until(lambda: len(self.stage.ends(name)) >= times, f"{name!r} ends ({times})")
        return self.stage.ends(name)[times - 1]

    def wait_parked(self, count: int = 1, key: str = "") -> None:
        """Until the store says that so many wait at the key."""
        name = self.key + (f":{key}" if key else "")
        wait_until(lambda: self.limits.status(name).waiting == count, f"{count} wait at {name!r}")

    def wait_quiet(self) -> None:
        """Until nothing is in the store but settings, nor in the broker; the audit finds nothing either."""
        try:
            wait_until(lambda: not self.left(), "all is quiet")
        except AssertionError:
            raise AssertionError(f"left behind: {self.left()}") from None
        assert self.limits.audit() == []

    def redeliver(self) -> None:
        """What kombu does when the visibility timeout has passed of what a lost connection or a dead worker had."""
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            channel.visibility_timeout = 0
            channel.qos.restore_visible(num=100)

    def forget_revoked(self, task_id: str) -> None:
        """What time would do, and a test need not wait for."""
        store = self.limits.store
        client: Any = store.client
        client.zrem(f"{store.prefix}remembered", task_id)
        client.delete(f"{store.prefix}cancelled:{task_id}")

    def left(self) -> list[str]:
        """What is left in the store, and deliveries that nobody acknowledged."""
        return [*leftovers(self.limits), *self.unacked()]

    def unacked(self) -> list[str]:
        """Deliveries of a Redis broker that nobody acknowledged, whatever Redis has the store."""
        url = self.app.conf.broker_url
        if url not in self._brokers:
            self._brokers[url] = client_of(self.app.connection_for_read(), DEADLINE)
        client = self._brokers[url]
        found = client.hgetall("unacked") if client is not None else {}
        return [f"unacked {tag!r}: {message!r:.1000}" for tag, message in found.items()]


def app_on(server: RedisServer, stages: Path) -> tuple[Any, dict[str, Any]]:
    """An app on this server, broker and store in one database and results in another; and its configuration."""
    conf = {
        "broker_url": f"{OURS}redis+socket://{server.socket}",
        "result_backend": f"redis+socket://{server.socket}?virtual_host=1",
        "stage": str(stages),
        "limits_lease": LEASE,
    }
    return build(conf), conf
