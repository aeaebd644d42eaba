"""The model: what docs/guarantees.md promises, as plain Python, and the world around the store where it must hold.

`World` is a broker that may deliver twice, workers that may die, bodies that run, and the limits in force. It decides
what an admission must answer; `model_checks` says what must be true after any step; `model_machine` makes the steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from celery_limits.declare.limits import parse_rate
from celery_limits.store import Policy
from celery_limits.store.outcomes import Admitted, Claimed, Discarded, Duplicate, Expired, Full, Lost, Parked, Revoked

from .actors import SECOND, Clock
from .model_fair import Order, spec_at
from .model_message import Message, Place, Spec
from .model_view import Record, View

__all__ = [
    "POLICY",
    "Body",
    "Errand",
    "Floating",
    "Message",
    "Place",
    "Request",
    "Spec",
    "Waiter",
    "Worker",
    "World",
]

POLICY = Policy(lease=4, grant_timeout=5, place_ttl=600, revoke_ttl=3600, refresh_timeout=20)


@dataclass(eq=False, slots=True)
class Body:
    """One run of a message. Until it is acknowledged the broker has it (`copy`), or our own transport (`field`)."""

    message: Message
    worker: Worker
    life: int
    fence: int
    delivery: str
    copy: bool
    field: str = ""

    @property
    def admission(self) -> tuple[str, str, int]:
        return self.message.ticket, self.worker.name, self.fence

    @property
    def counts(self) -> bool:
        """Its worker has had its lease ever since."""
        return self.worker.leased and self.life == self.worker.life


@dataclass(eq=False, slots=True)
class Worker:
    name: str
    leased: bool = False
    beaten: int = 0
    life: int = 0
    crashed: bool = False
    places: int = 1
    """Of its pool, as it says with its next beat."""
    told: int = 0

    def lose(self) -> None:
        self.leased = False
        self.life += 1


@dataclass(eq=False, slots=True)
class Request:
    """A worker was asked to refresh a floating limit."""

    key: str
    token: int
    worker: Worker
    life: int
    until: int

    def stands(self, now: int) -> bool:
        """Nobody else may be asked, and its answer must be taken."""
        return self.until > now and self.worker.leased and self.life == self.worker.life


@dataclass(slots=True)
class Floating:
    """What is known of a floating limit, and who was asked last to refresh it."""

    size: int | None = None
    fresh: int = 0
    fails: int = 0
    asked: Request | None = None
    forgotten: int = 0
    """The size that the last sweep, and no earlier one, has forgotten: what it did before went by that."""


@dataclass(eq=False, slots=True)
class Errand:
    """A claimed entry of the outbox. `run`: it was published, or its end was told."""

    message: Message
    claim: Claimed
    run: bool = False


@dataclass(frozen=True, slots=True)
class Waiter:
    place: Place
    message: Message
    spec: Spec


Expected = Admitted | Parked | Full | Duplicate | Revoked | Expired | Discarded | Lost


@dataclass
class World:
    clock: Clock
    messages: dict[str, Message] = field(default_factory=dict)
    broker: list[Message] = field(default_factory=list)
    """Copies that the broker will deliver some day, in any order."""
    bodies: list[Body] = field(default_factory=list)
    errands: list[Errand] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    ghosts: list[tuple[str, str, int]] = field(default_factory=list)
    """Admissions that have been released, or that count no more."""
    workers: dict[str, Worker] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    rates: dict[str, tuple[float, int]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    floating: dict[str, Floating] = field(default_factory=dict)
    arrival_times: dict[str, float] = field(default_factory=dict)
    """GCRA's theoretical arrival time of each rate key, from the passes seen."""
    passes: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """(time, cost) of every pass of a rate key since its rate was last steered."""
    remembered: dict[str, int] = field(default_factory=dict)
    """Cancelled task ids, and until when at least."""
    order: Order = field(default_factory=Order)
    fence: int = 0
    pulse: int | None = None
    """When a worker was last heard."""
    noticed: bool = False
    grace: int = 0

    # -- what is in force -------------------------------------------------------------------------------

    def size(self, spec: Spec) -> int:
        if spec.key in self.sizes:
            return self.sizes[spec.key]
        if spec.kind == "workers":  # all of them consume the one queue that there is
            return sum(worker.told for worker in self.workers.values() if worker.leased)
        refreshed = self.floating[spec.key].size if spec.kind == "floating" else None
        return spec.size if refreshed is None else refreshed

    def rate(self, spec: Spec) -> tuple[float, int]:
        """Interval and burst; a burst never bars what costs more than it."""
        interval, burst = self.rates.get(spec.key, (spec.interval, spec.burst))
        return interval, max(burst, spec.weight)

    def steer(self, key: str, size: int | str | None, burst: int = 1) -> None:
        self.sizes.pop(key, None)
        self.rates.pop(key, None)
        self.passes.pop(key, None)
        if isinstance(size, int):
            self.sizes[key] = size
        elif size is not None:
            self.rates[key] = (parse_rate(size).interval_us or 0.0, burst)

    def due(self, spec: Spec, now: int) -> float:
        """When a rate lets it pass; infinity where it never does."""
        interval, burst = self.rate(spec)
        if interval == 0:
            return math.inf
        return max(self.arrival_times.get(spec.key, 0.0), now) + interval * spec.weight - interval * burst

    # -- the walk, as the guarantees tell it -----------------------------------------------------------

    def standing(self, view: View, key: str) -> list[Waiter]:
        """Who waits at a key, in turn."""
        found = []
        for ticket in view.lines.get(key, ()):
            message = self.messages[ticket]
            assert message.place is not None, f"{ticket} stands in line but was never met"
            spec = next(s for s in message.specs if s.key == key)
            found.append(Waiter(message.place, message, spec))
        return sorted(found, key=lambda waiter: waiter.place)

    def bars(self, ahead: Spec, spec: Spec) -> bool:
        """In turn: nobody passes a waiter of its own size or a larger one; a rate of 0 bars nobody."""
        if spec.kind == "rate":
            return self.rate(ahead)[0] != 0
        return self.size(ahead) >= self.size(spec)

    def barred(self, view: View, ticket: str, place: Place, spec: Spec) -> bool:
        """`view` may be one of before: what is there of holders and waiters counts, not what has come since."""
        known, line = self.order.at(spec), self.standing(view, spec.key)
        holders = {t: spec_at(self.messages[t], spec.key) for t in view.holders.get(spec.key, ())}
        shares = replace(known, holders=holders, line={w.message.ticket: (w.place, w.spec) for w in line})
        return any(self.bars(other, spec) for _, other in shares.ahead(ticket, place, spec))

    def fits(self, view: View, spec: Spec, now: int) -> bool:
        if spec.kind == "rate":
            # The store keeps times as doubles: today's microseconds are exact to a quarter.
            return self.due(spec, now) < now + 1
        return view.used(spec.key) + spec.weight <= self.size(spec)

    def may_enter(self, view: View, ticket: str, place: Place, spec: Spec, now: int) -> bool:
        if spec.key in self.paused:
            return False
        return self.fits(view, spec, now) and not self.barred(view, ticket, place, spec)

    def walk(self, view: View, message: Message, start: int, now: int, arrival: int = 0) -> int:
        """The first link that stops it, or their number. What was paid at a rate once is not paid again."""
        place = message.place or (message.rank, arrival or math.inf)
        for i in range(start, len(message.specs)):
            spec = message.specs[i]
            paid = spec.kind == "rate" and i < message.reached
            if not paid and not self.may_enter(view, message.ticket, place, spec, now):
                return i
        return len(message.specs)

    def turned_away(self, view: View, message: Message, i: int) -> bool:
        """It does not wait here; but one that had been past this link before is not turned away at it."""
        spec = message.specs[i]
        return i >= message.reached and spec.longest is not None and view.waiting(spec.key) >= spec.longest

    def admission(
        self,
        view: View,
        message: Message,
        worker: Worker,
        delivery: str,
        now: int,
        *,
        full: bool,
        field: str = "",
        arrival: int = 0,
        new: bool = False,
    ) -> Expected:
        """What `admit` must answer. `full`: the call carries the message; `field`: or says where it is."""
        start, record = 0, view.tickets.get(message.ticket)
        if not worker.leased:
            return Lost()
        here = not field or field in view.unacked.get(worker.name, ())
        if record:
            known = self._known(message, record, delivery, here=here, full=full or bool(field), new=new)
            if known is not None:
                return known
            start = record.passed
        if not here:
            return Duplicate()
        if message.task in view.cancelled:
            return Revoked()
        if message.expires is not None and message.expires <= self.clock.server:
            return Expired()
        stop = self.walk(view, message, start, now, arrival)
        if stop == len(message.specs):
            return Admitted(0)
        if self.turned_away(view, message, stop):
            return Discarded()
        return Parked(stop) if full or field or (record and record.kept) else Full(stop)

    def _known(
        self, message: Message, record: Record, delivery: str, *, here: bool, full: bool, new: bool
    ) -> Expected | None:
        """What a delivery is to a ticket that is known; None where it is the ticket's own message."""
        again = record.delivery == delivery
        if record.state == "running":
            spared = full or record.kept  # a copy may only be dropped once the store has one in case the first dies
            if not here:  # it was given back, be it the very one that was admitted: another copy of it will come
                return Duplicate()
            return Admitted(record.fence) if again else Duplicate() if spared else Full(0)
        if record.state == "waiting":
            return Parked(record.passed) if again else Duplicate()
        before = again or (new and not message.queue)  # it was parked from this very copy, whose answer was lost
        parked = before and (record.kept or record.sends)
        elsewhere = record.kept and (message.queue or not record.sends)
        if record.state in ("ended", "finished") or elsewhere or parked:
            return Duplicate()
        return None

    def stands(self, view: View, message: Message, now: int, arrival: int) -> bool:
        """Does a message that has not come to the gate yet join the line of its first link?"""
        if message.task in view.cancelled or message.ticket in view.tickets:
            return False
        return self.walk(view, message, 0, now, arrival) == 0 and not self.turned_away(view, message, 0)

    # -- the world around the store ---------------------------------------------------------------------

    def feel_pulse(self, now: int, *, heard: bool) -> None:
        """When no worker was heard for half a lease, nobody dies until all had a lease's time from the first notice."""
        grace = self.grace_from(now, heard=heard)
        if grace != self.grace:
            self.grace, self.noticed = grace, True
        if heard:
            self.pulse, self.noticed = now, False
        if not any(worker.leased for worker in self.workers.values()):
            self.pulse = None

    def grace_from(self, now: int, *, heard: bool) -> int:
        """Until when nobody dies, once this call has shown whether it was silent until now."""
        lease = round(POLICY.lease * SECOND)
        silent = self.pulse is not None and now - self.pulse > lease / 2 and (heard or not self.noticed)
        return now + lease if silent else self.grace

    def copies(self, message: Message, view: View) -> bool:
        """Is there a copy outside the store: with a broker, or where a body runs?"""
        if message.ticket in view.carried or message in self.broker:
            return True
        return any(b.message is message and not b.worker.crashed for b in self.bodies)
