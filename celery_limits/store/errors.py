"""What can go wrong between us and Redis, by what the caller should do about it.

`StoreUnavailable` passes by itself: wait and call again. Every other `StoreError` needs a person. In both cases
the script that failed has changed nothing, or has done all of its work and the answer was lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as redis_errors

from celery_limits.errors import LimitError
from celery_limits.secret import bare

__all__ = [
    "StoreBroken",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreNoScripts",
    "StoreReadOnly",
    "StoreTooOld",
    "StoreUnavailable",
    "translate",
    "translated",
]


class StoreError(LimitError):
    """The limit store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store can't be reached, is loading its data, failing over or busy. Limited tasks wait until it is back."""


class StoreFull(StoreUnavailable):
    """Redis is out of memory (maxmemory) and refuses to write. Raise maxmemory or free memory; nothing was changed."""


class StoreReadOnly(StoreUnavailable):
    """This Redis is a read-only replica. Point the URL at the primary, or wait for the failover to end."""


class StoreDenied(StoreError):
    """Redis refuses this user: wrong password, or no right to run scripts (EVAL, EVALSHA) on the namespace's keys."""


class StoreTooOld(StoreError):
    """Limits and our transport need Redis 6.2 or newer, or Valkey. Upgrade the server, or use another one."""


class StoreNoScripts(StoreError):
    """Lua scripts are disabled on this server, and limits and our transport need them. A rename-command in redis.conf,
    a proxy without scripts, or a hosting plan without Lua does that. Enable EVAL and EVALSHA under their own names,
    connect past the proxy, or use another Redis. To keep scripts from other users of the server, use ACLs instead."""


class StoreBroken(StoreError):
    """Something in the namespace is not as catalogued: a key of another type, a damaged value. Run the audit."""


_SCRIPTING = re.compile(r"unknown command\W+(?:EVAL|EVALSHA|SCRIPT)\b", re.IGNORECASE)
"""Every Redis that is old enough to be refused has these; so one without was told to have none."""

_BY_CODE: tuple[tuple[str, type[StoreError]], ...] = (
    ("OOM", StoreFull),
    ("READONLY", StoreReadOnly),
    ("NOREPLICAS", StoreReadOnly),
    ("LOADING", StoreUnavailable),
    ("MASTERDOWN", StoreUnavailable),
    ("CLUSTERDOWN", StoreUnavailable),
    ("TRYAGAIN", StoreUnavailable),
    ("MISCONF", StoreUnavailable),
    ("BUSY", StoreUnavailable),
    ("UNBLOCKED", StoreUnavailable),  # a primary became a replica while we slept there
    ("NOAUTH", StoreDenied),
    ("WRONGPASS", StoreDenied),
    ("NOPERM", StoreDenied),
)

_BY_CLASS: tuple[tuple[type[Exception], type[StoreError]], ...] = (
    (redis_errors.OutOfMemoryError, StoreFull),
    (redis_errors.ReadOnlyError, StoreReadOnly),
    (redis_errors.AuthenticationError, StoreDenied),
    (redis_errors.NoPermissionError, StoreDenied),
    (redis_errors.ConnectionError, StoreUnavailable),
    (redis_errors.TimeoutError, StoreUnavailable),
    (redis_errors.BusyLoadingError, StoreUnavailable),
)


def translate(error: Exception, verb: str) -> StoreError:
    """The named error for one of redis-py's. Redis 6.2 quotes an inner error as "-CODE", so the text is read too."""
    text = str(error)
    head = text.split(" ", 1)[0]
    kind = next((ours for code, ours in _BY_CODE if head == code or f"-{code} " in text), None)
    if kind is None and ("ACL failure" in text or "can't run this command" in text):  # how a script reports NOPERM
        kind = StoreDenied
    if kind is None and "unauthenticated" in text:  # a command that is too long for somebody whom it does not know
        kind = StoreDenied
    if kind is None and _SCRIPTING.search(text):
        kind = StoreNoScripts
    if kind is None and "unknown command" in text:  # such as HELLO, with which redis-py greets
        kind = StoreTooOld
    if kind is None:
        kind = next((ours for theirs, ours in _BY_CLASS if isinstance(error, theirs)), StoreBroken)
    return kind(f"{verb}: {text.rstrip('. ')}. {' '.join((kind.__doc__ or '').split())}")


@contextmanager
def translated(verb: str) -> Iterator[None]:
    """For the few plain commands that are sent through redis-py's client."""
    try:
        yield
    except (redis_errors.RedisError, OSError) as error:
        raise translate(error, verb) from bare(error)
