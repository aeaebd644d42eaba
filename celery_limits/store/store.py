"""The store: the state of all limits of one namespace, and every verb that changes or reads it.

Each method is one atomic script (see `lua/`) and returns its named outcome (see `outcomes`), or raises a `StoreError`
having changed nothing. What a worker does about an outcome is not known here, nor is Celery.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, cast

from redis import Redis
from redis.cluster import RedisCluster

from celery_limits.chain import ConcurrencyLink, FloatingLink, Link, RateLink
from celery_limits.limits import MAX_SIZE, parse_rate

from . import outcomes
from .caller import Arg, Caller, discreet
from .errors import StoreDenied, StoreTooOld, translated
from .keys import limit_key, prefix_of
from .listener import Listener
from .outcomes import (
    Admission,
    Aftermath,
    Beat,
    Cancelled,
    Claimed,
    Ended,
    Failed,
    Refreshed,
    Release,
    Stale,
    Swept,
    name_of,
    text,
)
from .policy import Policy, microseconds
from .reads import Explanation, Status
from .scripts import Script, load

__all__ = ["Store"]

SWEEP_BATCH = 100
MAX_RANK = 255
OLDEST_REDIS = [6, 2]
"""It has ZADD with LT and RPOP with a count."""

SHORTEST_SLEEP = 0.01
"""Redis 6.2 takes 0.001 seconds for 0, which is for ever."""

PAGE = 20
"""How many holders and waiters a read names."""
STATUS_BATCH = 50
"""Keys a script call; each is a handful of look-ups."""


_CONTROL = re.compile(r"[\t\n]")
"""What separates the fields of a record can't be in one of them."""


def _unfit(ticket: str, links: object, worker: str, delivery: str, queue: str, rank: int) -> ValueError:
    """Says which argument of `admit` can't be stored; the test that found it is quick and does not say."""
    if not links:
        return ValueError(f"{ticket}: an empty chain, which never means no limits")
    if not 0 <= rank <= MAX_RANK:
        return ValueError(f"{ticket}: rank {rank} is not from 0 to {MAX_RANK}")
    for name, value in (("worker", worker), ("delivery", delivery), ("queue", queue)):
        if _CONTROL.search(value):
            return ValueError(f"{ticket}: {name} {value!r} has a tab or newline, which can't be stored")
    return ValueError(f"ticket {ticket!r} is not '<task id>.<nonce>'")


def _longest_line(link: ConcurrencyLink | FloatingLink) -> str:
    """One number says both: not to wait is to accept a line of length 0."""
    if link.on_full == "discard":
        return "0"
    return "" if link.max_waiting is None else str(link.max_waiting)


def link_fields(link: Link) -> tuple[str, ...]:
    """A link as include/record.lua lays it out: kind, key, size, weight, extra."""
    if isinstance(link, ConcurrencyLink):
        return "c", link.key, str(link.limit), str(link.weight), _longest_line(link)
    if isinstance(link, RateLink):
        return "r", link.key, parse_rate(link.rate).interval, str(link.cost), str(link.burst)
    extra = f"{_longest_line(link) or '-'} {microseconds(link.every)} {link.refresh}"
    return "f", link.key, str(link.default), str(link.weight), extra


@lru_cache(maxsize=4096)
def chain_fields(links: tuple[Link, ...]) -> tuple[str, tuple[str, ...]]:
    """A chain as it stands in a record, and as it is passed to be walked."""
    fields = tuple(field for link in links for field in link_fields(link))
    return "\t\n\t" + "\t".join(fields) + "\t", fields


def record_rest(
    chain: str, *, rank: int, delivery: str, queue: str, until: str, since: int, late: bool, cut: int | None
) -> str:
    """What a ticket's record says beside its state, as the scripts take it."""
    flags = f"{'1' if late else ''}\t{'' if cut is None else cut}"
    return f"{rank}\t{delivery}\t{queue}\t{until}\t{since}\t{flags}{chain}"


class Store:
    """All limits of one namespace.

    `clock`, where given, is asked for the time (microseconds) instead of the server; `scripts` gives a verb's script;
    `keyprefix` stands before every key, as the broker's `global_keyprefix` does; one that does not configure leaves the
    namespace's times, but for its own lease, to those who know them.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        namespace: str = "celery",
        policy: Policy | None = None,
        clock: Callable[[], int] | None = None,
        scripts: Callable[[str], Script] = load,
        keyprefix: str = "",
        configures: bool = True,
    ) -> None:
        self.client = client
        self.namespace = namespace
        self.prefix = keyprefix + prefix_of(namespace)
        self.policy = policy or Policy()
        self._clock = clock
        self._configures = configures
        self._scripts = scripts
        self._call = Caller(client, self.prefix)
        self._listener: Listener | None = None

    @classmethod
    def from_url(cls, url: str, namespace: str = "celery", policy: Policy | None = None, **options: Any) -> Store:
        return cls(discreet(Redis.from_url(url, **options)), namespace, policy)

    def __repr__(self) -> str:
        return f"<Store {self.namespace!r}>"

    def _run(self, verb: str, *args: Arg) -> Any:
        now: Arg = self._clock() if self._clock else ""
        return outcomes.decode(self._call(self._scripts(verb), now, *args))

    # -- a message's way through its limits -------------------------------------------------------------

    def admit(
        self,
        ticket: str,
        links: tuple[Link, ...],
        worker: str,
        *,
        delivery: str,
        message: bytes = b"",
        cut: int | None = None,
        queue: str = "",
        rank: int = 0,
        expires: int | None = None,
        late: bool = False,
        field: str = "",
        arrival: int = 0,
        new: bool = False,
    ) -> Admission:
        """A delivered message asks to run.

        `delivery` names this delivery among all: called again with the same one, it is the same call. `message` is
        what is parked if it must wait; without it the answer may be `Full`. `queue` is where the store puts it back
        itself; without one it goes through the outbox. `rank` orders the lines: lower starts first, 0 to 255.
        `late`: the broker keeps the message until the body has ended. `cut`: see include/payload.lua. `field`: the
        message is the store's own delivery to this worker (see fetch.lua), so it need not be passed, and is
        acknowledged in the same step when it is parked. `arrival`: its place in line, where that was given before.
        `new`: this copy never came out of the store, by what its header says.
        """
        task_id, _, nonce = ticket.rpartition(".")
        if (
            not links
            or not 0 <= rank <= MAX_RANK
            or not (task_id and nonce)
            or _CONTROL.search(ticket + worker + delivery + queue)
        ):
            raise _unfit(ticket, links, worker, delivery, queue, rank)
        chain, fields = chain_fields(links)
        until = "" if expires is None else str(expires)
        since = self._clock() if self._clock else time.time_ns() // 1000
        rest = record_rest(
            chain, rank=rank, delivery=delivery, queue=queue, until=until, since=since, late=late, cut=cut
        )
        came = str(arrival) if arrival else "new" if new else ""
        return cast(Admission, self._run("admit", task_id, nonce, worker, until, message, rest, field, came, *fields))

    def release(
        self,
        ticket: str,
        worker: str,
        fence: int,
        *,
        back: bool = False,
        acked: Sequence[str] = (),
        taking: Sequence[Arg] = (),
    ) -> Release:
        """What ran has ended; with `back` it goes back to its queue, to be walked again in its old place.

        `acked`: deliveries of this worker that are acknowledged in the same step, unless it is `Stale`. `taking`: the
        worker has a place for one that is granted now; the mark of its channel, and its queues as fetch.lua has them.
        """
        task_id, _, nonce = ticket.rpartition(".")
        how = "back" if back else "done"
        answer = self._run("release", task_id, nonce, worker, fence, how, len(acked), *acked, *taking)
        return cast(Release, answer)

    def cancel(self, task_id: str, *, settle_within: float = 30.0) -> Cancelled:
        """No ticket of this task starts any more; those in the store end here, for the caller to tell and `settle`."""
        remember = microseconds(self.policy.remember)
        return cast(Cancelled, self._run("cancel", task_id, remember, microseconds(settle_within)))

    # -- dispatch ---------------------------------------------------------------------------------------

    def claim(
        self, count: int = 10, *, settle_within: float = 30.0, again: Iterable[Claimed] = ()
    ) -> tuple[Claimed, ...]:
        """Takes on outbox entries; each must be settled, or someone else takes it on. `again`: claimed before, and not
        finished: these need not wait for that."""
        failed = (field for entry in again for field in (entry.ticket, entry.fence))
        return cast("tuple[Claimed, ...]", self._run("claim", count, microseconds(settle_within), *failed))

    def settle(self, entries: Iterable[Claimed | Ended]) -> None:
        """These outbox entries are published and confirmed, or their end was told. An old claim settles nothing."""
        self._run("settle", *(field for entry in entries for field in (entry.ticket, entry.fence)))

    # -- liveness ---------------------------------------------------------------------------------------

    def check_version(self) -> None:
        """Raises `StoreTooOld`. A server that does not tell (an ACL) is taken as it is."""
        client: Any = self.client
        try:
            with translated("info"):
                told = client.info("server")
        except StoreDenied:
            return
        version = str(told.get("redis_version", ""))
        numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
        if numbers and numbers < OLDEST_REDIS:
            raise StoreTooOld(f"This Redis is {version}. {StoreTooOld.__doc__}")

    def beat(self, worker: str, *, renew: bool = False) -> Beat:
        """Renews the worker's lease, or gives it one.

        With `renew` it gives none: a beat that was under way for long, and whose answer nobody waits for any more,
        would else take a lapsed lease anew, and the next one could not see that it was lost.
        """
        if not worker or worker == "!" or _CONTROL.search(worker):
            raise ValueError(f"worker {worker!r}: a name without control characters is needed")
        p = self.policy
        settings = (p.grant_timeout, p.forget, p.remember, p.refresh_timeout)
        times: Iterable[Arg] = map(microseconds, settings) if self._configures else [""] * len(settings)
        return cast(Beat, self._run("beat", worker, microseconds(p.lease), *times, "renew" if renew else ""))

    def leave(self, worker: str) -> Aftermath:
        """The worker goes for good; call again while `more`."""
        return cast(Aftermath, self._run("leave", worker, SWEEP_BATCH))

    def sweep(self, worker: str = "", batch: int = SWEEP_BATCH) -> Swept:
        """Does what time has made due. `worker` may be asked to refresh floating limits."""
        return cast(Swept, self._run("sweep", worker, microseconds(self.policy.lease), batch))

    def refreshed(self, key: str, worker: str, token: int, size: int | None) -> Refreshed | Failed | Stale:
        """Answers a `Refresh`; None says that it failed."""
        answer = self._run("refreshed", worker, key, token, "" if size is None else size)
        return cast("Refreshed | Failed | Stale", answer)

    def held_by(self, worker: str) -> dict[str, int]:
        """The tickets that this worker runs, with their fences, as far as the store knows."""
        client: Any = self.client
        with translated("held_by"):
            members = client.zrange(f"{self.prefix}worker:{worker}", 0, -1, withscores=True)
        return {text(name): int(fence) for name, fence in members if b"." in name and b"\t" not in name}

    def messages(self) -> Iterator[tuple[str, bytes]]:
        """Task id and message of every ticket whose message is in the store. Scans: not for every day."""
        client: Any = self.client
        with translated("messages"):
            for name in client.scan_iter(match=f"{self.prefix}task:*", count=1000):
                task_id = text(name)[len(self.prefix) + 5 :]
                for field, value in client.hscan_iter(name):
                    if field.endswith(b":m"):
                        yield task_id, value

    def tickets(self) -> Iterator[tuple[str, str, int]]:
        """Every ticket, its state and its arrival. Scans: not for every day."""
        client: Any = self.client
        with translated("tickets"):
            for name in client.scan_iter(match=f"{self.prefix}task:*", count=1000):
                task_id = text(name)[len(self.prefix) + 5 :]
                for field, value in client.hscan_iter(name):
                    head = value.split(b"\t", 5)
                    if b":" not in field and len(head) > 4 and head[4].isdigit():  # any other is for the audit to find
                        yield f"{task_id}.{text(field)}", text(head[0]), int(head[4])

    def listen(self, seconds: float) -> None:
        """Sleeps until a sweep is needed sooner than its last one said, but no longer than this. For one thread."""
        bell = f"{self.prefix}bell"
        if isinstance(self.client, RedisCluster):
            client: Any = self.client
            patience = client.get_connection_kwargs().get("socket_timeout") or 2 * seconds
            with translated("listen"):
                client.blpop([bell], timeout=max(0.001, min(seconds, patience / 2)))
            return
        if self._listener is None:
            self._listener = Listener(self.client, bell)
        self._listener.wait(seconds)

    def hush(self) -> None:
        """Ends the listening: a ring is left to those who still listen."""
        if self._listener is not None:
            self._listener.close()

    # -- steering ---------------------------------------------------------------------------------------

    def resize(self, key: str, size: int | str, burst: int = 1) -> Aftermath:
        """Slots for a concurrency key, a rate like "100/m" for a rate key; in force for everyone until `reset`."""
        if not isinstance(size, str) and not (type(size) is int and 0 <= size <= MAX_SIZE):
            raise ValueError(f"size {size!r} of {key!r}: a whole number from 0 to {MAX_SIZE} is needed")
        if type(burst) is not int or burst < 1:
            raise ValueError(f"burst {burst!r} of {key!r}: a whole number of 1 or more is needed")
        if isinstance(size, str):
            return cast(Aftermath, self._run("resize", key, "rate", f"{parse_rate(size).interval} {burst}"))
        return cast(Aftermath, self._run("resize", key, "size", size))

    def reset(self, key: str) -> Aftermath:
        """What the tasks declare is in force again."""
        return cast(Aftermath, self._run("resize", key, "size", ""))

    def pause(self, key: str) -> Aftermath:
        """Nothing enters the key; what holds it runs on."""
        return cast(Aftermath, self._run("pause", key, "1"))

    def resume(self, key: str) -> Aftermath:
        return cast(Aftermath, self._run("pause", key, ""))

    # -- reading ----------------------------------------------------------------------------------------

    def status(self, key: str, page: int = PAGE) -> Status:
        return next(self.statuses([key], page))

    def statuses(self, keys: Iterable[str], page: int = 0) -> Iterator[Status]:
        """Many keys, a script for each batch of them; holders and waiters are counted, and a page of each is named."""
        pending = list(keys)
        for i in range(0, len(pending), STATUS_BATCH):
            batch = [key.encode(errors="surrogateescape") for key in pending[i : i + STATUS_BATCH]]
            yield from Status.decode_all(self._run("status", page, *batch))

    def keys(self) -> list[str]:
        """Every key that is held, waited for, steered or was passed of late, in order. Scans in pages: nobody waits."""
        client: Any = self.client
        with translated("keys"):
            names = client.scan_iter(match=f"{self.prefix}[hln]*", count=1000)  # hold, line, note
            found = {limit_key(name_of(raw)[len(self.prefix) :]) for raw in names}
            found.update(name_of(key) for key, _ in client.zscan_iter(f"{self.prefix}rates", count=1000))
        return sorted(key for key in found if key is not None)

    def messages_of(self, tickets: Sequence[str]) -> dict[str, bytes]:
        """The messages of those of these tickets whose message is in the store."""
        client: Any = self.client
        with translated("messages_of"):
            pipe = client.pipeline(transaction=False)
            for ticket in tickets:
                task_id, _, nonce = ticket.rpartition(".")
                pipe.hget(f"{self.prefix}task:{task_id}", f"{nonce}:m")
            found = pipe.execute() if tickets else []
        return {ticket: message for ticket, message in zip(tickets, found, strict=True) if message}

    def explain(self, task_id: str, page: int = PAGE) -> Explanation:
        return Explanation.decode(task_id, self._run("explain", task_id, page))

    def inspect(self, subjects: Sequence[tuple[str, ...]], *, mend: bool) -> list[tuple[str, ...]]:
        """Examines subjects for `audit`, each against everything that refers to it; see audit.lua."""
        flat = [field.encode(errors="surrogateescape") for subject in subjects for field in subject]
        return cast("list[tuple[str, ...]]", self._run("audit", "1" if mend else "", *flat))

    def close(self) -> None:
        self._call.close()
