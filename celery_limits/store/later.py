"""What waits in the store for its eta: read in the order in which it is due, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .errors import translated
from .outcomes import name_of
from .store import Store

__all__ = ["Delayed", "count_delayed", "read_delayed"]

PAGE = 500
_QUEUE = 11
"""The place of the queue in a record; see lua/include/decode.lua."""


class Delayed(NamedTuple):
    """`due` is in seconds, by the time of the namespace: see namespace_time.py."""

    ticket: str
    due: float
    queue: str
    message: bytes


def count_delayed(store: Store) -> int:
    client: Any = store.client
    with translated("later"):
        return int(client.zcard(f"{store.prefix}later"))


def read_delayed(store: Store, most: int | None = None) -> Iterator[Delayed]:
    """The first `most`, or all. One that enters its queue meanwhile is left out."""
    client: Any = store.client
    start = 0
    while most is None or start < most:
        stop = start + PAGE if most is None else min(start + PAGE, most)
        with translated("later"):
            page = client.zrange(f"{store.prefix}later", start, stop - 1, withscores=True)
            entries = [(name_of(member).partition("|")[2], due / 1e6) for member, due in page]
            pipe = client.pipeline(transaction=False)
            for ticket, _ in entries:
                task_id, _, nonce = ticket.rpartition(".")
                pipe.hmget(f"{store.prefix}task:{task_id}", nonce, f"{nonce}:m")
            found = pipe.execute() if entries else []
        for (ticket, due), (record, message) in zip(entries, found, strict=True):
            fields = name_of(record or b"").split("\t", _QUEUE + 1)
            if message is not None and len(fields) > _QUEUE:
                yield Delayed(ticket, due, fields[_QUEUE], message)
        if len(page) < stop - start:
            return
        start = stop
