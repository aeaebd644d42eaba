"""Calling scripts: one prepared command, one connection per thread, no object built per call.

A lost connection is opened again and the call repeated: every script may be run twice (docs/design.md says why
for each). What Redis answers with an error is raised as one of `errors`. Waiting for a store that stays away is
the caller's to do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from hiredis import pack_command
from redis import Redis, UsernamePasswordCredentialProvider
from redis import exceptions as redis_errors
from redis.cluster import RedisCluster

from celery_limits.secret import bare

from .errors import StoreError, StoreReadOnly, StoreUnavailable, translate
from .scripts import Script

__all__ = ["Arg", "ScriptRunner", "discreet", "discreet_pool"]

Arg: TypeAlias = str | bytes | int
ATTEMPTS = 3

# redis-py types its connections differently from version to version; what we use of them has been the same since 5.
Connection: TypeAlias = Any


def discreet(client: Redis) -> Redis:
    """redis-py 6 shows the arguments of its connections, the password among them, to whoever prints the client."""
    discreet_pool(client.connection_pool)
    return client


def discreet_pool(pool: Any) -> Any:
    arguments = pool.connection_kwargs
    if password := arguments.pop("password", None):
        user = arguments.pop("username", None)
        arguments["credential_provider"] = UsernamePasswordCredentialProvider(user, password)
    for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        discreet(sentinel)
    return pool


def _worth_repeating(error: Exception, named: StoreError) -> bool:
    """A connection that broke is opened again. A server that hangs, or that answered, is not asked twice."""
    if isinstance(named, StoreReadOnly):
        return True
    broken = isinstance(error, (redis_errors.ConnectionError, OSError))
    return broken and not isinstance(error, (redis_errors.AuthenticationError, redis_errors.BusyLoadingError))


class ScriptRunner:
    """Runs scripts in one namespace through the connection settings of a redis-py client."""

    def __init__(self, client: Redis | RedisCluster, prefix: str) -> None:
        self._client = client
        self._cluster = client if isinstance(client, RedisCluster) else None  # a check that is not cheap
        self._prefix = prefix
        self._local = threading.local()
        self._loaded: set[str] = set()

    def __call__(self, script: Script, *args: Arg) -> list[Any]:
        if self._cluster is not None:
            return self._call_cluster(self._cluster, script, args)
        command: tuple[Arg, ...] = ("EVALSHA", script.sha, "1", self._prefix, *args)
        tries = 0
        while True:
            connection = self._connection()
            try:
                reply: list[Any] = self._send(connection, command)
                return reply
            except redis_errors.NoScriptError:  # nothing was run; the text is sent once, and known from then on
                command = ("EVAL", script.text, "1", self._prefix, *args)
            except (redis_errors.RedisError, OSError) as error:
                named = translate(error, script.verb)
                tries += 1
                if tries == ATTEMPTS or not _worth_repeating(error, named):
                    raise named from bare(error)
                # After a failover the same address may be a replica: a new connection finds the new primary.
                connection.disconnect()

    def together(self, calls: Sequence[tuple[Script, tuple[Arg, ...]]]) -> list[Any]:
        """Several scripts in one exchange, in this order: for each its reply, or its `StoreError`. Where that fails
        they are called one by one; and the first time, so that the server knows all of them."""
        replies: list[Any] = [None] * len(calls)
        scripts = {script.sha for script, _ in calls}
        if len(calls) > 1 and self._loaded.issuperset(scripts) and self._cluster is None:
            commands = [("EVALSHA", script.sha, "1", self._prefix, *args) for script, args in calls]
            with suppress(redis_errors.RedisError, OSError):
                replies = self._exchange(self._connection(), commands)
        away: StoreError | None = None
        for i, (script, args) in enumerate(calls):
            reply = replies[i]
            if reply is not None and not isinstance(reply, redis_errors.ResponseError):
                continue
            try:
                replies[i] = away or self(script, *args)
            except StoreError as error:
                replies[i] = error
                away = error if isinstance(error, StoreUnavailable) else None
        if away is None:
            self._loaded |= scripts
        return replies

    def _send(self, connection: Connection, command: tuple[Arg, ...]) -> Any:
        (reply,) = self._exchange(connection, [command])
        if isinstance(reply, redis_errors.ResponseError):
            raise reply
        return reply

    def _exchange(self, connection: Connection, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """What Redis answers to each, errors of its own included."""
        local = self._local
        interrupted, local.busy = local.busy, True
        replies: list[Any] = []
        try:
            if connection._sock is None:  # noqa: SLF001  (redis-py has no other word for it)
                connection.connect()  # which asks the sentinel, where there is one; sending by itself does not
            packed = b"".join([pack_command(command) for command in commands])  # type: ignore[arg-type]
            connection.send_packed_command([packed], check_health=False)
            for _ in commands:
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except redis_errors.ResponseError as error:
                    replies.append(error)
            return replies
        except BaseException:
            # A soft time limit or Ctrl-C here leaves an answer unread, and the next call must not take it for its own.
            connection.disconnect()
            raise
        finally:
            local.busy = interrupted

    def _call_cluster(self, client: Any, script: Script, args: tuple[Arg, ...]) -> list[Any]:
        try:
            try:
                reply: list[Any] = client.execute_command("EVALSHA", script.sha, 1, self._prefix, *args)
            except redis_errors.NoScriptError:
                reply = client.execute_command("EVAL", script.text, 1, self._prefix, *args)
            return reply
        except redis_errors.RedisError as error:
            raise translate(error, script.verb) from bare(error)

    def _connection(self) -> Connection:
        """This thread's own connection; a forked child makes itself a new one and leaves its parent's alone.

        One for this call alone while the thread's own waits for an answer: then the handler of a signal has interrupted
        a call, such as a second SIGTERM an admission, and each would read the answer of the other.
        """
        local, pid = self._local, os.getpid()
        if getattr(local, "pid", None) != pid:
            local.connection = self._new_connection()
            local.busy = False
            local.pid = pid
        return self._new_connection() if local.busy else local.connection

    def _new_connection(self) -> Connection:
        pool: Any = self._client.connection_pool  # type: ignore[union-attr]
        return pool.connection_class(**pool.connection_kwargs)

    def close(self) -> None:
        """Closes this thread's connection. Those of other threads close with their threads."""
        if getattr(self._local, "pid", None) == os.getpid():
            self._local.connection.disconnect()
