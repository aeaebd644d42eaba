"""The play: makes a call on the store, holds its answer against the model, and does to the world what the call did.

Every method is one thing that a worker, a broker or a person does. Which, and in which order, is up to
`model_machine`; a crash is that somebody does not do the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import (
    Admission,
    Admitted,
    Aftermath,
    Beat,
    Claimed,
    Discarded,
    Ended,
    Expired,
    Failed,
    Full,
    Joined,
    Lost,
    Parked,
    Refreshed,
    Released,
    Renewed,
    Revoked,
    Stale,
    Swept,
)

from .actors import SECOND, Clock
from .model import POLICY, Body, Errand, Floating, Message, Request, Worker, World
from .model_checks import Op, judge, swept_clean
from .model_view import Reader

__all__ = ["Play"]

LEASE = round(POLICY.lease * SECOND)
SETTLE_WITHIN = 8
"""Seconds that a claimed entry of the outbox is its claimer's."""


P = ParamSpec("P")
R = TypeVar("R")


def judged(step: Callable[Concatenate[Play, P], R]) -> Callable[Concatenate[Play, P], R]:
    """Marks the play unsound while a step is under way, and so for good when the step's judgement fails."""

    @wraps(step)
    def wrapper(play: Play, /, *args: P.args, **kwargs: P.kwargs) -> R:
        play.sound = False
        result = step(play, *args, **kwargs)
        play.sound = True
        return result

    return wrapper


class Play:
    def __init__(self, store: Store, clock: Clock, reader: Reader) -> None:
        self.store, self.clock, self.reader = store, clock, reader
        self.world = World(clock)
        self.view = reader.read()
        self.deliveries = 0
        self.sound = True

    # -- every call ends here -----------------------------------------------------------------------------

    def after(self, verb: str, after: Aftermath | None = None, **about: Any) -> None:
        op = Op(verb, self.clock.now, **about)
        before, self.view = self.view, self.reader.read()
        for body in [b for b in self.world.bodies if b.worker.crashed and not self.runs(b)]:
            self.world.bodies.remove(body)
            self.world.ghosts.append(body.admission)
        self._forget_floating(op.now)
        judge(self.world, op, before, self.view)
        if after is not None:
            fresh = [t for t in self.view.outbox if t not in before.outbox and self.view.outbox[t] <= op.now + 64]
            assert after.outbox >= len(fresh), f"{verb} put {fresh} into the outbox and did not say so"
            self.asked(after, op)

    def _forget_floating(self, now: int) -> None:
        """Idle for long enough, a floating limit is again what tasks declare."""
        for key, known in self.world.floating.items():
            known.forgotten = 0
            if known.fresh and "f.fresh" not in self.view.notes.get(key, {}):
                assert known.fresh + POLICY.forget * SECOND <= now, f"the size of {key} is forgotten too soon"
                self.world.floating[key] = Floating(forgotten=known.size or 0)

    def unchanged(self, what: object) -> None:
        """Nothing was written: not a byte of the namespace has changed."""
        before, self.view = self.view, self.reader.read()
        assert before.same_as(self.view), f"{what} changed the store"

    def runs(self, body: Body) -> bool:
        record = self.view.tickets.get(body.message.ticket)
        return record is not None and (record.state, record.worker, record.fence) == ("running", *body.admission[1:])

    def asked(self, after: Aftermath, op: Op) -> None:
        """L14: a floating limit is refreshed by one worker at a time, and not before its time."""
        for key, token, name in after.refreshes:
            known = self.world.floating[key]
            assert name == "shop:size"
            assert known.fresh <= op.now, f"{key} is to be refreshed too soon"
            assert not (known.asked and known.asked.stands(op.now)), f"{key} is refreshed twice at once"
            worker = self.world.workers[op.worker]
            until = op.now + round(POLICY.refresh_timeout * SECOND)
            known.asked = Request(key, token, worker, worker.life, until)
            self.world.requests.append(known.asked)

    # -- messages -----------------------------------------------------------------------------------------

    @judged
    def deliver(
        self, message: Message, worker: Worker, *, source: str, delivery: str = "", full: bool = True, ack: bool = True
    ) -> Admission:
        """`source` is the broker, a hand (taken from its queue before), or a twin: the broker keeps its copy."""
        world = self.world
        if not delivery:
            self.deliveries += 1
            delivery = f"d{self.deliveries}"
        outcome = self.store.admit(
            message.ticket,
            message.links,
            worker.name,
            delivery=delivery,
            message=message.body if full else b"",
            cut=message.cut,
            queue=message.queue,
            rank=message.rank,
            expires=message.expires,
            late=message.late,
        )
        self._as_expected(outcome, world.admission(self.view, message, worker, delivery, self.clock.now, full=full))
        if isinstance(outcome, (Lost, Full)):
            self.unchanged(outcome)
            return outcome
        if source == "broker" and ack:
            world.broker.remove(message)
        if isinstance(outcome, Admitted) and outcome.fence > world.fence:
            self._start(message, worker, outcome.fence, delivery, copy=source == "broker" and ack and message.late)
        elif isinstance(outcome, (Revoked, Expired, Discarded)):
            message.fate = type(outcome).__name__.lower()
        message.excused = message.excused or not ack
        self.after("admit", getattr(outcome, "after", None), ticket=message.ticket, worker=worker.name)
        return outcome

    def _as_expected(self, outcome: Admission, expected: Admission) -> None:
        assert type(outcome) is type(expected), f"{outcome}, but {expected} was due"
        if isinstance(outcome, (Parked, Full)) and isinstance(expected, (Parked, Full)):
            assert outcome.link == expected.link, f"{outcome}, but {expected} was due"
        if isinstance(outcome, Admitted) and isinstance(expected, Admitted):
            right = outcome.fence == expected.fence if expected.fence else outcome.fence > self.world.fence
            assert right, f"fence {outcome.fence} after {self.world.fence}, {expected.fence} was due"

    def _start(self, message: Message, worker: Worker, fence: int, delivery: str, *, copy: bool) -> None:
        forgotten = message.done + POLICY.remember * SECOND <= self.clock.now
        again = message.fate == "done" and not message.excused and not forgotten
        assert not again, f"{message} runs again, though nothing had crashed"
        self.world.fence = fence
        self.world.bodies.append(Body(message, worker, worker.life, fence, delivery, copy))

    @judged
    def release(self, body: Body, *, back: bool = False, ack: bool = True) -> None:
        """`ack=False`: the worker dies between the release and what it does about the delivery."""
        world, message = self.world, body.message
        due = Released if self.runs(body) else Stale
        outcome = self.store.release(*body.admission, back=back)
        assert type(outcome) is due, f"{outcome} for {body.admission}, {due.__name__} was due"
        world.bodies.remove(body)
        world.ghosts.append(body.admission)
        if not back:
            message.fate, message.done = "done", self.clock.now
        message.excused = message.excused or not ack or due is Stale
        kept = isinstance(outcome, Released) and outcome.kept
        if (back and not kept) or (body.copy and not ack):
            world.broker.append(message)
        if isinstance(outcome, Released):
            self.after("release", outcome.after, ticket=message.ticket, worker=body.worker.name)
        else:
            self.unchanged(outcome)

    @judged
    def release_stale(self, ticket: str, worker: str, fence: int, *, back: bool) -> None:
        record = self.view.tickets.get(ticket)
        if record and (record.state, record.worker, record.fence) == ("running", worker, fence):
            return
        outcome = self.store.release(ticket, worker, fence, back=back)
        assert outcome == Stale(), f"{outcome} for an admission that counts for nothing"
        self.unchanged(outcome)

    @judged
    def cancel(self, task: str, *, tell: bool) -> None:
        mine = {t: r for t, r in self.view.tickets.items() if self.world.messages[t].task == task}
        open_ = {t: r for t, r in mine.items() if r.state in ("waiting", "granted", "away") and r.kept}
        outcome = self.store.cancel(task, settle_within=SETTLE_WITHIN)
        self.world.remembered[task] = self.clock.now + round(POLICY.remember * SECOND)
        assert outcome.running == sum(r.state == "running" for r in mine.values())
        assert {ended.ticket for ended in outcome.ended} == open_.keys()
        self.after("cancel", outcome.after, task=task)
        for ended in outcome.ended:
            assert self.view.tickets[ended.ticket].reason == "revoked"
            assert ended.message == self.world.messages[ended.ticket].payload(self.view.tickets[ended.ticket])
        if tell and outcome.ended:
            for ended in outcome.ended:
                self.world.messages[ended.ticket].fate = "revoked"
            self.settle(outcome.ended)

    # -- dispatch -----------------------------------------------------------------------------------------

    @judged
    def take(self, worker: Worker, queue: str, count: int) -> list[Message]:
        due = self.view.ready.get(queue, [])[:count]
        before = self.view
        outcome = self.store.take(worker.name, queue, count)
        if not worker.leased:
            assert outcome == Lost()
            self.unchanged(outcome)
            return []
        assert isinstance(outcome, tuple)
        assert [ticket for ticket, _ in outcome] == due, f"took {outcome}, in turn were {due}"
        messages = [self.world.messages[ticket] for ticket in due]
        for message, (ticket, text) in zip(messages, outcome, strict=True):
            assert text == message.payload(before.tickets[ticket])
            self.world.hands.append((worker, message))
        self.after("take", worker=worker.name)
        return messages

    @judged
    def claim(self, count: int) -> list[Errand]:
        before = self.view
        outcome = self.store.claim(count, settle_within=SETTLE_WITHIN)
        due = sorted((when, ticket) for ticket, when in before.outbox.items() if when <= self.clock.now)[:count]
        assert [claim.ticket for claim in outcome] == [ticket for _, ticket in due]
        self.after("claim")
        errands = [Errand(self.world.messages[claim.ticket], claim) for claim in outcome]
        for errand in errands:
            record = self.view.tickets[errand.claim.ticket]
            assert errand.claim.reason == (record.reason if record.state == "ended" else None)
            assert errand.claim.message == errand.message.payload(record)
        self.world.errands += errands
        return errands

    def run(self, errand: Errand) -> None:
        """Publishes the message, or tells its end; no call on the store."""
        errand.run = True
        if errand.claim.reason is None:
            self.world.broker.append(errand.message)
        else:
            errand.message.fate = errand.claim.reason

    @judged
    def settle(self, entries: Sequence[Claimed | Ended]) -> None:
        """A claim that another has taken over, or that came to nothing, settles nothing."""
        self.store.settle(entries)
        records = [(self.view.tickets.get(entry.ticket), entry) for entry in entries]
        if any(
            record and record.fence == entry.fence and entry.ticket in self.view.outbox for record, entry in records
        ):
            self.after("settle")
        else:
            self.unchanged("an old claim")

    # -- liveness -----------------------------------------------------------------------------------------

    @judged
    def beat(self, worker: Worker, *, look: bool = True) -> Beat:
        """Without a look where a sweep follows, which takes one."""
        buried = worker.name in self.view.dead
        due = Lost if buried else Renewed if worker.leased else Joined
        outcome = self.store.beat(worker.name)
        assert type(outcome) is due, f"{outcome} for {worker}, {due.__name__} was due"
        if not buried:
            worker.leased, worker.beaten = True, self.clock.now
            self.world.feel_pulse(self.clock.now, heard=True)
        if look:
            self.after("beat")
        return outcome

    @judged
    def leave(self, worker: Worker) -> None:
        """It goes without waiting for its bodies: they are cut off, and what the broker had of them comes back."""
        more = True
        while more:
            outcome = self.store.leave(worker.name)
            more = outcome.more
            if worker.leased:
                worker.lose()
            self.world.feel_pulse(self.clock.now, heard=False)
            self.after("leave", outcome, worker=worker.name)

    @judged
    def sweep(self, worker: Worker | None, batch: int) -> Swept:
        outcome = self.store.sweep(worker.name if worker else "", batch)
        world, now = self.world, self.clock.now
        world.feel_pulse(now, heard=worker is not None and worker.leased)
        for name in outcome.dead:
            dead = world.workers[name]
            assert dead.leased, f"{dead} is declared dead, but has no lease"
            assert dead.beaten + LEASE <= now, f"{dead} is declared dead, but lives"
            assert now >= world.grace, f"{dead} is declared dead, but nobody could have beaten"
            dead.lose()
        world.feel_pulse(now, heard=False)
        more = outcome.after.more
        name = worker.name if worker else ""
        self.after("sweep", outcome.after, worker=name, complete=not more)
        rings = min(self.view.alarms.values(), default=None)
        assert rings is None or (outcome.after.next_alarm or 0) <= rings + 1, "the next alarm comes too late"
        if not more:
            swept_clean(world, now, self.view)
            if worker and worker.leased:
                self._refreshes_what_is_waited_for(now)
        return outcome

    def _refreshes_what_is_waited_for(self, now: int) -> None:
        for key, known in self.world.floating.items():
            asked = known.asked is not None and known.asked.stands(now)
            soon = self.view.alarms.get(f"refresh|{key}", 0) <= now + SECOND
            assert not self.view.waiting(key) or known.fresh > now or asked or soon, f"nobody refreshes {key}"

    def crash(self, worker: Worker) -> None:
        """No call: it is never heard of again. What it had not acknowledged, the broker delivers again."""
        worker.crashed = True
        world = self.world
        world.hands = [(w, m) for w, m in world.hands if w is not worker]
        world.requests = [request for request in world.requests if request.worker is not worker]
        for body in [b for b in world.bodies if b.worker is worker]:
            message = body.message
            message.excused = True
            if body.copy:
                world.broker.append(message)
            elif message.ticket not in self.view.messages and not world.copies(message):
                message.fate = message.fate or "lost"

    # -- steering -----------------------------------------------------------------------------------------

    @judged
    def resize(self, key: str, size: int | str | None, burst: int = 1) -> None:
        self.world.steer(key, size, burst)
        outcome = self.store.reset(key) if size is None else self.store.resize(key, size, burst)
        self.after("resize", outcome)

    @judged
    def pause(self, key: str) -> None:
        self.store.pause(key)
        self.world.paused.add(key)
        self.after("pause")

    @judged
    def resume(self, key: str) -> None:
        self.world.paused.discard(key)
        self.after("resume", self.store.resume(key))

    @judged
    def refreshed(self, request: Request, size: int | None) -> None:
        key, known = request.key, self.world.floating[request.key]
        outcome = self.store.refreshed(key, request.worker.name, request.token, size)
        now = self.clock.now
        if isinstance(outcome, Stale):
            assert not (known.asked is request and request.stands(now)), f"{request} was answered in time, but stale"
            return self.unchanged(outcome)
        assert known.asked is request, f"{outcome} for {request}, asked was {known.asked}"
        known.asked = None
        every = next(s.every for m in self.world.messages.values() for s in m.specs if s.key == key)
        if size is not None:
            assert isinstance(outcome, Refreshed)
            known.size, known.fails, known.fresh = size, 0, now + every
        else:
            known.fails += 1
            assert isinstance(outcome, Failed)
            assert outcome.times == known.fails
            known.fresh = now + min(every * 2 ** (known.fails - 1), 3600 * SECOND)
        return self.after("refreshed", outcome.after)

    @judged
    def read(self, key: str, task: str) -> None:
        """The reads tell what is, and change nothing."""
        status = self.store.status(key)
        assert (status.running, status.waiting) == (self.view.used(key), self.view.waiting(key))
        assert status.paused == (key in self.world.paused)
        assert status.size == self.world.sizes.get(key)
        told = {story.ticket: story.state for story in self.store.explain(task).tickets}
        assert told == {t: r.state for t, r in self.view.tickets.items() if self.world.messages[t].task == task}
        self.unchanged("a read")

    @judged
    def look_over(self) -> None:
        """An auditor, who comes after a sweep, finds nothing to complain of."""
        assert audit(self.store) == []
