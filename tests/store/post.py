"""Our transport's side of a store test: the real courier, in the time of the test, over one queue of two priorities.

The scripts are those of the store, so that a test may seed a bug in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from celery_limits.store import Store
from celery_limits.store.caller import Arg
from celery_limits.store.scripts import Script
from celery_limits.transport.courier import Courier

__all__ = ["LISTS", "QUEUE", "Fetched", "Post", "arrival_in", "bare", "list_of", "ticket_in"]

QUEUE = "q"
STEPS = (0, 3)
LISTS = {step: QUEUE + (f"\x06\x16{step}" if step else "") for step in STEPS}
"""The lists of the queue, highest priority first, as kombu names them."""

_STATE = re.compile(rb'"at": \d+, "held": \[[^\]]*\], "fence": (\d+)\}')
_TICKET = re.compile(rb'"ticket": "([^"]*)"')
_UNMOVED = re.compile(rb'"at": 0, "held": \[\], "fence": (\d+)\}')


class Fetched(NamedTuple):
    field: str
    text: bytes

    def __repr__(self) -> str:
        return f"{self.field} {ticket_in(self.text)}"


def list_of(rank: int) -> str:
    return LISTS[max(step for step in STEPS if step <= rank)]


@lru_cache(maxsize=20_000)
def ticket_in(text: bytes) -> str:
    found = _TICKET.search(text)
    return found[1].decode() if found else text.strip(b"{}").decode()


@lru_cache(maxsize=20_000)
def bare(text: bytes) -> bytes:
    """A message without what the store and the transport may write into it; every other byte must stay."""
    return _STATE.sub(b"}", text).replace(b'"redelivered": true, ', b"").replace(b'"redelivered": true', b"")


def arrival_in(text: bytes) -> int:
    """The place in line that a message brings along, as the gate reads it; 0 where it has none."""
    found = _UNMOVED.search(text)
    return int(found[1]) if found else 0


class Post(Courier):
    """Publishes, fetches, acknowledges and gives back, each in one call on the store's connection."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.client, store.prefix)
        self._store = store

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
        lists = LISTS.values() if queue == QUEUE else (queue, f"{queue}\x06\x163")
        rest = ("1", queue, "", "", str(len(STEPS)), *map(str, STEPS), *lists)
        reply = self._ask(self._fetch, "", worker, mark, room, flags, len(acked), *acked, *rest, attempts=1)
        if reply == b"lost":
            return None
        return [Fetched(reply[i].decode(), reply[i + 2]) for i in range(0, len(reply), 3)]

    def _ask(self, script: Script, *args: Arg, attempts: int) -> Any:
        store = self._store
        now: Arg = store._clock() if store._clock else ""
        return store._call(store._scripts(script.verb), now, *args[1:])
