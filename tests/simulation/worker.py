"""A virtual worker: the lives of its threads, call by call as in `celery_limits.worker`, in virtual time.

One thread renews the lease and keeps house (`household`), one per pool place asks at the gate (`worker.gate`), one per
body runs it (`bodies`), one fetches from our own transport (`consumer`); all of them work off the
outbox. The ledger is the real one. A worker is ended by `crash` at any instant, or by `leave` in good order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from celery_limits.store.outcomes import (
    Admitted,
    Aftermath,
    Discarded,
    Duplicate,
    Expired,
    Full,
    Lost,
    Parked,
    Revoked,
)
from tests.store.actors import SECOND

from .bodies import Bodies
from .broker import Delivery
from .consumer import Consumer
from .household import Habits
from .schedule import Call, Idle, Sleep, Steps, Unreachable

if TYPE_CHECKING:
    from .story import Story

__all__ = ["Habits", "VirtualWorker"]


class VirtualWorker(Bodies):
    def __init__(self, story: Story, name: str, habits: Habits) -> None:
        super().__init__(story, name, habits)
        self.gone = False
        self.put_off: deque[Delivery] = deque()
        self.consumer = Consumer(self, habits.prefetch)
        self.places = [self.schedule.start(self._place(), self.process) for _ in range(habits.places)]

    def came_back(self) -> None:
        if self.put_off:
            self.local.extend(self.put_off)
            self.put_off.clear()
            self.wake()

    def wake(self) -> None:
        for place in self.places:
            self.schedule.wake(place)

    # -- the gate -------------------------------------------------------------------------------------------

    def _place(self) -> Steps:
        while not self.leaving:
            delivery = self._next()
            if delivery is None:
                yield Idle(SECOND)
            elif (eta := delivery.message.eta or 0) > self.schedule.clock.now:
                self.schedule.at(self.schedule.now + eta - self.schedule.clock.now + 1, self._due, delivery)
            else:
                self.busy.add(delivery)
                yield from self._gate(delivery)
                self.busy.discard(delivery)

    def _next(self) -> Delivery | None:
        if self.local:
            return self.local.popleft()
        if (delivery := self.broker.fetch(self)) is not None:
            self.in_hand[delivery] = None
        return delivery

    def receive(self, delivery: Delivery) -> None:
        """From our own transport."""
        self.local.append(delivery)
        self.wake()

    def forget_buffered(self) -> list[Delivery]:
        """What our own transport has brought and no place has begun with; the connection that it came by is gone."""
        dropped = [d for d in self.in_hand if d.field and d not in self.busy]
        for delivery in dropped:
            self._forget(delivery)
        return dropped

    def _forget(self, delivery: Delivery) -> None:
        for waiting in (self.local, self.put_off):
            if delivery in waiting:
                waiting.remove(delivery)
        self.in_hand.pop(delivery, None)
        self.ledger.ask_no_more(delivery.message.ticket, delivery.number)

    def _gate(self, delivery: Delivery) -> Steps:
        message, life, frugal = delivery.message, self.life, self.habits.frugal
        if message.expires is not None and message.expires <= self.schedule.clock.now and self.habits.forked:
            return self._expire(delivery)
        if not self.held:
            return self.put_off.append(delivery)
        self.ledger.ask(message.ticket, delivery.number)
        what = f"admit({message.ticket}, {life.name}, d{delivery.number})"
        try:
            outcome = yield Call(what, lambda: self.referee.admit(message, life, delivery, full=not frugal))
            if frugal and isinstance(outcome, Full):
                outcome = yield Call(what, lambda: self.referee.admit(message, life, delivery, full=True))
        except Unreachable:
            self.reachable = False
            return self.put_off.append(delivery)
        after = getattr(outcome, "after", Aftermath())
        self._refresh_all(after.refreshes, life)
        if isinstance(outcome, Admitted):
            return (yield from self._admitted(delivery, life, outcome.fence))
        yield from self._follow_up(after)
        self.ledger.ask_no_more(message.ticket, delivery.number)
        if isinstance(outcome, (Lost, Full)):
            return self.put_off.append(delivery)
        if isinstance(outcome, (Revoked, Expired, Discarded)):
            message.fate = message.fate or type(outcome).__name__.lower()
        else:
            assert isinstance(outcome, (Parked, Duplicate)), outcome
        self.in_hand.pop(delivery, None)
        if delivery.field and isinstance(outcome, (Parked, Duplicate)):
            return self.consumer.was_acknowledged(delivery)
        return self._acknowledge(delivery)

    def _expire(self, delivery: Delivery) -> None:
        """Celery sees by itself that its time has passed, and the store is not asked (any more)."""
        message = delivery.message
        self.say(f"drops {message.ticket}, which has expired")
        self.ledger.ask_no_more(message.ticket, delivery.number, back=False)
        message.fate = message.fate or "expired"
        self._acknowledge(delivery)
        self.in_hand.pop(delivery, None)

    # -- the end --------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Nobody hears of it any more. The broker notices sooner or later."""
        self.process.alive = False
        self.gone = True
        for body in self.bodies:
            body.process.alive = False
        self.in_hand.clear()
        self.story.is_gone(self)
        for life in self._lives():
            self.referee.crash(life)

    def lost_broker(self) -> None:
        """The connection is gone, and with it what it had delivered; bodies run on."""
        for delivery in [d for d in self.put_off if not d.field]:
            self._forget(delivery)
        self.consumer.broken = True

    def _lives(self) -> list[Any]:
        return [w for name, w in self.referee.world.workers.items() if name.rpartition("/")[0] == self.name]

    def leave(self) -> None:
        self.leaving = True
        self.wake()
        self.consumer.wake()
        self.schedule.start(self._leave(), self.process)

    def _leave(self) -> Steps:
        """Bodies may end by themselves for a while, then they are killed; what was only prefetched goes back."""
        patience = 20
        while not all(place.over for place in self.places):
            yield Sleep(SECOND // 5)
            patience -= 1
            for body in list(self.bodies) if patience < 0 else ():
                self.end_body(body)
        if self.habits.forked:
            self.consumer.drop_buffered()
        yield from self.consumer.close()
        self.retired = True
        life = self.life
        try:
            yield Call(f"leave({life.name})", lambda: self.referee.leave(life))
        except Unreachable:
            self.say("could not leave: its lease will lapse")
        self.gone = True
        self.story.has_left(self)
