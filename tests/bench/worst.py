"""The slowest call of each script in the worst cases that are known: input that once kept the server for seconds.

What is measured is the CPU time that the server's main thread spends on one call, the longest of all calls that a case
makes. Redis does nothing else meanwhile, so on a quiet machine this is how long everybody waits. (The time by the clock
would also have what others do on a busy machine, and of hundreds of calls one is always interrupted.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from celery_limits.declare.chain import ConcurrencyLink, Link
from celery_limits.store import Policy, Store
from celery_limits.store.audit import audit
from tests.bench.report import Row
from tests.bench.rounds import Spread, say
from tests.redis_server import RedisServer
from tests.store.model_message import Message
from tests.store.post import QUEUE, Post, list_of

__all__ = ["WORST_GOAL", "worst_cases"]

WORST_GOAL = 20.0
"""Milliseconds for which one script may keep the server."""

WORKER = "worker1@host-7f9c6d"
SECTION = "Server time of the slowest script, in the worst cases known"


def slot(key: str, limit: int = 10**9, **more: Any) -> ConcurrencyLink:
    return ConcurrencyLink(key=key, limit=limit, **more)


def chain(first: Link, n: int, **more: Any) -> tuple[Link, ...]:
    return (first, *(slot(f"k{i:02}", **more) for i in range(n)))


@dataclass
class Case:
    """A store on a server of its own, whose time stands still unless the case moves it."""

    store: Store
    client: Any
    slowest: float = 0.0
    now: int = 1_700_000_000_000_000

    def __post_init__(self) -> None:
        self.store._clock = lambda: self.now
        self.post = Post(self.store)
        self._deliveries = itertools.count(1)
        self.store.beat(WORKER)

    def timed(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """The call, whose time on the server counts."""
        before = self._spent()
        answer = call(*args, **more)
        self.slowest = max(self.slowest, self._spent() - before)
        return answer

    def _spent(self) -> float:
        cpu = self.client.info("cpu")
        return float(cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]) * 1e3

    def park(self, ticket: str, *links: Link, message: bytes = b"m", **more: Any) -> Any:
        name = f"{WORKER}/{next(self._deliveries)}"
        return self.store.admit(ticket, links, WORKER, delivery=name, message=message, queue=QUEUE, **more)

    def sweep(self) -> None:
        while self.timed(self.store.sweep, WORKER).after.more:
            pass

    def pass_time(self, seconds: float) -> None:
        self.now += round(seconds * 1e6)


def heavy_chains(case: Case, scale: int) -> None:
    case.store.pause("first")
    for i in range(64):
        case.park(f"t{i}.n", *chain(slot("first"), 14, weight=10_000))
    case.timed(case.store.resume, "first")
    case.sweep()


def long_line(case: Case, scale: int) -> None:
    case.store.pause("first")
    for i in range(scale // 5):
        case.park(f"t{i}.n", slot("first"))
    case.timed(case.store.resume, "first")
    case.sweep()


def many_sizes(case: Case, scale: int) -> None:
    held = case.park("holds.n", slot("k", 1))
    for i in range(2000):
        case.timed(case.park, f"t{i}.n", slot("k", 2 + i))
    case.timed(case.store.status, "k")
    case.timed(case.store.release, "holds.n", WORKER, held.fence)
    case.sweep()


def one_task_id(case: Case, scale: int) -> None:
    case.park("holds.n", slot("k", 1))
    for i in range(scale // 5):
        case.park(f"many.n{i}", slot("k", 1))
    case.timed(case.store.explain, "many")
    cursor, first = 0, True
    while first or cursor:
        cursor, first = case.timed(case.store.cancel, "many", cursor=cursor).cursor, False


def dead_worker(case: Case, scale: int) -> None:
    case.store.beat("dies")
    text = b"m" * 1000
    for _ in range(scale // 100):
        case.client.lpush(QUEUE, *[text] * 100)
        case.timed(case.post.fetch, "dies", 100)
    for _ in range(8):
        case.pass_time(case.store.policy.lease / 4)
        case.store.beat(WORKER)
        case.sweep()
    assert not case.client.keys("*unacked:dies"), "it is not reclaimed"


def header_like_text(case: Case, scale: int) -> None:
    case.park("holds.n", slot("k", 1))
    case.park("waits.n", slot("k", 1))
    body = Message("t.n", (slot("k", 1),), 0, False, QUEUE, None, None).body
    poison = b'"limits": {"v": 2, "ticket": "x.1", "links": [{"kind": "concurrency", "key": "k", '
    text = body.replace(b'"headers": {', b'"headers": {"odd": "' + poison * (571_000 // len(poison)) + b'", ')
    case.client.lpush(list_of(0), text)
    case.timed(case.post.fetch, WORKER, 1, flags="rs")


def large_messages(case: Case, scale: int) -> None:
    for _ in range(100):
        case.client.lpush(QUEUE, b"m" * 1_000_000)
    for _ in range(30):
        case.timed(case.post.fetch, WORKER, 100)
    while case.timed(case.store.leave, WORKER).more:
        pass


def all_expire_at_once(case: Case, scale: int) -> None:
    case.park("holds.n", slot("last", 1))
    for i in range(scale // 20):
        case.park(f"t{i}.n", *chain(slot("first"), 14), slot("last", 1), expires=case.now + 10**6)
    case.pass_time(2)
    case.sweep()


def large_ends(case: Case, scale: int) -> None:
    case.park("holds.n", slot("k", 1))
    for i in range(40):
        case.park(f"large.n{i}", slot("k", 1), message=b"m" * 1_000_000)
    cursor, first = 0, True
    while first or cursor:
        cursor, first = case.timed(case.store.cancel, "large", cursor=cursor).cursor, False
    case.pass_time(60)
    while claimed := case.timed(case.store.claim, 20):
        case.timed(case.store.settle, claimed)


def audited(case: Case, scale: int) -> None:
    case.park("holds.n", slot("last", 1))
    for i in range(scale // 50):
        case.park(f"t{i}.n", *chain(slot("first"), 14, weight=2), slot("last", 1))
    inspect = case.store._run
    case.store._run = lambda verb, *args: case.timed(inspect, verb, *args)  # type: ignore[method-assign]
    assert audit(case.store) == []


CASES: tuple[tuple[str, Callable[[Case, int], None]], ...] = (
    ("resume 64 waiters, each with 15 links of weight 10,000", heavy_chains),
    ("resume {fifth:,} waiters of one key", long_line),
    ("2,000 different sizes wait at one key: park, status, release", many_sizes),
    ("cancel {fifth:,} tickets of one task id", one_task_id),
    ("a worker dies with {scale:,} unacknowledged messages", dead_worker),
    ("fetch a message of 571 kB that repeats the start of a header", header_like_text),
    ("fetch and restore 100 messages of 1 MB", large_messages),
    ("cancel 40 tickets with messages of 1 MB, and claim their ends", large_ends),
    ("{twentieth:,} tickets that hold 15 keys each expire at once", all_expire_at_once),
    ("audit {fiftieth:,} tickets that hold 15 keys each", audited),
)


def worst_cases(binary: str, scale: int) -> Iterator[Row]:
    sizes = {"scale": scale, "fifth": scale // 5, "twentieth": scale // 20, "fiftieth": scale // 50}
    for name, play in CASES:
        text = name.format(**sizes)
        say(f"  worst cases: {text}")
        with RedisServer(binary) as server:
            client = server.client()
            case = Case(Store(server.client(), policy=Policy(lease=30)), client)
            play(case, scale)
            case.store.close()
            client.close()
        yield Row(SECTION, text, Spread(case.slowest, case.slowest, case.slowest), "ms", WORST_GOAL)
