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
    "Drained",
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
    "Superseded",
    "Swept",
    "Untied",
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
    """The store has the message, at this link (from 0): acknowledge the delivery.

    `place` of `waiting` is where it stands in the line, or where the link names a group in that group's; None if it was
    parked by an earlier call.
    """

    link: int
    after: Aftermath = QUIET
    place: int | None = None
    waiting: int | None = None


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
    """No room at this link (from 0), and it does not wait (on_full="discard", or a line of max_waiting)."""

    after: Aftermath = QUIET
    link: int = 0


class Superseded(NamedTuple):
    """A task that came later, with the id `by`, runs or waits in its place."""

    by: str
    after: Aftermath = QUIET

    @property
    def reason(self) -> str:
        return superseded_by(self.by)


def superseded_by(task_id: str) -> str:
    """What the result of a superseded task says."""
    return f"superseded by {task_id}"


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


class Untied(NamedTuple):
    """A ticket that gave up its slots, since tickets waited for each other: it waits from its first link on, in its old
    place. `stuck` says who waited where. Without a ticket: a knot at the key that is too large for one script."""

    ticket: str
    key: str
    stuck: str


class Swept(NamedTuple):
    """`dead`: the workers whose lease was found lapsed. `orders`: the tickets that the caller runs and is to end, each
    with the task id that has superseded it. `untied`: those that gave up their slots in a deadlock."""

    dead: tuple[str, ...]
    after: Aftermath
    orders: tuple[tuple[str, str], ...] = ()
    untied: tuple[Untied, ...] = ()


class Ended(NamedTuple):
    """A ticket that ended in the store: tell its result backend, then settle it."""

    ticket: str
    fence: int
    message: bytes


class Cancelled(NamedTuple):
    """`running`: tickets of the task that run, and run on; `cursor`: to call again with, unless it is 0."""

    running: int
    ended: tuple[Ended, ...]
    after: Aftermath
    cursor: int = 0


class Forced(NamedTuple):
    """`let`: tickets that were let through past their limits; `begun`: those that run or have their turn already;
    `keys`: those that had no room."""

    let: int
    begun: int
    keys: tuple[str, ...]
    after: Aftermath


class Claimed(NamedTuple):
    """An outbox entry: publish the message (`reason` is None), or tell the result backend why it ended; then settle."""

    ticket: str
    fence: int
    reason: str | None
    message: bytes


class Drained(NamedTuple):
    """How many tickets were gone through, and how many of them put into the list; `complete`: nothing is laid aside."""

    seen: int
    moved: int
    complete: bool


class Refreshed(NamedTuple):
    size: int
    after: Aftermath


class Failed(NamedTuple):
    """The refresh failed, this often in a row; the old size stays."""

    times: int
    after: Aftermath


Admission: TypeAlias = (
    Admitted | Parked | Full | Duplicate | Revoked | Expired | Discarded | Superseded | Corrupt | Lost
)
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


def _parked(detail: Any, after: Aftermath) -> Parked:
    if not isinstance(detail, list):
        return Parked(int(detail) - 1, after)
    link, place, waiting = detail
    return Parked(int(link) - 1, after, int(place), int(waiting))


def _handed(told: list[Any]) -> Handed | None:
    if not told:
        return None
    field, number, message, ticket, fence, waits = told
    return Handed(text(ticket), Admitted(int(fence), QUIET, _stood(waits), 0.0), (field, number, message))


_DECODERS: dict[bytes, Callable[[list[Any]], Any]] = {
    b"admitted": lambda r: _admitted(r[1], aftermath(r)),
    b"arrived": lambda r: text(r[1]),
    b"parked": lambda r: _parked(r[1], aftermath(r)),
    b"full": lambda r: Full(int(r[1]) - 1),
    b"duplicate": lambda _: Duplicate(),
    b"revoked": lambda r: Revoked(aftermath(r)),
    b"expired": lambda r: Expired(aftermath(r)),
    b"discarded": lambda r: Discarded(aftermath(r), int(r[1]) - 1),
    b"superseded": lambda r: Superseded(text(r[1]), aftermath(r)),
    b"corrupt": lambda r: Corrupt(text(r[1])),
    b"lost": lambda _: Lost(),
    b"released": lambda r: Released(r[1] == b"kept", aftermath(r), _handed(r[7])),
    b"stale": lambda _: Stale(),
    b"renewed": lambda _: Renewed(),
    b"joined": lambda _: Joined(),
    b"left": aftermath,
    b"swept": lambda r: Swept(
        tuple(text(name) for name in r[1] or ()),
        aftermath(r),
        tuple((text(ticket), text(by)) for ticket, by in r[7]),
        tuple(Untied(*map(text, one)) for one in (r[8] if len(r) > 8 else ())),
    ),
    b"cancelled": lambda r: Cancelled(
        int(r[1][1]),
        tuple(Ended(text(t), int(f), m) for t, f, m in _groups(r[1][2:], 3)),
        aftermath(r),
        int(r[1][0]),
    ),
    b"forgotten": aftermath,
    b"forced": lambda r: Forced(int(r[1][0]), int(r[1][1]), tuple(name_of(key) for key in r[1][2:]), aftermath(r)),
    b"resized": aftermath,
    b"paused": aftermath,
    b"resumed": aftermath,
    b"refreshed": lambda r: Refreshed(int(r[1]), aftermath(r)),
    b"failed": lambda r: Failed(int(r[1]), aftermath(r)),
    b"claimed": lambda r: tuple(
        Claimed(text(t), int(f), None if what == b"send" else text(what), m) for t, f, what, m in _groups(r[1] or [], 4)
    ),
    b"settled": lambda r: int(r[1]),
    b"deferred": lambda r: int(r[1]),
    b"drained": lambda r: Drained(int(r[1][0]), int(r[1][1]), bool(r[1][2])),
    b"status": lambda r: r[1],
    b"explained": lambda r: r[1],
    b"audited": lambda r: (int(r[1][0]), [tuple(text(field) for field in finding) for finding in r[1][1]]),
}


RELEASED = Released(False)


def decode(reply: list[Any] | int) -> Any:
    """A reply as its named outcome. A number is the quick answer of the two verbs that every task calls."""
    if isinstance(reply, int):
        return Admitted(reply) if reply else RELEASED
    return _DECODERS[reply[0]](reply)
