"""What a virtual worker runs, and what it does about the end of it, call by call as in `celery_limits.worker` (exits,
turn).

A body releases by itself, unless it is a process of a worker on our own transport: then its parent does when it hears
of the end, with the acknowledgements that are due. There, and in a thread, the worker may be handed over whoever that
lets go.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from celery_limits.store.outcomes import Handed, Released
from tests.store.actors import SECOND
from tests.store.model import Worker

from .broker import Delivery
from .consumer import Ride
from .household import Habits, Household
from .schedule import Idle, Process, Sleep, Steps, Thread

if TYPE_CHECKING:
    from .story import Story

__all__ = ["Bodies"]

Run = tuple[Delivery, Worker, int]
"""What runs, in which life of its worker, under which fence."""


class Bodies(Household):
    def __init__(self, story: Story, name: str, habits: Habits) -> None:
        super().__init__(story, name, habits)
        self.leaving = False
        self.in_hand: dict[Delivery, None] = {}
        self.local: deque[Delivery] = deque()
        self.busy: set[Delivery] = set()
        """At the gate, or running."""
        self.bodies: dict[Thread, Run] = {}

    @property
    def has_place(self) -> bool:
        """As far as it knows: a pool of threads does not say."""
        return not self.habits.forked or len(self.busy) < self.habits.places

    def wake(self) -> None:
        """The places of the pool."""
        raise NotImplementedError

    def losing(self) -> None:
        for body in list(self.bodies):
            self.end_body(body)

    def _acknowledge(self, delivery: Delivery) -> None:
        if delivery.field:
            self.consumer.acknowledge(delivery)
        else:
            self.broker.acknowledge(delivery)

    def _admitted(self, delivery: Delivery, life: Worker, fence: int) -> Steps:
        self.ledger.enter(delivery.message.ticket, fence, delivery.number)
        if delivery.field:
            self.consumer.acks.was_admitted(delivery.field)
        return self._run(delivery, life, fence)

    def _due(self, delivery: Delivery) -> None:
        if delivery in self.in_hand and self.process.alive:
            self.local.append(delivery)
            self.wake()

    # -- one after the other --------------------------------------------------------------------------------

    def _run(self, delivery: Delivery, life: Worker, fence: int) -> Steps:
        """The pool place is taken until the body is over; and on, by whoever was handed over for it."""
        run: Run | None = (delivery, life, fence)
        while run is not None:
            self.busy.add(run[0])
            body, ended = self._begin(*run), run
            while body in self.bodies and not body.over:
                yield Idle(5 * SECOND)
            run = None
            if self.bodies.pop(body, None) is not None:  # else it has been released, or is being
                run = yield from self._turn(*ended)
            self.busy.discard(ended[0])
        self.consumer.wake()

    def _begin(self, delivery: Delivery, life: Worker, fence: int) -> Thread:
        if not delivery.message.late:
            self._acknowledge(delivery)
        process = self.process
        if self.habits.forked:
            process = Process(f"{self.name} child", process.rate, parent=self.process)
        body = self.schedule.start(self._body(delivery, life, fence), process)
        self.bodies[body] = (delivery, life, fence)
        return body

    def _body(self, delivery: Delivery, life: Worker, fence: int) -> Steps:
        message = delivery.message
        by_parent = bool(delivery.field)
        self.story.body_starts(self, message, life, fence)
        yield Sleep(round(self.story.duration() * SECOND))
        delivery.back = by_parent and message.late and self.story.rejects()
        if not delivery.back:
            self.story.body_ends(message)
        late = self.habits.forked and (self.leaving or self.consumer.broken)  # would its parent hear of it
        if not by_parent or late:
            yield from self._release(message.ticket, life, fence, back=delivery.back)
        if by_parent:
            return self.wake()
        self.ledger.close(message.ticket)
        return self._body_over(delivery)

    def _body_over(self, delivery: Delivery, *, acknowledge: bool = True) -> None:
        for body in [b for b, (whose, _, _) in self.bodies.items() if whose is delivery]:
            del self.bodies[body]
        if delivery.message.late and acknowledge:
            self._acknowledge(delivery)
        self.in_hand.pop(delivery, None)
        self.wake()

    # -- the parent's turn ----------------------------------------------------------------------------------

    def _turn(self, delivery: Delivery, life: Worker, fence: int) -> Steps:
        """The parent hears that the body has ended; what it runs next in this place, if that was handed over."""
        message, back = delivery.message, delivery.back
        if message.late and not back and self.habits.forked:
            self.consumer.will_acknowledge(delivery)
        ride = Ride(self.consumer, wanted=not self.local and not self.leaving, acks=self.habits.forked)
        told = yield from self._release(message.ticket, life, fence, back=back, ride=ride)
        self.ledger.close(message.ticket, back=back)
        ride.arrives(life, told)
        if back:
            yield from self.consumer.put_back(delivery)
        elif message.late and not self.habits.forked:
            self.consumer.acknowledge(delivery)
        self.in_hand.pop(delivery, None)
        self.wake()
        if not isinstance(told, Released) or told.handed is None:
            return None
        return (yield from self._take_over(life, told.handed))

    def _take_over(self, life: Worker, handed: Handed) -> Steps:
        """It runs, if it comes to the gate at once. What does not gives back its slots, and asks for them when it does;
        Celery may have dropped it, or lets it wait for its time."""
        fence, message = handed.admitted.fence, self.referee.world.messages[handed.ticket]
        self.ledger.enter(handed.ticket, fence)
        delivery = self.consumer.take_over(life, handed)
        received = self.story.reception(message) if delivery else ""
        if delivery and received == "begins":
            self.consumer.acks.was_admitted(delivery.field)
            return delivery, life, fence
        yield from self._release(handed.ticket, life, fence, back=True)
        self.ledger.close(handed.ticket, back=True)
        if delivery and received == "waits":
            self.schedule.after(self.story.duration(), self._due, delivery)
        elif delivery:
            self.say(f"drops {handed.ticket}, which was handed over")
            message.fate = message.fate or "dropped"
            self.consumer.acknowledge(delivery)
            self.in_hand.pop(delivery, None)
        return None

    # -- any other end --------------------------------------------------------------------------------------

    def end_body(self, body: Thread) -> None:
        """Its process is killed; the parent sees it and gives the slots back."""
        delivery, life, fence = self.bodies.pop(body)
        self.schedule.kill(body)
        body.process.alive = body.process is self.process
        self.say(f"the body of {delivery.message.ticket} is killed")
        delivery.message.excused = True
        if not delivery.message.late:
            delivery.message.fate = delivery.message.fate or "lost"
        self.schedule.start(self._bury_body(delivery, life, fence), self.process)

    def _bury_body(self, delivery: Delivery, life: Worker, fence: int) -> Steps:
        message = delivery.message
        back = message.late and not message.fate
        yield from self._release(message.ticket, life, fence, back=back)
        self.ledger.close(message.ticket, back=back)
        if back and delivery.field:
            yield from self.consumer.put_back(delivery)
        elif back:
            self.broker.put_back(delivery)
        self._body_over(delivery, acknowledge=not back)
