"""The store: the state of all limits of one namespace, and every verb that changes or reads it.

Each method is one atomic script (see `lua/`) and returns its named outcome (see `outcomes`), or raises a `StoreError`
having changed nothing. What a worker does about an outcome is not known here, nor is Celery.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from redis import Redis
from redis.cluster import RedisCluster

from celery_limits.declare.chain import Link

from . import outcomes
from .bell import Bell
from .changes import Author
from .errors import StoreDenied, StoreTooOld, translated
from .keys import limit_key, prefix_of
from .outcomes import (
    Admission,
    Aftermath,
    Beat,
    Cancelled,
    Claimed,
    Drained,
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
from .record import chain_fields, record_rest
from .script_runner import Arg, ScriptRunner, discreet
from .scripts import Script, load
from .serving import KEEP, Serving, serving_fields
from .status import Explanation, Status
from .steering import Steering

__all__ = ["Store"]

SWEEP_BATCH = 100
MAX_RANK = 255
OLDEST_REDIS = [6, 2]
"""It has ZADD with LT and RPOP with a count."""

PAGE = 20
"""How many holders and waiters a read names."""
STATUS_BATCH = 50
"""Keys a script call; each is a handful of look-ups."""


MOST_ERROR = 200
"""Characters that are kept of an error."""

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


class Store(Steering):
    """All limits of one namespace.

    `clock`, where given, is asked for the time (microseconds) instead of the server; `scripts` gives a verb's script;
    `keyprefix` stands before every key, as the broker's `global_keyprefix` does; one that does not configure leaves the
    namespace's times, but for its own lease, to those who know them. Without `trust` no message waits in a line before
    a gate has resolved its chain. With `delays` a worker that joins looks after delayed messages, so publishers delay.
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
        trust: bool = True,
        delays: bool = True,
    ) -> None:
        self.client = client
        self.namespace = namespace
        self.prefix = keyprefix + prefix_of(namespace)
        self.policy = policy or Policy()
        self._clock = clock
        self._configures, self._trust, self._delays = configures, trust, delays
        self._secret = secrets.token_hex(16)
        self._scripts = scripts
        self._call = ScriptRunner(client, self.prefix)
        self._bell: Bell | None = None

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
        source: str = "",
        rank: int = 0,
        expires: int | None = None,
        late: bool = False,
        field: str = "",
        arrival: str = "",
        new: bool = False,
        resolved: bool = False,
        begun: str = "",
    ) -> Admission:
        """A delivered message asks to run.

        `delivery` names this delivery among all: called again with the same one, it is the same call. `message` is
        what is parked if it must wait; without it the answer may be `Full`. `queue` is where the store puts it back
        itself; without one it goes through the outbox, and `source` is the queue of another broker that it was consumed
        from. `rank` orders the lines: lower starts first, 0 to 255. `late`: the broker keeps the message until the body
        has ended. `cut`: see include/payload.lua. `field`: the message is the store's own delivery to this worker (see
        fetch.lua), so it need not be passed, and is acknowledged in the same step when it is parked. `arrival`: its
        place in line, if the store finds its own seal on it. `new`: this copy never came out of the store, by what its
        header says. `resolved`: the worker has resolved the links by itself, and they are in force whatever chain the
        store has recorded for the ticket. `begun`: the seal (see `begun`) of a task that has begun before.
        """
        task_id, _, nonce = ticket.rpartition(".")
        if (
            not links
            or not 0 <= rank <= MAX_RANK
            or not (task_id and nonce)
            or _CONTROL.search(ticket + worker + delivery + queue + source)
        ):
            raise _unfit(ticket, links, worker, delivery, queue + source, rank)
        chain, fields, marks = chain_fields(links, queue or source)
        until = "" if expires is None else str(expires)
        since = self._clock() if self._clock else time.time_ns() // 1000
        rest = record_rest(
            chain, rank=rank, delivery=delivery, queue=queue, until=until, since=since, late=late, cut=cut
        )
        flags = ("n" if new else "") + ("r" if resolved else "") + marks + (f"s{begun}" if begun else "")
        answer = self._run("admit", task_id, nonce, worker, until, message, rest, field, arrival, flags, *fields)
        return cast(Admission, answer)

    def arrive(self, ticket: str) -> str:
        """The next arrival, sealed for this ticket, for `admit` to be told when it is asked later."""
        return cast(str, self._run("arrive", ticket))

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

    def cancel(
        self, task_id: str, *, settle_within: float = 30.0, cursor: int = 0, author: Author | None = None
    ) -> Cancelled:
        """No ticket of this task starts any more; those in the store end here, for the caller to tell and `settle`. Of
        a task that has many, some do so in each call: call again with the answer's `cursor` until that is 0."""
        revoke_ttl = microseconds(self.policy.revoke_ttl)
        told = author.fields if author else ()
        return cast(Cancelled, self._run("cancel", task_id, revoke_ttl, microseconds(settle_within), cursor, *told))

    # -- dispatch ---------------------------------------------------------------------------------------

    def claim(
        self, count: int = 10, *, settle_within: float = 30.0, again: Iterable[Claimed] = ()
    ) -> tuple[Claimed, ...]:
        """Takes on outbox entries; each must be settled, or someone else takes it on. `again`: claimed before, and not
        finished: these need not wait for that."""
        failed = (field for entry in again for field in (entry.ticket, entry.fence))
        return cast("tuple[Claimed, ...]", self._run("claim", count, microseconds(settle_within), *failed))

    def settle(self, entries: Iterable[Claimed | Ended]) -> int:
        """These outbox entries are published and confirmed, or their end is reported. An old claim settles nothing. How
        many of the ends could not be reported before."""
        flat = (field for entry in entries for field in (entry.ticket, entry.fence))
        return cast(int, self._run("settle", *flat))

    def defer(self, entry: Claimed | Ended, error: str, *, pause: float, longest: float) -> int:
        """The end of this ticket could not be reported: it is claimed again after `pause` seconds, which doubles with
        each failure up to `longest`. How often that has failed; 0 if someone else has claimed it since."""
        pauses = microseconds(pause), microseconds(longest)
        return cast(int, self._run("defer", entry.ticket, entry.fence, *pauses, _CONTROL.sub(" ", error)[:MOST_ERROR]))

    def drain(self, into: str, tickets: Sequence[str], *, last: bool) -> Drained:
        """Puts messages back into a list of their queue, '' for those of another broker; see drain.lua."""
        return cast(Drained, self._run("drain", into, "1" if last else "", *tickets))

    def forget(self, tickets: Sequence[str]) -> Aftermath:
        """These, whose messages the broker has, free what they hold and lose their places."""
        return cast(Aftermath, self._run("forget", *tickets))

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

    def beat(self, worker: str, *, renew: bool = False, serving: Serving | None = None) -> Beat:
        """Renews the worker's lease, or gives it one. `serving` is what it says of its queues and pool; with `renew`,
        None says that this is as before.

        With `renew` it gives none: a beat that was under way for long, and whose answer nobody waits for any more,
        would else take a lapsed lease anew, and the next one could not see that it was lost.
        """
        if not worker or worker == "!" or _CONTROL.search(worker):
            raise ValueError(f"worker {worker!r}: a name without control characters is needed")
        p = self.policy
        settings = (p.grant_timeout, p.place_ttl, p.revoke_ttl, p.refresh_timeout)
        config: list[Arg] = [*map(microseconds, settings), "1" if self._trust else "0"]
        told = config if self._configures else [""] * len(config)
        how, delays = "renew" if renew else "", "1" if self._delays and self._configures else ""
        serves = [delays, *([KEEP] if renew and serving is None else serving_fields(serving))]
        return cast(Beat, self._run("beat", worker, microseconds(p.lease), *told, how, self._secret, *serves))

    def leave(self, worker: str) -> Aftermath:
        """The worker goes for good; call again while `more`."""
        return cast(Aftermath, self._run("leave", worker))

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

    def superseded_by(self, ticket: str) -> str | None:
        """The id of the task that has superseded this ticket, which may still run."""
        task_id, _, nonce = ticket.rpartition(".")
        client: Any = self.client
        with translated("superseded_by"):
            record = text(client.hget(f"{self.prefix}task:{task_id}", nonce) or b"").split("\t", 9)
        what, _, by = record[8].partition(" ") if len(record) > 8 else ("", "", "")
        return by if what == "superseded" else None

    def last_serial(self) -> int:
        """The last arrival or fence that was given. It only grows, unless the store lost its data."""
        client: Any = self.client
        with translated("last_serial"):
            return int(client.get(f"{self.prefix}serial") or 0)

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

    def listen(self, seconds: float, worker: str = "") -> None:
        """Sleeps until a sweep is needed sooner than its last one said, or the worker has orders, at most this long.
        For one thread."""
        bells = [f"{self.prefix}bell", *([f"{self.prefix}bell:{worker}"] if worker else ())]
        if isinstance(self.client, RedisCluster):
            client: Any = self.client
            patience = client.get_connection_kwargs().get("socket_timeout") or 2 * seconds
            with translated("listen"):
                client.blpop(bells, timeout=max(0.001, min(seconds, patience / 2)))
            return
        if self._bell is None:
            self._bell = Bell(self.client, *bells)
        self._bell.wait(seconds, *bells)

    def hush(self) -> None:
        """Ends the listening: a ring is left to those who still listen."""
        if self._bell is not None:
            self._bell.close()

    # -- reading ----------------------------------------------------------------------------------------

    def status(self, key: str, page: int = PAGE) -> Status:
        return next(self.statuses([key], page))

    def statuses(self, keys: Iterable[str], page: int = 0, groups: int | None = None) -> Iterator[Status]:
        """Many keys, as many with each script as its budget allows; holders and waiters are counted, and a page of each
        is named, and of groups as many, or another number."""
        most_groups = page if groups is None else groups
        pending = [key.encode(errors="surrogateescape") for key in keys]
        while pending:
            read = Status.decode_all(self._run("status", page, most_groups, *pending[:STATUS_BATCH]))
            yield from read
            del pending[: len(read)]

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
        pending, findings = list(subjects), list[tuple[str, ...]]()
        while pending:
            flat = [field.encode(errors="surrogateescape") for subject in pending for field in subject]
            examined, found = self._run("audit", "1" if mend else "", *flat)
            findings += found
            del pending[:examined]
        return findings

    def close(self) -> None:
        self._call.close()
