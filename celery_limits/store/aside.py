"""What was set aside: messages that no task could be made of, and records of tickets that can't be read.

They are kept whole in the hash `aside` until a person puts them back into their queue or deletes them. Those that our
transport has set aside are named `message <digest>` and know their queue; tickets are named by themselves.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from .audit import Finding
from .errors import translated
from .keys import prefix_of
from .outcomes import name_of
from .store import Store

__all__ = ["Aside", "add_aside", "delete_aside", "read_aside", "requeue_aside", "set_aside_findings"]


class Aside(NamedTuple):
    name: str
    why: str
    queue: str
    """Where it came from; empty for a ticket's record, which nobody can put back."""
    message: bytes
    at: float
    """Seconds since 1970."""


def _aside(name: str, raw: bytes) -> Aside:
    try:
        entry = json.loads(raw.decode("utf-8", "surrogateescape"))
        message = entry["message"].encode("utf-8", "surrogateescape")
        return Aside(name, str(entry["why"]), str(entry.get("queue", "")), message, int(entry["at"]) / 1e6)
    except (ValueError, TypeError, KeyError, AttributeError):  # what a key's own trouble was is written as plain text
        return Aside(name, raw.decode("utf-8", "replace"), "", b"", 0.0)


def add_aside(store: Store, name: str, why: str, message: bytes, queue: str = "") -> None:
    """Keeps a message that nothing here can run; `queue`: it is as it lay in that queue, and can go back there."""
    text = message.decode("utf-8", "surrogateescape")
    entry = {"why": why, "queue": queue, "message": text, "at": str(time.time_ns() // 1000)}
    client: Any = store.client
    with translated("aside"):
        client.hset(_key(store), name, json.dumps(entry))


def _key(store: Store) -> str:
    return f"{store.prefix}aside"


def read_aside(store: Store) -> list[Aside]:
    """Oldest first."""
    client: Any = store.client
    with translated("aside"):
        found = [_aside(name_of(name), raw) for name, raw in client.hscan_iter(_key(store))]
    return sorted(found, key=lambda aside: (aside.at, aside.name))


def set_aside_findings(store: Store) -> list[Finding]:
    """For the audit: each is something for a person to decide about."""
    found = read_aside(store)
    return [Finding("set-aside", aside.name, f"{aside.why}; see `limits aside`") for aside in found]


def requeue_aside(store: Store, name: str) -> Aside | None:
    """Puts a message back at the end of its queue, in one step. None if there is none of this name."""
    client: Any = store.client
    found: list[Aside] = []

    def move(pipe: Any) -> None:
        found.clear()
        raw = pipe.hget(_key(store), name)
        pipe.multi()
        if raw is None:
            return
        aside = _aside(name, raw)
        found.append(aside)
        if aside.queue:
            pipe.lpush(store.prefix[: -len(prefix_of(store.namespace))] + aside.queue, aside.message)
            pipe.hdel(_key(store), name)

    with translated("aside"):
        client.transaction(move, _key(store))
    return found[0] if found else None


def delete_aside(store: Store, name: str) -> bool:
    client: Any = store.client
    with translated("aside"):
        return bool(client.hdel(_key(store), name))
