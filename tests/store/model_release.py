"""The play of a release: what it frees, acknowledges and hands over in one step, held against the model.

A ticket that is handed over runs at once on the worker that released: it must be the next in turn, wanted, and recorded
as the delivery that it has become. A stale release does none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_limits.store.outcomes import Handed, Release, Released, Stale

from .actors import SECOND
from .model import POLICY, Body, Message, Worker
from .model_post import Posting
from .model_scene import judged
from .model_view import View
from .post import QUEUE, list_of, taking

__all__ = ["Releasing"]

Admission = tuple[str, str, int]


class Releasing(Posting):
    def _start(self, message: Message, body: Body) -> None:
        forgotten = message.done + POLICY.revoke_ttl * SECOND <= self.clock.now
        again = message.fate == "done" and not message.excused and not forgotten
        assert not again, f"{message} runs again, though nothing had crashed"
        self.world.fence = body.fence
        self.world.bodies.append(body)

    def _released(
        self, admission: Admission, done: Callable[[Release], None], *, back: bool, acked: Sequence[str], mark: str
    ) -> Release:
        """`acked`: deliveries that are done with, as they are told; `mark`: of a channel that has a place for one;
        `done`: what the release does to the world outside of the store."""
        world, before = self.world, self.view
        body = next((b for b in world.bodies if b.admission == admission), None)
        runs = body is not None and self.runs(body)
        outcome = self.store.release(*admission, back=back, acked=acked, taking=taking(mark))
        due = Released if runs else Stale
        assert type(outcome) is due, f"{outcome} for {admission}, which runs: {runs}, {due.__name__} was due"
        if body is not None:
            world.bodies.remove(body)
            world.ghosts.append(admission)
        done(outcome)
        if not isinstance(outcome, Released):
            self.unchanged(outcome)
            return outcome
        worker, handed = world.workers[admission[1]], outcome.handed
        if handed is not None:
            self._begins(worker, handed)
        about = {"ticket": admission[0], "worker": worker.name, "among": self._tickets(before, worker, acked)}
        self.after("release", outcome.after, handed=handed.ticket if handed else "", **about)
        self._grants_are_given_back(before, worker, acked)
        assert not self._tickets(self.view, worker, acked), f"{acked} of {worker} are still there"
        self._handed_when_due(before, worker, mark, handed)
        if handed is not None:
            self._handed_is_recorded(worker, mark, handed)
            self._handed_in_turn(before, handed.ticket)
        return outcome

    def _begins(self, worker: Worker, handed: Handed) -> None:
        field, fence = handed.delivery[0].decode(), handed.admitted.fence
        assert fence > self.world.fence, f"fence {fence} after {self.world.fence}"
        message = self.world.messages[handed.ticket]
        self._start(message, Body(message, worker, worker.life, fence, field, copy=False, field=field))

    def _handed_when_due(self, before: View, worker: Worker, mark: str, handed: Handed | None) -> None:
        """Whoever is let go runs at once where that is wanted, its worker lives, and it passes nothing in the queue.
        What this very call has granted before it is in the queue, so it is the first that is handed over; unless it has
        an eta, which Celery looks at first."""
        may = bool(mark) and worker.leased and not before.ready.get(QUEUE) and not before.queued
        granted = [t for t in self.view.ready.get(QUEUE, ()) if before.tickets[t].state == "waiting"]
        assert handed is None or may, (
            f"{handed} was handed to {worker}, mark {mark!r}, behind {before.ready}, {before.queued}"
        )
        first = self.world.messages[handed.ticket if handed else granted[0]] if handed or granted else None
        if may and first is not None:
            assert (first.eta is None) == bool(handed), f"{first} was handed over: {bool(handed)}, eta {first.eta}"

    def _handed_is_recorded(self, worker: Worker, mark: str, handed: Handed) -> None:
        field, number, text = handed.delivery
        record, message = self.view.tickets[handed.ticket], self.world.messages[handed.ticket]
        name = field.decode()
        assert name == f"g{handed.admitted.fence}.{mark}" == record.delivery, f"{name} for {record}"
        assert (record.state, record.worker, record.fence) == ("running", worker.name, handed.admitted.fence), record
        stored = self.view.unacked.get(worker.name, {}).get(name)
        due = (message.queue, list_of(message.rank), handed.ticket, text)
        assert stored == due, f"handed over is {due}, recorded {stored}"
        assert number == 1, f"{handed} is said to come from queue {number}"
        assert message.is_payload(text, record), f"{text!r} for {record}"

    def _handed_in_turn(self, before: View, ticket: str) -> None:
        """Of those who stood in one line for their last link, and were let go to one queue, it is the first."""
        was, mine = before.tickets[ticket], self.world.messages[ticket]
        spec = mine.specs[was.passed]
        if before.fair(spec.key):
            return  # `in_turn` has replayed it
        for waiter in self.world.standing(before, spec.key):
            other = waiter.message
            went = (record := self.view.tickets.get(other.ticket)) and record.state == "granted"
            last = other.queue == mine.queue and other.specs[-1] is waiter.spec
            assert mine.place is not None
            passed = went and last and waiter.place < mine.place and self.world.bars(waiter.spec, spec)
            assert not passed, f"{mine} was handed over before {other}"

    @judged
    def release_stale(
        self, ticket: str, worker: str, fence: int, *, back: bool, acked: Sequence[str] = (), mark: str = ""
    ) -> None:
        record = self.view.tickets.get(ticket)
        if record and (record.state, record.worker, record.fence) == ("running", worker, fence):
            return
        outcome = self.store.release(ticket, worker, fence, back=back, acked=acked, taking=taking(mark))
        assert outcome == Stale(), f"{outcome} for an admission that counts for nothing"
        self.unchanged(outcome)
