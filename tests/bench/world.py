"""One private server in one state, and the work that a bench has done on it.

Work goes call by call through `Store`, as a worker does it; only the set-up, which nobody measures, is sent in bulk.
"""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from hiredis import pack_command

from celery_limits.declare.chain import ConcurrencyLink, Link, RateLink
from celery_limits.store import Store
from celery_limits.store.outcomes import Admitted, Parked, decode
from celery_limits.store.script_runner import Arg, ScriptRunner
from celery_limits.store.scripts import Script
from tests.bench.rounds import say
from tests.redis_server import RedisServer
from tests.store.post import Post

__all__ = ["MESSAGE", "ONE", "QUEUE", "THREE", "THREE_SLOTS", "WORKER", "World", "delivery", "ticket"]

QUEUE = "celery"
WORKER = "worker1@host-7f9c6d"
MESSAGE = b"m" * 1024

# Never saturated by one client that releases what it admits.
ROOMY = 1000
ONE: tuple[Link, ...] = (ConcurrencyLink(key="tenant:42", limit=ROOMY),)
THREE: tuple[Link, ...] = (
    ConcurrencyLink(key="tenant:42", limit=ROOMY),
    ConcurrencyLink(key="warehouse:north", limit=ROOMY),
    RateLink(key="carrier-api", rate="100000/s", burst=1_000_000),
)
THREE_SLOTS: tuple[Link, ...] = (*THREE[:2], ConcurrencyLink(key="carrier-api:slots", limit=ROOMY))
# The same but for a first link of one slot: it is held, and the others wait there.
WAITED: tuple[Link, ...] = (ConcurrencyLink(key="busy", limit=1), *THREE[1:])

OTHERS_PER_WORKER = 100
BATCH = 1000

_EMPTY = Script("empty", "")
_deliveries = itertools.count(1)


def ticket() -> str:
    return f"{uuid.uuid4()}.{uuid.uuid4().hex[:8]}"


def delivery() -> str:
    return f"{WORKER}/{next(_deliveries)}"


class _Bulk(ScriptRunner):
    """Keeps calls back and sends them together; meanwhile each seems to have been a duplicate."""

    def start(self) -> _Bulk:
        self._packed: list[bytes] = []
        return self

    def __call__(self, script: Script, *args: Arg) -> list[Any]:
        self._packed.append(pack_command(("EVALSHA", script.sha, "1", self._prefix, *args)))  # type: ignore[arg-type]
        return [b"duplicate", b""]

    def send(self) -> set[type]:
        """The kinds of outcomes there were."""
        connection = self._connection()
        connection.send_packed_command(self._packed, check_health=False)
        replies = [connection.read_response(disable_decoding=True) for _ in self._packed]
        self._packed.clear()
        return {type(decode(reply)) for reply in replies}


class World:
    """A server of its own with `waiters` parked at the key "busy", and `others` keys that are in use elsewhere."""

    def __init__(self, binary: str, *, waiters: int = 0, others: int = 0) -> None:
        self.server = RedisServer(binary)
        self.waiters, self.others = waiters, others
        self.running: list[tuple[str, int]] = []
        self.line: deque[str] = deque()
        self.acked: list[str] = []

    def __enter__(self) -> World:
        self.server.__enter__()
        self.client = self.server.client()
        self.store = Store(self.server.client())
        try:
            self.store.beat(WORKER)
            self.pairs(1, ONE)()  # the scripts are loaded from here on
            self._occupy()
            self._fill_line()
        except BaseException:
            self.server.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.store.close()
        self.client.close()
        self.server.close()

    # -- set-up -----------------------------------------------------------------------------------------

    def _bulk(self, what: str, count: int, one: Callable[[Store, int], object], outcome: type) -> None:
        store = Store(self.client)
        store._call = bulk = _Bulk(self.client, store.prefix).start()
        for start in range(0, count, BATCH):
            if start % (20 * BATCH) == 0 and count > BATCH:
                say(f"  {what}: {start:,} of {count:,}")
            for i in range(start, min(start + BATCH, count)):
                one(store, i)
            outcomes = bulk.send()
            assert outcomes == {outcome}, f"{what}: {outcomes}"
        store.close()

    def _occupy(self) -> None:
        """Every other key has a holder, and a rate key beside it; there are as many workers as it takes."""
        for i in range(0, self.others, OTHERS_PER_WORKER):
            self.store.beat(f"other{i // OTHERS_PER_WORKER}@host")

        def occupy(store: Store, i: int) -> object:
            slot = ConcurrencyLink.model_construct(key=f"other:{i}", limit=ROOMY)
            rate = RateLink.model_construct(key=f"other-rate:{i}", rate="1/s", burst=10)
            worker = f"other{i // OTHERS_PER_WORKER}@host"
            return store.admit(ticket(), (slot, rate), worker, delivery=delivery(), queue=QUEUE)

        self._bulk("other keys", self.others, occupy, Admitted)

    def _fill_line(self) -> None:
        if not self.waiters:
            return
        self.holder = ticket()
        self.fence = self._admit(self.holder, WAITED)
        self.park()  # the long way through the script is loaded and run once

        def park(store: Store, _: int) -> object:
            return store.admit(self._next(), WAITED, WORKER, delivery=delivery(), queue=QUEUE, message=MESSAGE)

        self._bulk("waiters", self.waiters - 1, park, Parked)
        self.turns(1)()

    # -- work -------------------------------------------------------------------------------------------

    def _admit(self, name: str, links: tuple[Link, ...], message: bytes = MESSAGE, field: str = "") -> int:
        outcome = self.store.admit(name, links, WORKER, delivery=delivery(), queue=QUEUE, message=message, field=field)
        assert isinstance(outcome, Admitted), outcome
        return outcome.fence

    def _next(self) -> str:
        """Another that will wait."""
        self.line.append(ticket())
        return self.line[-1]

    def park(self) -> None:
        outcome = self.store.admit(self._next(), WAITED, WORKER, delivery=delivery(), queue=QUEUE, message=MESSAGE)
        assert isinstance(outcome, Parked), outcome

    def pairs(self, units: int, links: tuple[Link, ...], message: bytes = MESSAGE) -> Callable[[], None]:
        """Admitted and released, one after the other."""
        names, store = [ticket() for _ in range(units)], self.store

        def run() -> None:
            for name in names:
                store.release(name, WORKER, self._admit(name, links, message))

        return run

    def turns(self, units: int) -> Callable[[], None]:
        """On the waited key: released, which grants to the next; that one fetched, with the acknowledgement of the
        last, and admitted; a new one parked at the end."""
        store, post = self.store, Post(self.store)

        def run() -> None:
            for _ in range(units):
                store.release(self.holder, WORKER, self.fence)
                self.holder = self.line.popleft()
                (one,) = post.fetch(WORKER, 1, acked=self.acked, queue=QUEUE) or []
                self.fence = self._admit(self.holder, WAITED, b"", one.field)
                self.acked = [one.field]
                self.park()

        return run

    def empties(self, units: int) -> Callable[[], None]:
        """An EVALSHA of a script that does nothing, through the connection that the store uses."""
        call = self.store._call

        def run() -> None:
            for _ in range(units):
                call(_EMPTY)

        return run

    def counts(self, units: int) -> Callable[[], None]:
        """INCR and DECR."""
        execute: Any = self.client.execute_command

        def run() -> None:
            for _ in range(units):
                execute("INCR", "counter")
                execute("DECR", "counter")

        return run

    # -- work that is measured at the client's end ------------------------------------------------------

    def admits(self, units: int, links: tuple[Link, ...], message: bytes = MESSAGE) -> Callable[[], None]:
        """Only that; what was admitted is released before the next time."""
        store, running = self.store, self.running
        while running:
            name, fence = running.pop()
            store.release(name, WORKER, fence)
        calls = [(ticket(), delivery()) for _ in range(units)]

        def run() -> None:
            for name, arrival in calls:
                outcome: Any = store.admit(name, links, WORKER, delivery=arrival, queue=QUEUE, message=message)
                running.append((name, outcome.fence))

        return run

    def releases(self, units: int, links: tuple[Link, ...]) -> Callable[[], None]:
        release = self.store.release
        names = [ticket() for _ in range(units)]
        admitted = [(name, self._admit(name, links)) for name in names]

        def run() -> None:
            for name, fence in admitted:
                release(name, WORKER, fence)

        return run

    def pings(self, units: int) -> Callable[[], None]:
        """As a user of redis-py calls it."""
        ping = self.client.ping

        def run() -> None:
            for _ in range(units):
                ping()

        return run

    def prepared_pings(self, units: int) -> Callable[[], None]:
        """The same bytes with nothing around them: what no client can do for less."""
        connection = self.store._call._connection()
        packed = [pack_command(("PING",))]

        def run() -> None:
            for _ in range(units):
                connection.send_packed_command(packed, check_health=False)
                connection.read_response(disable_decoding=True)

        return run

    def used_memory(self) -> int:
        stats = self.client.info("memory")
        assert isinstance(stats, dict)
        return int(stats["used_memory"])
