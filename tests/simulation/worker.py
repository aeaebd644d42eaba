"""A virtual worker: the lives of its threads, call by call as in `celery_limits.worker`, in virtual time.

One thread renews the lease and keeps house (`worker.lease`), one per pool place asks at the gate (`worker.gate`), one
per body runs it and releases (`worker.exits`); all of them work off the outbox (`worker.outbox`). The ledger is
the real one. A worker is ended by `crash` at any instant, or by `leave` in good order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_limits.store.outcomes import (
    Admitted,
    Aftermath,
    Discarded,
    Duplicate,
    Expired,
    Full,
    Joined,
    Lost,
    Parked,
    Refresh,
    Released,
    Revoked,
)
from celery_limits.worker.exits import Ledger
from tests.store.actors import SECOND
from tests.store.model import POLICY, Worker

from .broker import Delivery
from .schedule import Call, Idle, Process, Sleep, Steps, Thread, Unreachable

if TYPE_CHECKING:
    from .story import Story

__all__ = ["Habits", "VirtualWorker"]

LEASE = round(POLICY.lease * SECOND)
BEATS = 3
NAP = 2 * SECOND
"""Between two sweeps when nothing is due earlier; half a lease, since virtual workers keep house often enough."""

CLAIM = 5
"""Entries of the outbox in one claim."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How a worker was set up. `forked`: bodies are processes of their own, which run on when the parent is stopped."""

    places: int = 2
    forked: bool = True
    terminates: bool = False
    frugal: bool = False
    """It asks without the message first."""
    rate: float = 1.0
    """How fast its clock runs."""


class VirtualWorker:
    def __init__(self, story: Story, name: str, habits: Habits) -> None:
        self.story, self.schedule, self.referee, self.broker = story, story.schedule, story.referee, story.broker
        self.name, self.habits = name, habits
        self.process = Process(name, habits.rate)
        self.ledger = Ledger()
        self.lives = 0
        self.life = self._new_life()
        self.good_until = 0
        self.reachable = True
        self.leaving = False
        self.gone = False
        self.ever_stopped = False
        self.in_hand: dict[Delivery, None] = {}
        self.local: deque[Delivery] = deque()
        self.put_off: deque[Delivery] = deque()
        self.bodies: dict[Thread, tuple[Delivery, Worker, int]] = {}
        self.housekeeper = self.schedule.start(self._live(), self.process)
        self.places = [self.schedule.start(self._place(), self.process) for _ in range(habits.places)]

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def _new_life(self) -> Worker:
        self.lives += 1
        life = Worker(f"{self.name}/{self.lives}")
        self.referee.world.workers[life.name] = life
        return life

    @property
    def local_time(self) -> int:
        return round(self.schedule.now * self.process.rate)

    @property
    def held(self) -> bool:
        return self.reachable and self.local_time < self.good_until

    @property
    def ends_in_time(self) -> bool:
        """It ends its bodies before its lease lapses, unless it was stopped, or its clock is far too slow."""
        return self.habits.terminates and self.process.alive and not self.ever_stopped and self.process.rate >= 1

    def say(self, what: str) -> None:
        self.schedule.say(self.name, what)

    # -- the lease, and housekeeping ------------------------------------------------------------------------

    def _live(self) -> Steps:
        next_beat = 0
        while not self.gone:
            try:
                if self.local_time >= next_beat:
                    yield from self._beat()
                    next_beat = self.local_time + LEASE // BEATS
                pause = yield from self._sweep()
                self._come_back()
                self.story.listening(self.housekeeper)
                yield Idle(max(1000, min(pause, next_beat - self.local_time)))
                if self.story.stop_listening(self.housekeeper):
                    yield Call("listen", self.story.take_bell)
            except Unreachable:
                next_beat = 0
                self._went_away()
                yield Sleep(LEASE // 10)

    def _beat(self) -> Steps:
        sent = self.local_time
        life = self.life
        outcome = yield Call(f"beat({life.name})", lambda: self.referee.renew(life))
        if isinstance(outcome, Lost) or (isinstance(outcome, Joined) and self.good_until):
            self.life = anew = self._new_life()
            self._drop_taken()
            yield Call(f"beat({anew.name})", lambda: self.referee.renew(anew))
        self.good_until = sent + LEASE
        life = self.life
        held = yield Call(f"held_by({life.name})", lambda: self.referee.held_by(life))
        for ticket, fence, back in self.ledger.forgotten(held):
            yield from self._release(ticket, life, fence, back=back)

    def _sweep(self) -> Steps:
        life = self.life
        while True:
            swept = yield Call(f"sweep({life.name})", lambda: self.referee.sweep(life, 100))
            self._refresh_all(swept.after.refreshes, life)
            yield from self._follow_up(swept.after)
            if not swept.after.more:
                due = swept.after.due_in
                return NAP if due is None else min(NAP, round(due * SECOND))

    def _went_away(self) -> None:
        self.reachable = False
        if self.habits.terminates and self.local_time > self.good_until - LEASE // BEATS:
            for body in list(self.bodies):
                self.end_body(body)

    def _come_back(self) -> None:
        self.reachable = True
        if self.put_off:
            self.local.extend(self.put_off)
            self.put_off.clear()
            self.wake()

    def wake(self) -> None:
        for place in self.places:
            self.schedule.wake(place)

    def _refresh_all(self, asked: tuple[Refresh, ...], life: Worker) -> None:
        for refresh in asked:
            self.schedule.start(self._refresh(refresh, life), self.process)

    def _refresh(self, asked: Refresh, life: Worker) -> Steps:
        size, seconds = self.story.refresh_answer()
        yield Sleep(round(seconds * SECOND))
        request = self.referee.request(asked.key, asked.token)
        try:
            yield Call(f"refreshed({asked.key}, {size})", lambda: self.referee.refreshed(request, size))
        except Unreachable:
            self.say(f"the refresh of {asked.key} comes to nothing")

    # -- the gate -------------------------------------------------------------------------------------------

    def _place(self) -> Steps:
        while not self.leaving:
            delivery = self._next()
            if delivery is None and self.story.something_ready:
                delivery = yield from self._take()
            if delivery is None:
                yield Idle(SECOND)
            elif (eta := self.referee.etas.get(delivery.message.ticket, 0)) > self.schedule.clock.now:
                self.schedule.at(self.schedule.now + eta - self.schedule.clock.now + 1, self._due, delivery)
            else:
                yield from self._gate(delivery)

    def _due(self, delivery: Delivery) -> None:
        if delivery in self.in_hand and self.process.alive:
            self.local.append(delivery)
            self.wake()

    def _next(self) -> Delivery | None:
        if self.local:
            return self.local.popleft()
        if (delivery := self.broker.fetch(self)) is not None:
            self.in_hand[delivery] = None
        return delivery

    def _take(self) -> Steps:
        life = self.life
        try:
            taken = yield Call(f"take({life.name})", lambda: self.referee.fetch(life, "q", 2))
        except Unreachable:
            return None
        for message in taken:
            delivery = Delivery(message, self.broker.number(), taken=life.name)
            self.in_hand[delivery] = None
            self.local.append(delivery)
        return self.local.popleft() if taken else None

    def _drop_taken(self) -> None:
        """What was taken in a life that is over, others have been given."""
        for waiting in (self.local, self.put_off):
            for delivery in [d for d in waiting if d.taken and d.taken != self.life.name]:
                waiting.remove(delivery)
                self.in_hand.pop(delivery, None)
                self.story.dropped(delivery.message)

    def _give_back_taken(self) -> None:
        """It leaves, and does not know whether the store has this one or counts on it."""
        for delivery in [d for d in self.in_hand if d.taken]:
            self.in_hand.pop(delivery, None)
            self.broker.publish(delivery.message)

    def _gate(self, delivery: Delivery) -> Steps:
        message, life, frugal = delivery.message, self.life, self.habits.frugal
        if not self.held:
            return self.put_off.append(delivery)
        if message.ticket not in self.ledger:
            self.ledger.enter(message.ticket)
        what = f"admit({message.ticket}, {life.name}, d{delivery.number})"
        try:
            outcome = yield Call(what, lambda: self.referee.admit(message, life, delivery.number, full=not frugal))
            if frugal and isinstance(outcome, Full):
                outcome = yield Call(what, lambda: self.referee.admit(message, life, delivery.number, full=True))
        except Unreachable:
            self.reachable = False
            return self.put_off.append(delivery)
        after = getattr(outcome, "after", Aftermath())
        self._refresh_all(after.refreshes, life)
        if isinstance(outcome, Admitted):
            self.ledger.enter(message.ticket, outcome.fence)
            return (yield from self._run(delivery, life, outcome.fence))
        if self.ledger.is_pending(message.ticket):
            self.ledger.close(message.ticket)
        yield from self._follow_up(after)
        if isinstance(outcome, (Lost, Full)):
            self.put_off.append(delivery)
            return self._drop_taken()
        if isinstance(outcome, (Revoked, Expired, Discarded)):
            message.fate = message.fate or type(outcome).__name__.lower()
        else:
            assert isinstance(outcome, (Parked, Duplicate)), outcome
        return self._done_with(delivery)

    def _done_with(self, delivery: Delivery) -> None:
        self.broker.acknowledge(delivery)
        self.in_hand.pop(delivery, None)

    # -- bodies ---------------------------------------------------------------------------------------------

    def _run(self, delivery: Delivery, life: Worker, fence: int) -> Steps:
        """The pool place is taken until the body is over."""
        if not delivery.message.late:
            self.broker.acknowledge(delivery)
        process = self.process
        if self.habits.forked:
            process = Process(f"{self.name} child", process.rate, parent=self.process)
        body = self.schedule.start(self._body(delivery, life, fence), process)
        self.bodies[body] = (delivery, life, fence)
        while body in self.bodies and not body.over:
            yield Idle(5 * SECOND)

    def _body(self, delivery: Delivery, life: Worker, fence: int) -> Steps:
        message = delivery.message
        self.story.body_starts(self, message, life, fence)
        yield Sleep(round(self.story.duration() * SECOND))
        self.story.body_ends(message)
        yield from self._release(message.ticket, life, fence)
        self.ledger.close(message.ticket)
        self._body_over(delivery)

    def _body_over(self, delivery: Delivery) -> None:
        for body in [b for b, (whose, _, _) in self.bodies.items() if whose is delivery]:
            del self.bodies[body]
        if delivery.message.late:
            self.broker.acknowledge(delivery)
        self.in_hand.pop(delivery, None)
        self.wake()

    def end_body(self, body: Thread) -> None:
        """Its process is killed; the parent sees it and gives the slots back."""
        delivery, life, fence = self.bodies.pop(body)
        self.schedule.kill(body)
        body.process.alive = body.process is self.process
        self.say(f"the body of {delivery.message.ticket} is killed")
        delivery.message.excused = True
        self.schedule.start(self._bury_body(delivery, life, fence), self.process)

    def _bury_body(self, delivery: Delivery, life: Worker, fence: int) -> Steps:
        message = delivery.message
        back = message.late and not message.fate
        told = yield from self._release(message.ticket, life, fence, back=back)
        self.ledger.close(message.ticket, owed_back=back and told is None)
        if not back:
            message.fate = message.fate or "lost"
        elif delivery.taken and not (isinstance(told, Released) and told.kept):
            self.broker.publish(message)
        else:
            self.broker.put_back(delivery)
        self._body_over(delivery)

    def _release(self, ticket: str, life: Worker, fence: int, *, back: bool = False) -> Steps:
        """None when the store could not be told: the next beat makes up for it."""
        message = self.referee.world.messages[ticket]
        what = f"release({ticket}, {life.name}, {fence}{', back' if back else ''})"
        try:
            outcome = yield Call(what, lambda: self.referee.give_up(message, life, fence, back=back))
        except Unreachable:
            return None
        if isinstance(outcome, Released):
            yield from self._follow_up(outcome.after)
        return outcome

    # -- the outbox -----------------------------------------------------------------------------------------

    def _follow_up(self, after: Aftermath) -> Steps:
        if after.outbox:
            try:
                yield from self._work_off()
            except Unreachable:
                self.say("the outbox has to wait")

    def _work_off(self) -> Steps:
        while errands := (yield Call("claim", lambda: self.referee.claim(CLAIM))):
            finished = []
            for errand in errands:
                yield Sleep(round(self.story.errand_seconds() * SECOND))
                if self.story.errand_done(errand):
                    finished.append(errand.claim)
            if finished:
                yield Call("settle", partial(self.referee.settle, finished))
            if len(finished) < len(errands):
                break

    # -- the end --------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Nobody hears of it any more. The broker notices sooner or later."""
        self.process.alive = False
        self.gone = True
        for body in self.bodies:
            body.process.alive = False
        self.in_hand.clear()
        for life in self._lives():
            self.referee.crash(life)

    def lost_broker(self) -> None:
        """The connection is gone, and with it what it had delivered; bodies run on."""
        for delivery in list(self.put_off):
            if not delivery.taken:
                self.put_off.remove(delivery)
                self.in_hand.pop(delivery, None)
                if self.ledger.is_pending(delivery.message.ticket):
                    self.ledger.close(delivery.message.ticket, owed_back=True)

    def _lives(self) -> list[Any]:
        return [w for name, w in self.referee.world.workers.items() if name.rpartition("/")[0] == self.name]

    def leave(self) -> None:
        self.leaving = True
        self.wake()
        self.schedule.start(self._leave(), self.process)

    def _leave(self) -> Steps:
        """Bodies may end by themselves for a while, then they are killed; what was only prefetched goes back."""
        patience = 20
        while not all(place.over for place in self.places):
            yield Sleep(SECOND // 5)
            patience -= 1
            for body in list(self.bodies) if patience < 0 else ():
                self.end_body(body)
        self._give_back_taken()
        self.gone = True
        life = self.life
        try:
            yield Call(f"leave({life.name})", lambda: self.referee.leave(life))
        except Unreachable:
            self.say("could not leave: its lease will lapse")
        self.story.has_left(self)
