"""A virtual worker's channel to our own transport, call by call as in `celery_limits.transport`.

One thread fetches as far as there is prefetch room, with the acknowledgements of the last turn on its back, and sleeps
on the queue's bell when there is nothing. What it could not tell the store it owes, and pays before the next fetch. The
product's hand-off sees it as a `worker.port.ChannelLike`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_limits.transport.ack_buffer import Acks
from celery_limits.transport.delivery import Taking
from celery_limits.transport.queue_scripts import number_of
from tests.store.actors import SECOND
from tests.store.model import Worker
from tests.store.post import QUEUE, Fetched, arrival_in, is_unmoved, ticket_in

from .broker import Delivery
from .schedule import Call, Idle, Steps, Unreachable

if TYPE_CHECKING:
    from .worker import VirtualWorker

__all__ = ["Consumer"]

WATCH = 10 * SECOND
LOOK = SECOND // 2
SIFTING = 2 * SECOND
PATIENCE = 4 * SECOND
"""For how long it sleeps on the bell before it looks by itself: longer than a real one, since nobody else publishes."""


class _Unsure(NamedTuple):
    known: frozenset[str]
    until: int


class Consumer:
    def __init__(self, worker: VirtualWorker) -> None:
        self.worker = worker
        self.story, self.referee = worker.story, worker.referee
        self.deliveries: dict[str, Delivery] = {}
        """What the channel has delivered and is not acknowledged."""
        self.acks = Acks()
        self.rung = True
        """There may be something to fetch."""
        self.broken = False
        """Its connection is gone, and it does not know yet."""
        self.thread = worker.schedule.start(self._consume(), worker.process)
        self._telling: list[str] = []
        """Acknowledgements that are under way by themselves."""
        self._away = False
        """The worker closes it, and starts again."""
        self._marks = 1
        self._rides = 0
        self._turn = False
        self._fetched_as = ""
        self._sift_until = 0
        self._owed_acks: set[str] = set()
        self._owed_back: dict[str, str] = {}
        self._unsure: dict[str, _Unsure] = {}
        self._owed_as = ""
        self._next_look = 0
        self._paying = False

    @property
    def _mark(self) -> str:
        return f"{self.worker.name}-{self._marks}"

    @property
    def _listens(self) -> bool:
        """One that has no place leaves what comes to those who have, and looks when it has one, or once in a while."""
        return self._room() > 0 and self.worker.lease.was_taken and self.worker.has_place

    def _room(self) -> int:
        waiting_for_their_time = sum(d.message.eta is not None for d in self.deliveries.values())
        return self.worker.qos.value + waiting_for_their_time - len(self.deliveries)

    # -- the thread -----------------------------------------------------------------------------------------

    def _consume(self) -> Steps:
        worker, story = self.worker, self.story
        while not worker.leaving:
            try:
                if self.broken:
                    self._cut_off()
                if self.rung and worker.lease.was_taken and self._room() > 0:
                    self.rung = bool((yield from self._fetch()))
                    continue
                yield from self.flush()
            except Unreachable:
                yield from self._reconnect()
                continue
            asleep = self._listens
            if asleep:
                story.sleeping(self)
            before = worker.schedule.now
            yield Idle(PATIENCE)
            story.awake(self)
            self.rung = self.rung or (asleep and worker.schedule.now - before >= PATIENCE // 2) or not asleep

    def wake(self) -> None:
        self.worker.schedule.wake(self.thread)

    def _fetch(self) -> Steps:
        """How many came."""
        worker, life = self.worker, self.worker.life
        if self._fetched_as and self._fetched_as != life.name:  # others have what was fetched in a life that is over
            self._cut_off()
        yield from self.pay()
        self._turn = not self._turn
        flags = ("r" if self._turn else "") + ("s" if worker.local_time < self._sift_until else "")
        flags += "" if worker.has_place else "b"
        room, acked, mark = self._room(), tuple(self.acks.take_for_fetch()), self._mark
        fetch = partial(self.referee.deliver_all, life, room, flags, acked, mark)
        try:
            fetched = yield Call(f"fetch({life.name}, {room} {flags} {','.join(acked)})", fetch, attempts=1)
        except Unreachable:
            self.lose_sight(life, mark)
            self._marks += 1
            raise
        self.acks.fetch_answered()
        if fetched is None:
            if self._fetched_as:
                self._cut_off()
            return 0
        self._fetched_as = life.name
        for one in fetched:
            if (delivery := self._arrives(one)) is not None:
                worker.call_soon(worker.receive, delivery)
        return len(fetched)

    def _arrives(self, one: Fetched) -> Delivery | None:
        """None where nobody consumes any more: it is given back."""
        worker = self.worker
        message = self.referee.world.messages[ticket_in(one.text)]
        if worker.leaving:
            self.give_back([one.field], "front")
            return None
        new = is_unmoved(one.text)
        delivery = Delivery(message, worker.broker.number(), one.field, arrival_in(one.text), new)
        self.deliveries[one.field] = delivery
        worker.in_hand[delivery] = None
        return delivery

    # -- along with a release -------------------------------------------------------------------------------

    def taking(self) -> Taking | None:
        """The mark, used once, for what a release hands off; None where there is no room for it."""
        self._rides += 1
        return Taking(f"{self.worker.name}-r{self._rides}", [QUEUE], []) if self._room() > 0 else None

    def take_over(self, taking: Taking, worker: str, handed: Sequence[Any]) -> None:
        """In the event loop. Celery may drop what it is given, or let it wait."""
        self._fetched_as = worker
        delivery = self._arrives(Fetched(handed[0].decode(), handed[2]))
        if delivery is None:
            return
        received, message = self.story.reception(delivery.message), delivery.message
        if received == "begins":
            self.worker.receive(delivery)
        elif received == "waits":
            self.worker.call_after(self.story.duration(), self.worker.receive, delivery)
        else:
            self.worker.say(f"drops {message.ticket}, which was handed off")
            message.fate = message.fate or "dropped"
            self.worker.acknowledge(delivery)

    def lose_sight_of(self, taking: Taking, worker: str) -> None:
        self.lose_sight(self.referee.world.workers[worker], taking.mark)
        self.wake()

    # -- done with, or not ----------------------------------------------------------------------------------

    def sift(self) -> None:
        """What comes next may have to wait for the same."""
        self._sift_until = self.worker.local_time + SIFTING

    def acknowledge(self, delivery: Delivery) -> None:
        self.deliveries.pop(delivery.field, None)
        if not self.acks.is_done(delivery.field):
            self.acks.add([delivery.field])
        self.wake()

    def flush(self) -> Steps:
        if fields := self.acks.take():
            self._telling += fields
            try:
                yield from self._acknowledge(self.worker.life, tuple(self.acks.as_told(fields)))
            except Unreachable:
                self.acks.add(fields)
                raise
            finally:
                self.told(fields)
            self.acks.were_told(fields)

    def told(self, fields: Iterable[str]) -> None:
        """Or not: it is no longer under way."""
        self._telling = [field for field in self._telling if field not in fields]

    def _acknowledge(self, life: Worker, told: tuple[str, ...]) -> Steps:
        yield Call(f"acknowledge({life.name}, {','.join(told)})", lambda: self.referee.done_with(life, told))

    def put_back(self, delivery: Delivery) -> None:
        """To the end of its queue: rejected."""
        self.give_back([delivery.field], "end")

    def give_back(self, fields: list[str], where: str) -> None:
        self.acks.were_told(fields)
        self._owes(self.worker.life)
        self._owed_back.update(dict.fromkeys(fields, where))
        for field in fields:
            self.deliveries.pop(field, None)
        self.worker.schedule.start(self.try_to_confirm(), self.worker.process)

    def _reconnect(self) -> Steps:
        """The connection is gone: what runs goes on, what was only buffered goes back."""
        self.worker.say("has lost its connection")
        self._away = True
        self.worker.call_soon(self.worker.reconnect)
        while self._away and not self.worker.leaving:
            yield Idle(SECOND)
        self._owes(self.worker.life)
        self._owe_acks()
        yield from self.try_to_confirm()

    def is_back(self) -> None:
        self._away = False
        self.rung = True
        self.wake()

    def _cut_off(self) -> None:
        self._fetched_as, self.broken = "", False
        raise Unreachable

    # -- unconfirmed ----------------------------------------------------------------------------------------------

    def lose_sight(self, life: Worker, mark: str) -> None:
        if not self._owes(life):
            return
        known = frozenset({*self.deliveries, *self.acks.known, *self._telling})
        self._unsure[mark] = _Unsure(known, self.worker.local_time + WATCH)
        self._next_look = 0

    def _owe_acks(self) -> None:
        self.acks.fetch_gone()
        fields = self.acks.take()
        self._owed_acks.update(self.acks.as_told(fields))
        self.acks.were_told(fields)

    def _owes(self, life: Worker) -> bool:
        """Whether that is a debt of the present life."""
        if life is not self.worker.life:
            return False
        if life.name != self._owed_as:
            self._void()
        self._owed_as = life.name
        return True

    def _void(self) -> None:
        self._owed_acks.clear()
        self._owed_back.clear()
        self._unsure.clear()

    @property
    def owes(self) -> bool:
        return bool(self._owed_acks or self._owed_back or self._unsure)

    def pay(self) -> Steps:
        """One at a time: the housekeeping pays too."""
        if self._paying or not self.owes:
            return
        self._paying = True
        try:
            yield from self._pay(self.worker.life)
        finally:
            self._paying = False

    def _pay(self, life: Worker) -> Steps:
        if life.name != self._owed_as:
            return self._void()
        if self._owed_acks:
            acks = tuple(sorted(self._owed_acks))
            yield from self._acknowledge(life, acks)
            self._owed_acks.difference_update(acks)
        yield from self._look(life)
        for where in ("front", "end"):
            fields = sorted((f for f, to in self._owed_back.items() if to == where), key=number_of)
            if fields:
                yield from self._requeue(life, fields, where)
                for field in fields:
                    self._owed_back.pop(field, None)
        return None

    def _look(self, life: Worker) -> Steps:
        now = self.worker.local_time
        if not self._unsure or now < self._next_look:
            return
        fields = yield Call(f"fetched_by({life.name})", lambda: self.referee.fetched_by(life))
        unknown = [
            field
            for field in fields
            if (unsure := self._unsure.get(field.partition(".")[2])) is not None
            and field not in unsure.known | self._owed_acks
        ]
        if unknown:
            yield from self._requeue(life, unknown, "front")
        self._next_look = now + LOOK
        for mark in [mark for mark, unsure in self._unsure.items() if unsure.until < now]:
            del self._unsure[mark]

    def _requeue(self, life: Worker, fields: list[str], where: str) -> Steps:
        what = f"requeue({life.name}, {where}, {','.join(fields)})"
        yield Call(what, lambda: self.referee.requeue(life, fields, where))

    def try_to_confirm(self) -> Steps:
        try:
            yield from self.pay()
        except Unreachable:
            self.worker.say("owes its transport")

    def close(self) -> Steps:
        """What is done is said, if that can be; what is not goes back when the worker leaves the store."""
        self._owes(self.worker.life)
        self._owe_acks()
        yield from self.try_to_confirm()
