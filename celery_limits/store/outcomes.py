"""What the scripts answer, by name. This is the only place that knows the shape of a reply.

Times are in microseconds of the server's clock, as everywhere in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "QUIET",
    "Admission",
    "Admitted",
    "Aftermath",
    "Beat",
    "Cancelled",
    "Claimed",
    "Corrupt",
    "Discarded",
    "Duplicate",
    "Ended",
    "Expired",
    "Failed",
    "Full",
    "Handed",
    "Joined",
    "Lost",
    "Parked",
    "Refresh",
    "Refreshed",
    "Release",
    "Released",
    "Renewed",
    "Revoked",
    "Stale",
    "Swept",
    "Wait",
]


class Refresh(NamedTuple):
    """This worker is to refresh a floating limit and answer with `refreshed(key, token, size)`."""

    key: str
    token: int
    name: str


class Aftermath(NamedTuple):
    """What a script leaves to do: `more` work (sweep), outbox entries to finish, when the next alarm rings."""

    more: bool = False
    outbox: int = 0
    next_alarm: int | None = None
    refreshes: tuple[Refresh, ...] = ()
    now: int | None = None

    @property
    def due_in(self) -> float | None:
        """Seconds until the next alarm."""
        if self.next_alarm is None or self.now is None:
            return None
        return max(0, self.next_alarm - self.now) / 1e6


QUIET = Aftermath()


class Wait(NamedTuple):
    """The time in seconds that a ticket stood in the line at a link (from 0)."""

    link: int
    seconds: float


class Admitted(NamedTuple):
    """The body may run; `fence` must come back with the release.

    `waits`: the lines that it stood in before; `idle`: the seconds since its turn had come, None if it did not wait.
    """

    fence: int
    after: Aftermath = QUIET
    waits: tuple[Wait, ...] = ()
    idle: float | None = None


class Parked(NamedTuple):
    """The store has the message, at this link (from 0): acknowledge the delivery."""

    link: int
    after: Aftermath = QUIET


class Full(NamedTuple):
    """No room at this link (from 0), and no message was passed to park. Nothing was written."""

    link: int


class Duplicate(NamedTuple):
    """The store or a live worker has this ticket already: acknowledge and drop the delivery."""


class Revoked(NamedTuple):
    """The task was cancelled before."""

    after: Aftermath = QUIET


class Expired(NamedTuple):
    """Its time to start has passed."""

    after: Aftermath = QUIET


class Discarded(NamedTuple):
    """No room, and it does not wait (on_full="discard", or the line is as long as max_waiting)."""

    after: Aftermath = QUIET


class Corrupt(NamedTuple):
    """The ticket's record can't be read. Nothing was written."""

    why: str


class Lost(NamedTuple):
    """This worker holds no lease, or an earlier life of its id is being buried. Nothing was written."""


class Handed(NamedTuple):
    """A ticket that was let go, and runs on the caller's worker from now on. `delivery` is as a fetch brings it: field,
    number of its queue (from 1), message."""

    ticket: str
    admitted: Admitted
    delivery: tuple[bytes, int, bytes]


class Released(NamedTuple):
    """`kept`: the store has the message too, and goes on with it by itself."""

    kept: bool
    after: Aftermath = QUIET
    handed: Handed | None = None


class Stale(NamedTuple):
    """This admission (or refresh) counts for nothing any more. Nothing was changed."""


class Renewed(NamedTuple):
    """The lease goes on."""


class Joined(NamedTuple):
    """A new lease. A worker that had one before has lost it."""


class Swept(NamedTuple):
    """`dead`: the workers whose lease was found lapsed."""

    dead: tuple[str, ...]
    after: Aftermath


class Ended(NamedTuple):
    """A ticket that ended in the store: tell its result backend, then settle it."""

    ticket: str
    fence: int
    message: bytes


class Cancelled(NamedTuple):
    running: int
    ended: tuple[Ended, ...]
    after: Aftermath


class Claimed(NamedTuple):
    """An outbox entry: publish the message (`reason` is None), or tell the result backend why it ended; then settle."""

    ticket: str
    fence: int
    reason: str | None
    message: bytes


class Refreshed(NamedTuple):
    size: int
    after: Aftermath


class Failed(NamedTuple):
    """The refresh failed, this often in a row; the old size stays."""

    times: int
    after: Aftermath


Admission: TypeAlias = Admitted | Parked | Full | Duplicate | Revoked | Expired | Discarded | Corrupt | Lost
Release: TypeAlias = Released | Stale | Corrupt
Beat: TypeAlias = Renewed | Joined | Lost


def text(raw: bytes) -> str:
    """Names out of the store. Anyone can write there, so what is no UTF-8 is shown as well as it can be."""
    return raw.decode(errors="backslashreplace")


def name_of(raw: bytes) -> str:
    """A name that can be turned back into the very bytes it was, whoever wrote them."""
    return raw.decode(errors="surrogateescape")


def aftermath(reply: list[Any]) -> Aftermath:
    """The tail of a reply; the quick way through a script has none."""
    if len(reply) < 7:
        return QUIET
    _, _, more, outbox, next_alarm, refreshes, now = reply[:7]
    return Aftermath(
        bool(more),
        int(outbox),
        int(float(next_alarm)) if next_alarm else None,
        tuple(Refresh(text(key), int(token), text(name)) for key, token, name in refreshes),
        int(now),
    )


def _groups(flat: list[Any], size: int) -> list[list[Any]]:
    return [flat[i : i + size] for i in range(0, len(flat), size)]


def _stood(waits: bytes) -> tuple[Wait, ...]:
    pairs = (pair.partition(b":") for pair in waits.split())
    return tuple(Wait(int(link) - 1, float(us) / 1e6) for link, _, us in pairs if link.isdigit() and us.isdigit())


def _admitted(detail: Any, after: Aftermath) -> Admitted:
    if not isinstance(detail, list):
        return Admitted(int(detail), after)
    fence, waits, idle = detail
    return Admitted(int(fence), after, _stood(waits), float(idle) / 1e6 if idle else None)


def _handed(told: list[Any]) -> Handed | None:
    if not told:
        return None
    field, number, message, ticket, fence, waits = told
    return Handed(text(ticket), Admitted(int(fence), QUIET, _stood(waits), 0.0), (field, number, message))


_DECODERS: dict[bytes, Callable[[list[Any]], Any]] = {
    b"admitted": lambda r: _admitted(r[1], aftermath(r)),
    b"parked": lambda r: Parked(int(r[1]) - 1, aftermath(r)),
    b"full": lambda r: Full(int(r[1]) - 1),
    b"duplicate": lambda _: Duplicate(),
    b"revoked": lambda r: Revoked(aftermath(r)),
    b"expired": lambda r: Expired(aftermath(r)),
    b"discarded": lambda r: Discarded(aftermath(r)),
    b"corrupt": lambda r: Corrupt(text(r[1])),
    b"lost": lambda _: Lost(),
    b"released": lambda r: Released(r[1] == b"kept", aftermath(r), _handed(r[7])),
    b"stale": lambda _: Stale(),
    b"renewed": lambda _: Renewed(),
    b"joined": lambda _: Joined(),
    b"left": aftermath,
    b"swept": lambda r: Swept(tuple(text(name) for name in r[1] or ()), aftermath(r)),
    b"cancelled": lambda r: Cancelled(
        int(r[1][0]), tuple(Ended(text(t), int(f), m) for t, f, m in _groups(r[1][1:], 3)), aftermath(r)
    ),
    b"resized": aftermath,
    b"paused": aftermath,
    b"resumed": aftermath,
    b"refreshed": lambda r: Refreshed(int(r[1]), aftermath(r)),
    b"failed": lambda r: Failed(int(r[1]), aftermath(r)),
    b"claimed": lambda r: tuple(
        Claimed(text(t), int(f), None if what == b"send" else text(what), m) for t, f, what, m in _groups(r[1] or [], 4)
    ),
    b"settled": lambda _: None,
    b"status": lambda r: r[1],
    b"explained": lambda r: r[1],
    b"audited": lambda r: [tuple(text(field) for field in finding) for finding in r[1] or []],
}


RELEASED = Released(False)


def decode(reply: list[Any] | int) -> Any:
    """A reply as its named outcome. A number is the quick answer of the two verbs that every task calls."""
    if isinstance(reply, int):
        return Admitted(reply) if reply else RELEASED
    return _DECODERS[reply[0]](reply)
