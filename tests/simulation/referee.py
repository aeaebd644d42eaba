"""The referee: every call of the simulation is made through it, at the instant at which the store executes it.

It is the play of the model-based tests, held to the same guarantees after every call (`tests.store.model_checks`). What
differs is whose world it is: here messages, bodies and acknowledgements belong to virtual workers, who may learn of an
answer late or never.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_limits.store import Store
from celery_limits.store.outcomes import Admission, Admitted, Aftermath, Beat, Release, Released, Stale, Swept
from tests.store.actors import Clock
from tests.store.model import Message, Request, Worker, World
from tests.store.model_checks import Op, no_room_beside_a_waiter
from tests.store.model_play import Play
from tests.store.model_view import Reader, View

__all__ = ["Referee"]


class SimulatedWorld(World):
    """A world whose copies of messages are with a simulated broker and with simulated processes."""

    elsewhere: Callable[[Message], bool]

    def copies(self, message: Message) -> bool:
        return self.elsewhere(message)


class Referee(Play):
    def __init__(self, store: Store, clock: Clock, reader: Reader, elsewhere: Callable[[Message], bool]) -> None:
        super().__init__(store, clock, reader)
        self.world = SimulatedWorld(clock)
        self.world.elsewhere = elsewhere
        self.put: set[int] = set()
        self.released: set[tuple[str, str, int]] = set()
        self.etas: dict[str, int] = {}
        self.on_dead: Callable[[str], None] = lambda _: None

    def after(self, verb: str, after: Aftermath | None = None, **about: Any) -> None:
        """Where nothing has changed, only what time alone can break is looked at."""
        before, post = self.view, self.reader.read()
        if post is before:
            op = Op(verb, self.clock.now, **about)
            no_room_beside_a_waiter(self.world, op.now, post, swept=op.complete)
            if after is not None:
                self.asked(after, op)
            return
        for body in self.world.bodies:
            if not body.counts:  # its worker is taken for dead, so another will run it too
                body.message.excused = True
        super().after(verb, after, **about)
        for ticket, eta in self.etas.items():
            met = ticket in post.tickets and ticket not in before.tickets
            assert not met or eta <= self.clock.now, f"{ticket} is met before its eta"

    def admit(self, message: Message, worker: Worker, number: int, *, full: bool) -> Admission:
        fate = message.fate
        if number in self.put and message.ticket not in self.view.tickets:
            message.excused = True  # its answer was lost, and by now the store has seen the ticket's end
        self.put.add(number)
        if worker.crashed and not message.late and not self.world.copies(message):
            message.fate = fate or "lost"  # should it be admitted: the store keeps no copy, and its worker is no more
        outcome = self.deliver(message, worker, source="worker", delivery=f"{worker.name}/{number}", full=full)
        if not isinstance(outcome, Admitted):
            message.fate = fate  # it ends when the worker, which may yet die, has told so
        return outcome

    def give_up(self, message: Message, worker: Worker, fence: int, *, back: bool) -> Release:
        """A release, be it the first, a repeated one, or one that comes too late."""
        admission = (message.ticket, worker.name, fence)
        body = next((b for b in self.world.bodies if b.admission == admission), None)
        runs = body is not None and self.runs(body)
        outcome = self.store.release(*admission, back=back)
        assert isinstance(outcome, Released if runs else Stale), f"{outcome} for {admission}, which runs: {runs}"
        if body is not None:
            self.world.bodies.remove(body)
            self.world.ghosts.append(admission)
        if isinstance(outcome, Released):
            assert admission not in self.released, f"{admission} is released twice"
            self.released.add(admission)
            self.after("release", outcome.after, ticket=message.ticket, worker=worker.name)
        else:
            message.excused = True
            self.unchanged(outcome)
        return outcome

    def sweep(self, worker: Worker | None, batch: int) -> Swept:
        outcome = super().sweep(worker, batch)
        for name in outcome.dead:
            self.on_dead(name)
        return outcome

    def renew(self, worker: Worker) -> Beat:
        """With a look only where it is more than a renewal: a sweep follows, which takes one."""
        return self.beat(worker, look=not worker.leased)

    def unchanged(self, what: object) -> None:
        """But for the bell, which a listener may have taken between two looks."""
        before, self.view = self.view, self.reader.read()
        if self.view is not before:
            was, now = ({k: v for k, v in view.raw.items() if k != "bell"} for view in (before, self.view))
            assert View(was).same_as(View(now)), f"{what} changed the store"

    def fetch(self, worker: Worker, queue: str, count: int) -> list[Message]:
        messages = self.take(worker, queue, count)
        self.world.hands.clear()
        return messages

    def held_by(self, worker: Worker) -> dict[str, int]:
        """What `Store.held_by` says, from the last look."""
        flat = self.view.raw.get(f"worker:{worker.name}", ())
        held = {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}
        return {ticket: fence for ticket, fence in held.items() if "." in ticket and "\t" not in ticket}

    def request(self, key: str, token: int) -> Request:
        return next(r for r in self.world.requests if (r.key, r.token) == (key, token))
