"""The `limits` header: what a message says about its chain, and how far it has walked it.

`read_header` takes whatever stands under that name, written by anyone, and returns a `Header` that is sound
in every respect or raises `CorruptChain`; there is no third way. What to do with a corrupt message, and
whether to believe a sound one, is left to the worker.

On the wire it is `{"v", "ticket", "links", "arrival", "at", "held", "fence"}`, always all seven and in that order:
the store writes the arrival when the message is published, and the last three as the ticket moves, without parsing the
rest. Version 1 has no arrival; it is read, and not written any more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from celery_limits.declare.chain import MAX_LINKS, AnyLink, Link, check_keys_differ, reason_of
from celery_limits.declare.links import HOLDING
from celery_limits.declare.template import check_plain
from celery_limits.errors import CorruptChain, Refused, ResolutionError, shorten

__all__ = [
    "HEADER",
    "MAX_TASK_ID_BYTES",
    "VERSION",
    "Header",
    "Stamp",
    "can_be_limited",
    "check_ticket",
    "derived_ticket",
    "new_ticket",
    "queue_mark",
    "read_header",
    "task_id_of",
    "ticket_in",
]

HEADER: Final = "limits"
WORKER_HEADER: Final = "limits_worker"
"""The worker that admitted the task, for the process that runs its body. A worker writes it, and never believes it."""
VERSION: Final = 2
MAX_TICKET_BYTES: Final = 255
MAX_TASK_ID_BYTES: Final = MAX_TICKET_BYTES - len(".n")
"""A task with a longer id can't be limited: no ticket has room for it."""
MAX_FENCE: Final = 2**53
"""The largest whole number that Lua and JSON readers keep exactly."""

_FIELDS: Final = {
    1: ("v", "ticket", "links", "at", "held", "fence"),
    2: ("v", "ticket", "links", "arrival", "at", "held", "fence"),
}
_ARRIVAL: Final = re.compile(r"(?:[1-9][0-9]{0,15}-[0-9a-f]{20})?")
_MAX_LINK_FIELDS: Final = 10
# The store writes suffixes after a nonce, so it has none of their characters.
_NONCE: Final = re.compile(r"[A-Za-z0-9_-]+")


def check_ticket(ticket: str) -> str:
    check_plain(ticket, "the ticket", MAX_TICKET_BYTES)
    task_id, _, nonce = ticket.rpartition(".")
    if not task_id or not _NONCE.fullmatch(nonce):
        raise Refused(f"the ticket {shorten(ticket)} is not '<task id>.<nonce>'")
    return ticket


def _check_arrival(arrival: str) -> str:
    if not _ARRIVAL.fullmatch(arrival):
        raise Refused(f"the arrival {shorten(arrival)} is not '<number>-<seal>' as the store writes it")
    return arrival


def _bounded(value: object) -> object:
    """JSON has lists where we have tuples. The length is checked before the contents are read."""
    if isinstance(value, (list, tuple)):
        if len(value) > MAX_LINKS:
            raise Refused(f"{len(value)} entries; at most {MAX_LINKS} are allowed")
        return tuple(value)
    return value


def _bounded_links(value: object) -> object:
    value = _bounded(value)
    if isinstance(value, tuple):
        if not value:
            raise Refused("the list of links is empty, and that never means no limits")
        for link in value:
            if isinstance(link, dict) and len(link) > _MAX_LINK_FIELDS:
                raise Refused(f"a link with {len(link)} fields: {shorten(link)}")
    return value


class Header(BaseModel):
    """Where one message stands in its chain. `Header(ticket=..., links=...)` is one that has not started."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    v: Literal[1, 2] = VERSION
    ticket: Annotated[str, AfterValidator(check_ticket)]
    links: Annotated[tuple[AnyLink, ...], BeforeValidator(_bounded_links)]
    arrival: Annotated[str, AfterValidator(_check_arrival)] = ""
    """Its number in the order of publishing, with the store's seal on it (store/lua/include/seal.lua); empty where the
    store has not seen it published."""
    at: Annotated[int, Field(ge=0, le=MAX_LINKS)] = 0
    """The next link to walk, from 0; `len(links)` when the chain is done."""
    held: Annotated[tuple[str, ...], BeforeValidator(_bounded)] = ()
    """The keys of the concurrency links before `at`, all of them and in order."""
    fence: Annotated[int, Field(ge=0, le=MAX_FENCE)] = 0

    @model_validator(mode="after")
    def _is_consistent(self) -> Header:
        links, at = self.links, self.at
        check_keys_differ(links)
        if at > len(links):
            raise Refused(f"position {at} is beyond the end of a chain of {len(links)}")
        due = _holding(links[:at])
        if self.held != due:
            raise Refused(f"held keys {shorten(self.held)}, but the links before {at} are {shorten(due)}")
        return self

    @classmethod
    def fresh(cls, ticket: str, links: tuple[Link, ...], arrival: str = "") -> Header:
        """One that has not started, of a ticket and links that were made, and so checked, here."""
        return cls.model_construct(v=VERSION, ticket=ticket, links=links, arrival=arrival, at=0, held=(), fence=0)

    def dump(self) -> dict[str, Any]:
        """A dict for the message headers, JSON-able, fields at their defaults left out of the links."""
        return {
            "v": VERSION,
            "ticket": self.ticket,
            "links": [dict(link.wire) for link in self.links],
            "arrival": self.arrival,
            "at": self.at,
            "held": list(self.held),
            "fence": self.fence,
        }


class Stamp(dict[str, Any]):
    """A dumped header on its way out, which still knows what it was made from. To everyone else it is the dict."""

    __slots__ = ("header",)

    def __init__(self, header: Header) -> None:
        super().__init__(header.dump())
        self.header = header


def _holding(links: Iterable[Link]) -> tuple[str, ...]:
    return tuple([link.key for link in links if link.kind in HOLDING])


_KNOWN_CHAINS: Final = 4096
_known: dict[str, tuple[Link, ...]] = {}
"""Chains that were validated before, by their text: most messages of a task have one of a few."""


def read_header(obj: object) -> Header:
    """The `Header` that `obj` is, or `CorruptChain`: never another error, never "no limits"."""
    try:
        _check_envelope(obj)
        return _with_known_chain(obj) or _remember(Header.model_validate(obj), obj)
    except Refused as error:
        raise CorruptChain(f"corrupt limits header: {error}") from None
    except ValidationError as error:
        raise CorruptChain(f"corrupt limits header: {_place_of(error)}{reason_of(error)}") from None


def _with_known_chain(obj: Any) -> Header | None:
    """The header, if its chain was seen before and the rest is as plain as it mostly is; else the model decides."""
    ticket, held, at, fence = obj["ticket"], obj["held"], obj["at"], obj["fence"]
    arrival = obj.get("arrival", "")
    links = _known.get(_text_of(obj["links"]))
    if links is None or type(ticket) is not str or type(held) is not list or type(at) is not int:
        return None
    if type(fence) is not int or not 0 <= fence <= MAX_FENCE or not 0 <= at <= len(links):
        return None
    if type(arrival) is not str or not _ARRIVAL.fullmatch(arrival):
        return None
    due = _holding(links[:at])
    if held != list(due):
        return None
    try:
        check_ticket(ticket)
    except Refused:
        return None
    return Header.model_construct(v=obj["v"], ticket=ticket, links=links, arrival=arrival, at=at, held=due, fence=fence)


def _remember(header: Header, obj: Any) -> Header:
    if len(_known) >= _KNOWN_CHAINS:
        _known.clear()
    if text := _text_of(obj["links"]):
        _known[text] = header.links
    return header


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def _text_of(links: Any) -> str:
    """What tells one list of links from any other; '' for one that no JSON reader would make."""
    if type(links) is not list:
        return ""
    for link in links:
        if type(link) is not dict or not _PLAIN.issuperset(map(type, link.values())):
            return ""
    try:
        return repr(links)
    except ValueError:  # a number with more digits than Python writes
        return ""


def _check_envelope(obj: object) -> None:
    """What the model can't say: no field may be left to its default, and the version decides the rest."""
    if not isinstance(obj, dict):
        raise Refused(f"not a mapping but {shorten(obj)}")
    version = obj.get("v")
    fields = _FIELDS.get(version) if type(version) is int else None  # True and 1.0 equal 1 too
    if fields is None:
        raise Refused(f"version {shorten(version)} is not one of those understood here, 1 and {VERSION}")
    for name in fields:
        if name not in obj:
            raise Refused(f"{name!r} is missing")
    if len(obj) != len(fields):
        unknown = next(name for name in obj if name not in fields)
        raise Refused(f"unknown field {shorten(unknown)}")


def _place_of(error: ValidationError) -> str:
    place = error.errors(include_url=False, include_context=False)[0]["loc"]
    parts = [str(part) for part in place if not str(part).startswith(("constrained-", "literal["))]
    return f"{'.'.join(parts)[:60]}: " if parts else ""


def new_ticket(task_id: str) -> str:
    """A ticket for a message about to be published; a retry of the same task gets another one."""
    return _ticket(task_id, os.urandom(6).hex())


def derived_ticket(task_id: str, body: bytes | memoryview | str, *marks: str | int | None) -> str:
    """The ticket of a message that carries none: a function of the message, so its redelivery has the same.

    marks: whatever else tells two publishes with one task id apart *and* is the same on redelivery, such as
    retries, eta, or the delivery tag that kombu's Redis transport makes at publish. Not an AMQP delivery tag,
    not the redelivered flag, not the time.
    """
    # A transport may hand over one body as bytes, as a view or as text; to a ticket they are the same.
    content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)
    digest = blake2b(content, digest_size=8)
    digest.update(repr((len(content), task_id, *marks)).encode("utf-8", "backslashreplace"))
    return _ticket(task_id, digest.hexdigest())


def ticket_in(ticket: str, queue: str) -> str:
    """The ticket of a message's copy in one queue: an exchange may have put copies into several, and each is a message
    of its own. A copy that comes back to the same queue keeps it."""
    mark = queue_mark(queue)
    return ticket if ticket.endswith(mark) else f"{ticket}{mark}"


@lru_cache(maxsize=1024)
def queue_mark(queue: str) -> str:
    return "-" + blake2b(queue.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _ticket(task_id: str, nonce: str) -> str:
    if type(task_id) is not str or not task_id:
        raise ResolutionError(f"a limited task needs a nonempty str as its task id, not {shorten(task_id)}")
    try:
        return check_plain(f"{task_id}.{nonce}", "the task id with its nonce", MAX_TICKET_BYTES)
    except Refused as error:
        raise ResolutionError(f"task id {shorten(task_id)} can't be used under limits: {error}") from None


def can_be_limited(task_id: object) -> bool:
    """Whether a ticket could have this task id, by its length."""
    return len(str(task_id).encode("utf-8", "surrogatepass")) <= MAX_TASK_ID_BYTES


def task_id_of(ticket: str) -> str:
    """The task id in a ticket. Task ids may have dots, nonces have none."""
    return ticket.rpartition(".")[0]
