"""The cast of the store tests: a clock that only the test moves, workers that keep what they were given.

`Worker.deliver` stands for a delivery that reaches a free pool place, `fetch` for what our own transport brings,
`finish` for a body that has ended.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from celery_limits.declare.chain import ConcurrencyLink, FloatingLink, Link, RateLink
from celery_limits.store import Store
from celery_limits.store.audit import leftovers as leftovers  # noqa: PLC0414  (tests take it from here)
from celery_limits.store.outcomes import Admission, Admitted, Claimed, Duplicate, Ended, Full, Lost, Parked, Release

from .post import Post, bare

SECOND = 1_000_000
_deliveries = itertools.count(1)
_tickets: dict[bytes, str] = {}
"""Whose message is whose: most of those in the tests do not say it themselves."""


class Clock:
    """Microseconds. Every look moves it by one, as on a server, where no two scripts run in the same one.

    `server` is the time that scripts are told. `now` is that of the namespace, which does not go back with it: it is
    what a script must make of the two numbers that the last beat or sweep has kept.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Of a namespace in which nothing has happened yet."""
        self.server = 1_700_000_000 * SECOND
        self.mark = self.ahead = 0

    def __call__(self) -> int:
        self.server += 1
        return self.server

    @property
    def now(self) -> int:
        return max(self.server + self.ahead, self.mark)

    @now.setter
    def now(self, time: int) -> None:
        self.server = time - self.ahead

    @property
    def next(self) -> int:
        """What the time is at the next look."""
        return max(self.server + 1 + self.ahead, self.mark)

    def keep(self) -> None:
        """A beat or a sweep has been called."""
        self.mark, self.ahead = self.now, self.now - self.server

    def pass_(self, seconds: float) -> None:
        self.server += round(seconds * SECOND)

    def step_back(self, seconds: float) -> None:
        self.pass_(-seconds)


def c(key: str, limit: int, **more: Any) -> ConcurrencyLink:
    return ConcurrencyLink(key=key, limit=limit, **more)


def r(key: str, rate: str, burst: int = 1, **more: Any) -> RateLink:
    return RateLink(key=key, rate=rate, burst=burst, **more)


def f(key: str, default: int, every: float = 30.0, **more: Any) -> FloatingLink:
    return FloatingLink(key=key, default=default, every=every, refresh="shop:size", **more)


class Fetched(NamedTuple):
    ticket: str
    message: bytes


class Worker:
    """A worker with a lease. `running` maps its tickets to their fences, `fields` to the deliveries that it fetched."""

    def __init__(self, store: Store, name: str = "w1", queue: str = "q") -> None:
        self.store, self.name, self.queue = store, name, queue
        self.running: dict[str, int] = {}
        self.fields: dict[str, str] = {}
        store.beat(name)

    @property
    def post(self) -> Post:
        return Post(self.store)

    def deliver(self, ticket: str, *links: Link, message: bytes | None = None, **more: Any) -> Admission:
        """Of what it has fetched, where it has; `field=""` says that it is another delivery."""
        more.setdefault("queue", self.queue)
        more.setdefault("delivery", f"{self.name}/{next(_deliveries)}")
        more.setdefault("field", self.fields.get(ticket, ""))
        body = f"message of {ticket}".encode() if message is None else message
        _tickets[bare(body)] = ticket
        outcome = self.store.admit(ticket, links, self.name, message=b"" if more["field"] else body, **more)
        if isinstance(outcome, Admitted):
            self.running[ticket] = outcome.fence
        if more["field"] and not isinstance(outcome, (Full, Lost)):
            self._answered(ticket, outcome, late=more.get("late", False))
        return outcome

    def _answered(self, ticket: str, outcome: Admission, *, late: bool) -> None:
        """Acknowledged when it begins, or in the end; what the store has, has been."""
        if isinstance(outcome, (Parked, Duplicate)):
            del self.fields[ticket]
        elif not (isinstance(outcome, Admitted) and late):
            self.post.acknowledge(self.name, [self.fields.pop(ticket)])

    def fetch(self, count: int = 1, queue: str = "") -> list[Fetched]:
        """From our own transport: what was granted, and what was given back."""
        found = []
        for one in self.post.fetch(self.name, count, queue=queue or self.queue) or ():
            stored = unacked_by(self.store, self.name)[one.field]
            ticket = stored.split(b"\n")[2].decode() or _tickets[bare(one.text)]
            self.fields[ticket] = one.field
            found.append(Fetched(ticket, one.text))
        return found

    def pick_up(self, *links: Link, count: int = 10, **more: Any) -> list[str]:
        """Fetches, and admits what it has fetched and not begun; the tickets that run now."""
        if self.queue:
            self.fetch(count)
        waiting = [ticket for ticket in self.fields if ticket not in self.running]
        return [ticket for ticket in waiting if isinstance(self.deliver(ticket, *links, **more), Admitted)]

    def finish(self, ticket: str, *, back: bool = False) -> Release:
        outcome = self.store.release(ticket, self.name, self.running.pop(ticket), back=back)
        if field := self.fields.pop(ticket, ""):
            if back:
                self.post.requeue(self.name, [field], "end")
            else:
                self.post.acknowledge(self.name, [field])
        return outcome

    def through(self, store: Store) -> Worker:
        """The same worker, with the same ledger, calling through another store, such as a gated one."""
        twin = copy.copy(self)
        twin.store = store
        return twin


def raw_client(store: Store) -> Any:
    """redis-py types each answer as every kind of answer."""
    return store.client


def holders(store: Store, key: str) -> set[str]:
    """Straight from the hash, so that a test never believes the verb it tests."""
    return {ticket.decode() for ticket in raw_client(store).hkeys(f"{store.prefix}hold:{key}")}


def weights(store: Store, key: str) -> dict[str, int]:
    """The holders of a key, and how much of it each has."""
    held = raw_client(store).hgetall(f"{store.prefix}hold:{key}")
    return {ticket.decode(): int(weight) for ticket, weight in held.items()}


def used(store: Store, key: str) -> int:
    """How much of a key its holders have."""
    return sum(weights(store, key).values())


def unacked_by(store: Store, worker: str) -> dict[str, bytes]:
    """What a worker has fetched and not acknowledged: field -> queue, list, ticket and message, a line each."""
    members = raw_client(store).zrange(f"{store.prefix}unacked:{worker}", 0, -1)
    parted = (member.partition(b"\n") for member in members)
    return {field.decode(): rest for field, _, rest in parted}


def drain_time(store: Store, clock: Clock) -> None:
    """Lets everything that was to be forgotten be forgotten."""
    for _ in range(4):
        clock.pass_(10 * 86_400)
        while store.sweep().after.more:
            pass


ANY = ConcurrencyLink(key="any", limit=1)
"""The chain of a message whose ticket the store knows does not matter: the one in its record is walked."""


def names_in(store: Store, pattern: str) -> list[str]:
    """Keys of the namespace that match, without its prefix."""
    found = raw_client(store).scan_iter(match=f"{store.prefix}{pattern}", count=1000)
    return sorted(raw.decode()[len(store.prefix) :] for raw in found)


def line_at(store: Store, key: str) -> list[str]:
    """Who waits at a key, first to last, straight from its lines."""
    client, found = raw_client(store), []
    for name in names_in(store, f"line:*:{key}"):
        found += [(order, t.decode()) for t, order in client.zrange(store.prefix + name, 0, -1, withscores=True)]
    return [ticket for _, ticket in sorted(found)]


def ready_in(store: Store, queue: str = "q") -> list[str]:
    """The granted tickets at the front of a queue."""
    return [ticket.decode() for ticket in raw_client(store).zrange(f"{store.prefix}ready:{queue}", 0, -1)]


def queued_in(store: Store, queue: str = "q") -> list[str]:
    """The tickets of the messages in a queue's own list, from its front."""
    return [_tickets[bare(text)] for text in reversed(raw_client(store).lrange(queue, 0, -1))]


# A ticket's record, field by field: see include/record.lua.
HEAD = (
    *("state", "worker", "fence", "sends", "arrival", "at", "reached", "kept", "reason"),
    *("rank", "delivery", "queue", "expires", "since", "late", "cut", "break"),
)
LINK = ("kind", "key", "size", "weight", "extra")


def record_of(store: Store, ticket: str) -> list[bytes]:
    task_id, _, nonce = ticket.rpartition(".")
    record = raw_client(store).hget(f"{store.prefix}task:{task_id}", nonce)
    return [] if record is None else record.split(b"\t")


def field_of(store: Store, ticket: str, name: str) -> str:
    return record_of(store, ticket)[HEAD.index(name)].decode()


def settle(store: Store, entries: Iterable[str | Claimed | Ended]) -> None:
    """Settles outbox entries; of one that is only named, as whoever claimed it last."""
    store.settle([_last_claim(store, entry) if isinstance(entry, str) else entry for entry in entries])


def _last_claim(store: Store, ticket: str) -> Ended:
    fence = record_of(store, ticket)[HEAD.index("fence") :][:1]
    return Ended(ticket, int(fence[0]) if fence and fence[0].isdigit() else 0, b"")


def damage(store: Store, ticket: str, place: int, value: bytes) -> None:
    """Overwrites one field of a record, as no script would."""
    fields = record_of(store, ticket)
    fields[place] = value
    overwrite(store, ticket, b"\t".join(fields))


def overwrite(store: Store, ticket: str, record: bytes) -> None:
    task_id, _, nonce = ticket.rpartition(".")
    raw_client(store).hset(f"{store.prefix}task:{task_id}", nonce, record)


def sweep_all(store: Store, worker: str = "") -> list[str]:
    """Sweeps until nothing is left to do; the workers that were found dead."""
    dead: list[str] = []
    while True:
        swept = store.sweep(worker)
        dead += swept.dead
        if not swept.after.more:
            return dead


def live_on(clock: Clock, seconds: float, *workers: Worker) -> list[str]:
    """Time passes; these workers renew their leases all the while and sweep. The workers that were found dead."""
    dead: list[str] = []
    step = workers[0].store.policy.lease / 4
    while seconds > 0:
        clock.pass_(min(step, seconds))
        seconds -= step
        for worker in workers:
            worker.store.beat(worker.name)
        dead += sweep_all(workers[0].store)
    return dead


def wind_up(clock: Clock, *workers: Worker) -> list[str]:
    """Bodies end, grants are picked up, ends are told, until nobody waits; then all leave. Who started, in turn."""
    store, started, idle = workers[0].store, list[str](), 0
    while (moved := _round(store, *workers)) or names_in(store, "line:*"):
        started += moved
        idle = 0 if moved else idle + 1
        assert idle < 100, f"they wait for ever: {names_in(store, 'line:*')}"
        if not moved:
            clock.now = max(clock.now, store.sweep().after.next_alarm or 0)  # a rate comes due
            for worker in workers:
                store.beat(worker.name)
            sweep_all(store)
    for worker in workers:
        while store.leave(worker.name).more:
            pass
    return started


def _round(store: Store, *workers: Worker) -> list[str]:
    started = []
    for worker in workers:
        for ticket in list(worker.running):
            worker.finish(ticket)
        started += worker.pick_up(ANY, count=100)
    started += publish(store, workers[0])
    return started


def publish(store: Store, worker: Worker, count: int = 100) -> list[str]:
    """The outbox as a healthy worker works it off, with a broker that delivers at once; who started."""
    started = []
    for entry in store.claim(count):
        if entry.reason is None and isinstance(worker.deliver(entry.ticket, ANY, queue=""), Admitted):
            started.append(entry.ticket)
        store.settle([entry])
    return started
