"""The transport of a store test: the real queue scripts, in the time of the test, over a queue of two priorities.

The scripts are those of the store, so that a test may seed a bug in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from celery_limits.store import Store
from celery_limits.store.script_runner import Arg
from celery_limits.store.scripts import Script
from celery_limits.transport.queue_scripts import QueueScripts

__all__ = [
    "LISTS",
    "QUEUE",
    "Fetched",
    "Post",
    "arrival_in",
    "bare",
    "fields_in",
    "is_unmoved",
    "list_of",
    "taking",
    "ticket_in",
]

QUEUE = "q"
STEPS = (0, 3)
LISTS = {step: QUEUE + (f"\x06\x16{step}" if step else "") for step in STEPS}
"""The lists of the queue, highest priority first, as kombu names them."""

_STATE = re.compile(rb'"arrival": "[\w-]*", "at": \d+, "held": \[[^\]]*\], "fence": \d+\}')
_OWN_STATE = re.compile(rb'"at": \d+, "held": \[[^\]]*\], "fence": \d+\}')
_ARRIVAL = re.compile(rb'"arrival": "(\d+)-\w+", "at": ')
_TICKET = re.compile(rb'"ticket": "([^"]*)"')
_UNMOVED = re.compile(rb'"arrival": "[\w-]*", "at": 0, "held": \[\], "fence": \d+\}')


class Fetched(NamedTuple):
    field: str
    text: bytes

    def __repr__(self) -> str:
        return f"{self.field} {ticket_in(self.text)}"


def fields_in(acked: Sequence[str]) -> list[str]:
    """The deliveries that are acknowledged, of granted tickets that were not admitted too."""
    return [field.removeprefix("?") for field in acked]


def queue_as_told(queue: str) -> list[str]:
    """As a channel tells the scripts of the one queue that it consumes."""
    lists = LISTS.values() if queue == QUEUE else (queue, f"{queue}\x06\x163")
    return ["1", queue, "", "", str(len(STEPS)), *map(str, STEPS), *lists]


def taking(mark: str, queue: str = QUEUE) -> list[Arg]:
    """What a release is told by a worker that has a place for the next one; nothing where it has no mark."""
    return [mark, *queue_as_told(queue)] if mark else []


def list_of(rank: int) -> str:
    return LISTS[max(step for step in STEPS if step <= rank)]


@lru_cache(maxsize=20_000)
def ticket_in(text: bytes) -> str:
    found = _TICKET.search(text)
    return found[1].decode() if found else text.strip(b"{}").decode()


@lru_cache(maxsize=20_000)
def bare(text: bytes) -> bytes:
    """A message without what the store and the transport may write into it; every other byte must stay."""
    return (
        _OWN_STATE.sub(b"}", _STATE.sub(b"}", text))
        .replace(b'"redelivered": true, ', b"")
        .replace(b'"redelivered": true', b"")
    )


def arrival_in(text: bytes) -> int:
    """The place in line that a message brings along, as the gate reads it; 0 where it has none."""
    found = _ARRIVAL.search(text)
    return int(found[1]) if found else 0


def is_unmoved(text: bytes) -> bool:
    """Whether the message holds nothing and stands at its first link: the fetch may put it into the line there."""
    return _UNMOVED.search(text) is not None


class Post(QueueScripts):
    """Publishes, fetches, acknowledges and gives back, each in one call on the store's connection."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.client, store.prefix)
        self._store = store

    def _seal(self) -> None:
        """With the store's own secret, so that a story is the same whenever it is told."""
        client: Any = self._store.client
        getattr(self._store._call, "settle", bool)()  # what a simulation has not sent yet comes first
        client.hsetnx(f"{self.prefix}config", "seal", self._store._secret)
        self._sealed = True

    def fetch(
        self,
        worker: str,
        room: int,
        *,
        flags: str = "r",
        acked: Sequence[str] = (),
        mark: str = "m",
        queue: str = QUEUE,
    ) -> list[Fetched] | None:
        """None: this worker holds no lease."""
        rest = queue_as_told(queue)
        reply = self._ask(self._fetch, "", worker, mark, room, flags, len(acked), *acked, *rest, attempts=1)
        if reply == b"lost":
            return None
        return [Fetched(reply[i].decode(), reply[i + 2]) for i in range(0, len(reply), 3)]

    def _ask(self, script: Script, *args: Arg, attempts: int) -> Any:
        store = self._store
        now: Arg = store._clock() if store._clock else ""
        return store._call(store._scripts(script.verb), now, *args[1:])
