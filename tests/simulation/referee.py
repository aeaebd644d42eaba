"""The referee: every call of the simulation is made through it, at the instant at which the store executes it.

It is the play of the model-based tests, held to the same guarantees after every call (`tests.store.model_checks`). What
differs is whose world it is: here messages, bodies and acknowledgements belong to virtual workers, who may learn of an
answer late or never.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from celery_limits.store.outcomes import Admission, Admitted, Aftermath, Beat, Claimed, Release, Released, Swept
from celery_limits.transport.queue_scripts import number_of
from tests.store.model import Errand, Message, Request, Worker, World
from tests.store.model_checks import RECOVERING, Op, no_room_beside_a_waiter
from tests.store.model_play import LEASE, Play
from tests.store.model_view import View
from tests.store.post import Fetched, ticket_in

from .trip import BELL, CALL, SeenReader, Stage

__all__ = ["Referee"]


class SimulatedWorld(World):
    """A world whose copies of messages are with a simulated broker and with simulated processes."""

    elsewhere: Callable[[Message], bool]

    def copies(self, message: Message, view: View) -> bool:
        return message.ticket in view.carried or self.elsewhere(message)


class Referee(Play):
    world: SimulatedWorld
    reader: SeenReader

    def __init__(self, stage: Stage, elsewhere: Callable[[Message], bool]) -> None:
        super().__init__(stage.store, stage.clock, stage.reader)
        self.caller, self.reader = stage.caller, stage.reader
        self.world = SimulatedWorld(stage.clock)
        self.world.elsewhere = elsewhere
        self.put: set[str] = set()
        self.released: set[tuple[str, str, int]] = set()
        self.true_time: Callable[[], int] = lambda: self.clock.now
        self.on_dead: Callable[[str], None] = lambda _: None
        self.on_handed: Callable[[str], None] = lambda _: None
        self.on_released: Callable[[Message, str, int], None] = lambda *_: None

    def after(self, verb: str, after: Aftermath | None = None, **about: Any) -> None:
        """Where nothing has changed, only what time alone can break is looked at."""
        before, post = self.view, self.reader.read()
        if post is before:
            op = Op(verb, self.clock.now, ahead=self.clock.now - self.clock.server, **about)
            no_room_beside_a_waiter(self.world, op.now, post, swept=op.complete)
            if after is not None:
                self.asked(after, op)
            return
        for body in self.world.bodies:
            if not body.counts:  # its worker is taken for dead, so another will run it too
                body.message.excused = True
        super().after(verb, after, **about)
        for ticket in post.tickets.keys() - before.tickets.keys():
            eta = self.world.messages[ticket].eta
            assert eta is None or eta <= self.true_time(), f"{ticket} is met before its eta"
        if verb in RECOVERING:
            self._given_back(before, post)

    def _given_back(self, before: View, post: View) -> None:
        """What a worker had not acknowledged when it was taken for dead, or had left, may have run."""
        for worker, held in before.unacked.items():
            for field in held.keys() - post.unacked.get(worker, {}).keys():
                self.world.messages[ticket_in(held[field].text)].excused = True

    def publish(self, message: Message) -> None:
        if message.arrivals:  # its answer was lost: there are two copies now
            message.excused = True
        super().publish(message)

    def admit(
        self, message: Message, worker: Worker, delivery: str, *, full: bool, field: str, arrival: int, new: bool
    ) -> Admission:
        fate = message.fate
        if delivery in self.put and message.ticket not in self.view.tickets:
            message.excused = True  # its answer was lost, and by now the store has seen the ticket's end
        if full:
            self.put.add(delivery)
        if worker.crashed and not message.late and not self.world.copies(message, self.view):
            message.fate = fate or "lost"  # should it be admitted: the store keeps no copy, and its worker is no more
        outcome = self.deliver(
            message,
            worker,
            source="worker",
            delivery=delivery,
            full=full,
            field=field,
            arrival=arrival,
            new=new,
        )
        if isinstance(outcome, Admitted):
            self.put.add(delivery)
        if not isinstance(outcome, Admitted):
            message.fate = fate  # it ends when the worker, which may yet die, has told so
        return outcome

    def give_up(
        self, message: Message, worker: Worker, fence: int, *, back: bool, acked: Sequence[str], mark: str
    ) -> Release:
        """A release, be it the first, a repeated one, or one that comes too late."""
        admission = (message.ticket, worker.name, fence)

        def done(outcome: Release) -> None:
            if isinstance(outcome, Released):
                assert admission not in self.released, f"{admission} is released twice"
                self.released.add(admission)
                self.on_released(message, worker.name, fence)
                self._dropped(worker, acked)
            else:
                message.excused = True

        outcome = self._released(admission, done, back=back, acked=acked, mark=mark)
        if isinstance(outcome, Released) and outcome.handed:
            self.on_handed(worker.name)
        return outcome

    def crash(self, worker: Worker) -> None:
        """What was begun and acknowledged early is lost when the last one dies who had another copy of it in hand."""
        super().crash(worker)
        for body in self.world.bodies:
            message = body.message
            if body.worker.crashed and message.ticket not in self.view.messages:
                message.fate = message.fate or ("" if self.world.copies(message, self.view) else "lost")

    def sweep(self, worker: Worker | None, batch: int) -> Swept:
        if (answer := self._idle_sweep(worker)) is not None:
            self.caller.foretold = answer
            self.reader.rung.discard(BELL)
        outcome = super().sweep(worker, batch)
        for name in outcome.dead:
            self.on_dead(name)
        return outcome

    def _idle_sweep(self, worker: Worker | None) -> list[Any] | None:
        """The answer to a sweep that finds nothing to do; None where it may find something."""
        now, world, view = self.clock.next, self.world, self.view
        lapses = [w.beaten + LEASE for w in world.workers.values() if w.leased]
        if not lapses or min(lapses) <= now:
            return None
        rings = min(view.alarms.values(), default=math.inf)
        if rings <= now or any(idle <= now for idle in view.rates.values()):
            return None
        grace = world.grace_from(now, heard=worker is not None and worker.leased)
        soonest = min(rings, max(min(lapses), grace))
        outbox = sum(when <= now for when in view.outbox.values())
        return [b"swept", [], 0, outbox, b"%.0f" % soonest, [], b"%d" % now, []]

    def claim(self, count: int, again: Sequence[Claimed] = ()) -> list[Errand]:
        if not again and all(when > self.clock.next for when in self.view.outbox.values()):
            self.caller.foretold = [b"claimed", []]
        return super().claim(count, again)

    def renew(self, worker: Worker, *, renew: bool) -> Beat:
        """With a look only where there is something new."""
        if worker.leased:
            self.caller.foretold = [b"renewed", b""]
        return self.beat(worker, look=not worker.leased, renew=renew)

    def deliver_all(
        self, worker: Worker, room: int, flags: str, acked: Sequence[str], mark: str
    ) -> list[Fetched] | None:
        self._dropped(worker, acked)
        if worker.leased and not (acked or self.view.ready or self.view.queued):
            self.caller.foretold = []
            self.reader.rung.discard(CALL)
        return self.fetch(worker, room, flags, acked, mark)

    def done_with(self, worker: Worker, fields: Sequence[str]) -> None:
        self._dropped(worker, fields)
        self.acknowledge(worker, fields)

    def _dropped(self, worker: Worker, fields: Sequence[str]) -> None:
        """The messages whose acknowledgement comes after the death of the one who sent it. One that is acknowledged
        early has nobody any more."""
        if not worker.crashed:
            return
        for ticket in self._tickets(self.view, worker, fields):
            message = self.world.messages[ticket]
            left = self.view.copies(message.ticket) > 1 or self.world.elsewhere(message)
            message.fate = message.fate or ("" if left else "lost")

    def fetched_by(self, worker: Worker) -> list[str]:
        """What `QueueScripts.fetched_by` says, from the last look."""
        return sorted(self.view.unacked.get(worker.name, ()), key=number_of)

    def held_by(self, worker: Worker) -> dict[str, int]:
        """What `Store.held_by` says, from the last look."""
        flat = self.view.raw.get(f"worker:{worker.name}", ())
        held = {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}
        return {ticket: fence for ticket, fence in held.items() if "." in ticket and "\t" not in ticket}

    def request(self, key: str, token: int) -> Request:
        return next(r for r in self.world.requests if (r.key, r.token) == (key, token))
