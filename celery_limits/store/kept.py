"""Which messages the store keeps, by ticket: read from the records, for a drain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .errors import translated
from .keys import glob_escape
from .outcomes import name_of
from .store import Store

__all__ = ["KEPT", "Kept", "interrupted", "read_kept"]

KEPT = ("granted", "waiting", "delayed")
"""How they are counted; `away` with its message in the store counts as granted."""


class Kept(NamedTuple):
    """A ticket that has not begun. `here`: its message is in the store; `queue` is empty for another broker."""

    ticket: str
    state: str
    arrival: int
    rank: int
    queue: str
    due: int
    here: bool

    @property
    def order(self) -> tuple[bool, int, int]:
        """What waits for its time comes last, in the order in which it is due."""
        return self.state == "delayed", self.due, self.arrival


def read_kept(store: Store) -> Iterator[Kept]:
    """Scans, in pages: nobody waits for it. What can't be read is for the audit."""
    client: Any = store.client
    start = len(store.prefix) + len("task:")
    with translated("kept"):
        for name in client.scan_iter(match=f"{glob_escape(store.prefix)}task:*", count=1000):
            task_id = name_of(name)[start:]
            for field, value in client.hscan_iter(name):
                if b":" not in field and (kept := _kept(f"{task_id}.{name_of(field)}", name_of(value))):
                    yield kept


def _kept(ticket: str, record: str) -> Kept | None:
    """See lua/include/decode.lua."""
    fields = record.split("\t", 12)
    if len(fields) < 13 or not (fields[4].isdigit() and fields[9].isdigit()):
        return None
    state, here = fields[0], fields[7] == "own"
    if state not in ("granted", "waiting", "delayed", "away", "finished"):
        return None
    due = fields[10].partition(" ")[0] if state == "delayed" else "0"
    return Kept(ticket, state, int(fields[4]), int(fields[9]), fields[11], int(due) if due.isdigit() else 0, here)


def interrupted(store: Store) -> list[str]:
    """The lists of which a drain, which did not end, has laid a part aside."""
    client: Any = store.client
    prefix = f"{store.prefix}drained:"
    with translated("kept"):
        return [name_of(name)[len(prefix) :] for name in client.scan_iter(match=f"{glob_escape(prefix)}*", count=1000)]
