"""A message as the model knows it: what it wants, how it is written, and what must be remembered of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache

from celery_limits.declare.chain import ConcurrencyLink, DebounceLink, Link, RateLink
from celery_limits.declare.workers_size import FOLLOWS
from celery_limits.message.header import Header
from celery_limits.store.record import chain_fields, record_rest

from .actors import SECOND
from .model_view import Record
from .post import bare

__all__ = ["Message", "Place", "Spec", "spec_of"]

Place = tuple[int, float]
"""Where one stands in every line: (rank, arrival)."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A link in the model's words. `size` and `interval` are what the message declares, not what is in force."""

    kind: str
    key: str
    weight: int
    size: int = 0
    longest: int | None = None
    interval: float = 0.0
    burst: int = 1
    every: int = 0
    group: str = ""
    share: float = 1.0


@lru_cache(maxsize=1024)
def spec_of(link: Link) -> Spec:
    return replace(_ungrouped_spec(link), group=link.group or "", share=link.share)


def _ungrouped_spec(link: Link) -> Spec:
    if isinstance(link, RateLink):
        return Spec("rate", link.key, link.cost, interval=link.interval_us or 0.0, burst=link.burst)
    assert not isinstance(link, DebounceLink)
    longest = 0 if link.on_full == "discard" else link.max_waiting
    if isinstance(link, ConcurrencyLink):
        if link.limit == FOLLOWS:
            return Spec("workers", link.key, link.weight, 0, longest)
        return Spec("fixed", link.key, link.weight, link.limit, longest)
    return Spec("floating", link.key, link.weight, link.default, longest, every=round(link.every * SECOND))


@dataclass(eq=False, slots=True)
class Message:
    """A published message, and what must be remembered of it for as long as the store knows its ticket.

    One that has a queue goes through our own transport; any other through a broker that knows nothing of the store.
    """

    ticket: str
    links: tuple[Link, ...]
    rank: int
    late: bool
    queue: str
    expires: int | None
    cut: int | None
    eta: int | None = None
    specs: tuple[Spec, ...] = ()
    body: bytes = b""
    bare: bytes = b""
    arrivals: set[int] = field(default_factory=set)
    """What our transport has numbered its copies with."""
    place: Place | None = None
    reached: int = 0
    deadline: float | None = None
    """Until when a grant may be picked up, or a place is remembered."""
    fate: str = ""
    """How it ended, once it has: done, lost (acknowledged early by a worker that died), or the reason that was told."""
    done: int = 0
    """When it was done last."""
    excused: bool = False
    """Something crashed or was cut off on the way, so it may run more than once; never at once, though."""

    def __post_init__(self) -> None:
        self.specs = tuple(spec_of(link) for link in self.links)
        if self.queue:
            self.cut = 0
        self.body = self._envelope() if self.queue else f"{{{self.ticket}}}".encode()
        self.bare = bare(self.body)

    def _envelope(self) -> bytes:
        """As kombu writes it, as far as anybody looks."""
        header = Header.fresh(self.ticket, self.links).dump()
        times = {"eta": self.eta and "later", "expires": self.expires and "later"}
        headers = {"id": self.task, **times, "limits": header}
        properties = {"delivery_info": {"routing_key": self.queue}, "priority": self.rank}
        return json.dumps({"body": "", "headers": headers, "properties": properties}).encode()

    def stamp(self, now: int) -> tuple[str, ...]:
        """As in `celery_limits.transport.early_park`: task id, nonce, the rest of its record, links."""
        chain, fields, _ = chain_fields(self.links, self.queue)
        task_id, _, nonce = self.ticket.rpartition(".")
        until = "" if self.expires is None else str(self.expires)
        rest = record_rest(
            chain, rank=self.rank, delivery="", queue=self.queue, until=until, since=now, late=False, cut=0
        )
        return task_id, nonce, rest, *fields

    def __repr__(self) -> str:
        return f"<{self.ticket} {' '.join(s.key for s in self.specs)}>"

    @property
    def task(self) -> str:
        return self.ticket.rpartition(".")[0]

    def is_payload(self, text: bytes, record: Record) -> bool:
        """Is this what goes back to the queue: the body, with its state written where its publisher marked that?"""
        if self.cut is None:
            return text == self.body
        held = [spec.key for spec in self.specs[: record.passed] if spec.kind != "rate"]
        keys = json.dumps(held, separators=(",", ":"))
        state = f'"at": {record.passed}, "held": {keys}, "fence": {record.fence}'.encode()
        if self.queue:
            return bare(text) == self.bare and state in text
        return text == self.body[: self.cut] + state + self.body[self.cut :]

    def forget(self) -> None:
        self.place, self.reached, self.deadline = None, 0, None
