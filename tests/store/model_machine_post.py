"""The steps of our own transport in the state machine: publish again, fetch, begin, give back, drop."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from celery_limits.store.outcomes import Admitted, Lost

from .model import Body, Message, Worker, World
from .model_play import Play
from .post import arrival_in, ticket_in

__all__ = ["PICK", "PostMachine", "choose"]

T = TypeVar("T")

PICK = st.integers(0, 15)


class PostMachine(RuleBasedStateMachine):
    play: Play
    world: World
    done: set[str]
    """Deliveries that nobody needs any more, acknowledged or not."""
    admitted: set[str]
    """Deliveries that were admitted at the gate, or had been when they were handed over."""

    @property
    def live(self) -> list[Worker]:
        return [w for w in self.world.workers.values() if not w.crashed]

    def _worker(self, pick: int) -> Worker:
        """Mostly one that may work; now and then one that has lost its lease."""
        leased = [w for w in self.live if w.leased]
        return choose(leased if leased and pick < 14 else self.live, pick)

    @precondition(lambda self: self.play.view.ready or self.play.view.queued)
    @rule(
        pick=PICK, count=st.integers(1, 3), flags=st.sampled_from(("r", "", "rs", "s", "rb", "b")), start=st.booleans()
    )
    def fetch(self, pick: int, count: int, flags: str, start: bool) -> None:
        self._fetch(self._worker(pick), count, flags, start=start)

    def _fetch(self, worker: Worker, room: int, flags: str = "r", *, start: bool) -> None:
        acked = self._as_told(sorted(self._done(worker))[:2])
        for one in self.play.fetch(worker, room, flags, acked) or ():
            if start:
                self._start_fetched(worker, one.field)

    def _done(self, worker: Worker) -> set[str]:
        """Deliveries whose task has ended here, and that are not acknowledged yet."""
        mine = self.play.view.unacked.get(worker.name, {})
        return {f for f in self.done if f in mine}

    def _as_told(self, fields: list[str]) -> list[str]:
        """As `transport.ack_buffer` does: of a granted ticket that was not admitted, the scripts must look."""
        return [f"?{field}" if field[0] == "g" and field not in self.admitted else field for field in fields]

    def _fetched(self) -> list[tuple[Worker, str]]:
        """Deliveries that nobody has begun with."""
        begun = {body.field for body in self.world.bodies} | self.done
        unacked = self.play.view.unacked
        return [(w, f) for w in self.live if w.leased for f in unacked.get(w.name, ()) if f not in begun]

    @precondition(lambda self: self._fetched())
    @rule(which=PICK, ack=st.booleans())
    def start_fetched(self, which: int, ack: bool) -> None:
        self._start_fetched(*choose(self._fetched(), which), ack=ack)

    def _start_fetched(self, worker: Worker, field: str, *, ack: bool = True) -> None:
        """Acknowledged early, or when it will not run, in a call of its own."""
        text = self.play.view.unacked[worker.name][field].text
        message = self.world.messages[ticket_in(text)]
        outcome = self.play.deliver(message, worker, source="transport", field=field, arrival=arrival_in(text))
        if isinstance(outcome, Admitted):
            self.admitted.add(field)
        if isinstance(outcome, Lost) or (isinstance(outcome, Admitted) and message.late):
            return
        self._acknowledge(message, worker, field, ack=ack)

    def _acknowledge(self, message: Message, worker: Worker, field: str, *, ack: bool) -> None:
        self.done.add(field)
        if ack:
            self.play.acknowledge(worker, self._as_told([field]))
        else:
            message.excused = True

    @precondition(lambda self: self._fetched())
    @rule(which=PICK, what=st.sampled_from(("front", "end", "acknowledge")))
    def done_with_fetched(self, which: int, what: str) -> None:
        """Given back, or dropped before anybody asked."""
        worker, field = choose(self._fetched(), which)
        if what == "acknowledge":
            message = self.world.messages[ticket_in(self.play.view.unacked[worker.name][field].text)]
            message.fate = message.fate or "dropped"
            self.play.acknowledge(worker, self._as_told([field]))
        else:
            self.play.requeue(worker, [field], what)

    def _handed(self) -> list[Body]:
        """What was handed over, and is not acknowledged yet."""
        unacked = self.play.view.unacked
        return [
            b
            for b in self.world.bodies
            if b.field == b.delivery and not b.worker.crashed and b.field in unacked.get(b.worker.name, ())
        ]

    @precondition(lambda self: self._handed())
    @rule(which=PICK, what=st.sampled_from(("begins", "begins", "unknown", "waits", "dropped")))
    def was_handed(self, which: int, what: str) -> None:
        """It is acknowledged as it begins; or the answer was lost, and what nobody knows of is given back; or it does
        not come to the gate: it waits there for its time, or was dropped on the way."""
        body = choose(self._handed(), which)
        worker, field, message = body.worker, body.field, body.message
        if what == "unknown" and field not in self.done:
            return self.play.requeue(worker, [field], "front")
        if what in ("waits", "dropped") and field not in self.done:
            self.admitted.discard(field)
            if what == "dropped":
                message.fate = message.fate or "dropped"
                self.done.add(field)
            along = self._as_told([field]) if what == "dropped" and which % 2 else []
            self.play.release(body, back=True, acked=along)
            return None
        self.admitted.add(field)
        if not message.late and field not in self.done:
            self._acknowledge(message, worker, field, ack=which % 3 > 0)
        return None

    @precondition(lambda self: any(m.queue for m in self.world.messages.values()))
    @rule(which=PICK)
    def publish_again(self, which: int) -> None:
        """The answer was lost: there are two copies of it now."""
        message = choose([m for m in self.world.messages.values() if m.queue], which)
        message.excused = True
        self.play.publish(message)

    was_handed_2 = was_handed_3 = was_handed
    fetch_2 = fetch_3 = fetch  # a rule that has several names is drawn that many times as often


def choose(things: list[T], pick: int) -> T:
    return things[pick % len(things)]
