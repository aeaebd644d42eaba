"""The scripts of deliveries, as a channel calls them: through its own connection settings, with redis-py's own errors.

kombu knows those errors and what to do about them: reconnect, publish again, log an acknowledgement that failed. Only
what does no harm when done twice is repeated here.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from hiredis import pack_command
from redis import exceptions as redis_errors

from celery_limits.secret import bare
from celery_limits.store.errors import StoreDenied, StoreFull, StoreNoScripts, StoreTooOld, StoreUnavailable, translate
from celery_limits.store.script_runner import Arg, ScriptRunner
from celery_limits.store.scripts import Script, load

from .delays import Delay

__all__ = ["MOST", "QueueScripts", "explained", "number_of"]

MOST = 100
"""Messages that one fetch brings at most, and fields that one acknowledgement names."""

IDLE = 1.0
"""Seconds after which a connection may have been closed by the other side without our knowing."""


def explained(error: redis_errors.ResponseError, verb: str) -> Exception:
    """Redis's refusal, with what to do about it. What passes by itself (a failover, a script that takes long, a full
    disk) is to kombu as if there were no connection: it waits and tries again."""
    named = translate(error, verb)
    if isinstance(named, StoreFull):
        return redis_errors.OutOfMemoryError(str(named))
    if isinstance(named, StoreUnavailable):
        return redis_errors.ConnectionError(str(named))
    if isinstance(named, (StoreTooOld, StoreNoScripts)):
        return redis_errors.ResponseError(str(named))
    return redis_errors.NoPermissionError(str(named)) if isinstance(named, StoreDenied) else error


def number_of(field: str) -> int:
    """A delivery's place in the order in which all were fetched; see include/delivery.lua."""
    return int(field.lstrip("?g").partition(".")[0])


def _packed(*command: Arg) -> bytes:
    packed: bytes = pack_command(command)  # type: ignore[arg-type]
    return packed


class QueueScripts(ScriptRunner):
    """Publishes, acknowledges and gives back; and says what to send in order to fetch."""

    def __init__(self, client: Any, prefix: str) -> None:
        super().__init__(client, prefix)
        self.prefix = prefix
        self._fetch = load("fetch")
        self._known = self._sealed = False

    # -- fetching, over a connection that the channel polls ----------------------------------------------------

    def fetch_command(
        self, worker: str, mark: str, room: int, flags: str, acked: Sequence[str], rest: Sequence[Arg]
    ) -> bytes:
        head = ("EVALSHA", self._fetch.sha) if self._known else ("EVAL", self._fetch.text)
        self._known = True
        return _packed(*head, "1", self.prefix, "", worker, mark, str(room), flags, str(len(acked)), *acked, *rest)

    def wait_command(self, queues: Iterable[str], seconds: float) -> bytes:
        return _packed("BLPOP", *(f"{self.prefix}call:{queue}" for queue in queues), str(seconds))

    def unknown(self) -> None:
        """The server does not know the script (any more): its text is sent with the next fetch."""
        self._known = False

    def fetch_now(self, worker: str, mark: str, room: int, rest: Sequence[Arg]) -> Any:
        return self._ask(self._fetch, "", worker, mark, room, "r", 0, *rest, attempts=1)

    # -- the rest, over a connection of the calling thread ---------------------------------------------------

    def publish(self, queue: str, key: str, payload: bytes, *stamp: Arg) -> bool:
        """True when it went straight into a line."""
        if stamp and not self._sealed:
            self._seal()
        return bool(self._ask(load("publish"), "", queue, key, payload, *stamp, attempts=1))

    def delay(self, delay: Delay, queue: str, key: str, payload: bytes) -> None:
        """A message with an eta: into the store until it is due, or into its queue."""
        if delay.links and not self._sealed:
            self._seal()
        self._delay(delay, queue, key, payload, "", "")

    def delay_fetched(self, delay: Delay, queue: str, worker: str, field: str) -> bool:
        """Of a delivery to this worker; True when it is in the store, and not the worker's any more."""
        return self._delay(delay, queue, "", "", worker, field)

    def _delay(self, delay: Delay, *where: Arg) -> bool:
        times, stamp = (delay.due, delay.now), (*delay.ticket, *delay.links)
        return bool(self._ask(load("delay"), "", *times, *where, *stamp, attempts=1))

    def _seal(self) -> None:
        """Gives the namespace the secret behind arrivals, if no worker has yet: see store/lua/include/seal.lua."""
        self._send(self._connection(), ("HSETNX", f"{self.prefix}config", "seal", secrets.token_hex(16)))
        self._sealed = True

    def acknowledge(self, worker: str, fields: Sequence[str]) -> None:
        for i in range(0, len(fields), MOST):
            self._ask(load("acknowledge"), "", worker, *fields[i : i + MOST], attempts=3)

    def requeue(self, worker: str, fields: Sequence[str], where: str) -> None:
        """The last batch first: those of each keep their order, and so do the batches."""
        for i in reversed(range(0, len(fields), MOST)):
            self._ask(load("requeue"), "", worker, where, *fields[i : i + MOST], attempts=3)

    def ring(self, queue: str) -> None:
        """Something was put into the queue without `publish`."""
        self._ask(load("ring"), "", queue, attempts=3)

    def set_aside(self, name: str, entry: str) -> None:
        """For a person to look at: see `store.aside`."""
        self._send(self._connection(), ("HSET", f"{self.prefix}aside", name, entry))

    def fetched_by(self, worker: str, marks: Iterable[str] = (), after: int = 0) -> list[str]:
        """The fields of what this worker has not acknowledged, under these marks if any are named and numbered above
        `after`, oldest first."""
        found: list[str] = []
        page: Arg = after
        while page != b"":
            page, *fields = self._ask(load("fetched"), "", worker, page, *marks, attempts=3)
            found += [field.decode() for field in fields]
        return found

    def _ask(self, script: Script, *args: Arg, attempts: int) -> Any:
        command: tuple[Arg, ...] = ("EVALSHA", script.sha, "1", self.prefix, *args)
        while True:
            connection = self._connection()
            self._refresh(connection)
            try:
                return self._send(connection, command)
            except redis_errors.NoScriptError:
                command = ("EVAL", script.text, "1", self.prefix, *args)
            except redis_errors.ResponseError as error:
                raise explained(error, script.verb) from bare(error)
            except (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError):
                attempts -= 1
                if not attempts:
                    raise

    def _refresh(self, connection: Any) -> None:
        """A connection that was idle is looked at first: what is not repeated must not fail for that."""
        now = time.monotonic()
        if now - getattr(self._local, "used", now) > IDLE:
            try:
                stale = connection.can_read(timeout=0)
            except (redis_errors.RedisError, OSError):
                stale = True
            if stale:
                connection.disconnect()
        self._local.used = now
