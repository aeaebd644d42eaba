"""The play: makes a call on the store, holds its answer against the model, and does to the world what the call did.

Every method is one thing that a worker, a broker or a person does. Which, and in which order, is up to
`model_machine`; a crash is that somebody does not do the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_limits.store.audit import audit
from celery_limits.store.outcomes import (
    Admission,
    Admitted,
    Beat,
    Claimed,
    Discarded,
    Ended,
    Expired,
    Failed,
    Full,
    Handed,
    Joined,
    Lost,
    Parked,
    Refreshed,
    Release,
    Released,
    Renewed,
    Revoked,
    Stale,
    Swept,
)
from celery_limits.store.serving import Serving

from .actors import SECOND
from .model import POLICY, Body, Errand, Message, Request, Worker
from .model_checks import swept_clean
from .model_release import Releasing
from .model_scene import judged
from .post import QUEUE

__all__ = ["LEASE", "Play"]

LEASE = round(POLICY.lease * SECOND)
SETTLE_WITHIN = 8
"""Seconds that a claimed entry of the outbox is its claimer's."""


class Play(Releasing):
    # -- messages -----------------------------------------------------------------------------------------

    @judged
    def deliver(
        self,
        message: Message,
        worker: Worker,
        *,
        source: str,
        delivery: str = "",
        full: bool = True,
        ack: bool = True,
        field: str = "",
        arrival: int = 0,
        new: bool = False,
    ) -> Admission:
        """`source` is the broker, our own transport (`field`: which delivery), or a twin: the broker keeps its copy."""
        world = self.world
        if not delivery:
            self.deliveries += 1
            delivery = f"d{self.deliveries}"
        outcome = self.store.admit(
            message.ticket,
            message.links,
            worker.name,
            delivery=delivery,
            message=message.body if full and not field else b"",
            cut=message.cut,
            queue=message.queue,
            source=QUEUE,
            rank=message.rank,
            expires=message.expires,
            late=message.late,
            field=field,
            arrival=self.view.sealed(message.ticket, arrival),
            new=new,
        )
        due = world.admission(
            self.view, message, worker, delivery, self.clock.now, full=full, field=field, arrival=arrival, new=new
        )
        self._as_expected(outcome, due)
        if isinstance(outcome, (Lost, Full)):
            self.unchanged(outcome)
            return outcome
        if source == "broker" and ack:
            world.broker.remove(message)
        if isinstance(outcome, Admitted) and outcome.fence > world.fence:
            copy = source == "broker" and ack and message.late
            self._start(message, Body(message, worker, worker.life, outcome.fence, delivery, copy, field))
        elif isinstance(outcome, (Revoked, Expired, Discarded)):
            message.fate = type(outcome).__name__.lower()
        message.excused = message.excused or not ack
        after = getattr(outcome, "after", None)
        self.after("admit", after, ticket=message.ticket, worker=worker.name, arrival=arrival)
        return outcome

    def _as_expected(self, outcome: Admission, expected: Admission) -> None:
        assert type(outcome) is type(expected), f"{outcome}, but {expected} was due"
        if isinstance(outcome, (Parked, Full)) and isinstance(expected, (Parked, Full)):
            assert outcome.link == expected.link, f"{outcome}, but {expected} was due"
        if isinstance(outcome, Admitted) and isinstance(expected, Admitted):
            right = outcome.fence == expected.fence if expected.fence else outcome.fence > self.world.fence
            assert right, f"fence {outcome.fence} after {self.world.fence}, {expected.fence} was due"

    @judged
    def release(
        self, body: Body, *, back: bool = False, ack: bool = True, acked: Sequence[str] = (), mark: str = ""
    ) -> Handed | None:
        """`ack=False`: the worker dies between the release and what it does about the delivery."""
        message = body.message

        def done(outcome: Release) -> None:
            if not back:
                message.fate, message.done = "done", self.clock.now
            message.excused = message.excused or not ack or isinstance(outcome, Stale)
            kept = isinstance(outcome, Released) and outcome.kept
            if ((back and not kept) or (body.copy and not ack)) and not message.queue:
                self.world.broker.append(message)

        outcome = self._released(body.admission, done, back=back, acked=acked, mark=mark)
        return outcome.handed if isinstance(outcome, Released) else None

    @judged
    def cancel(self, task: str, *, tell: bool) -> None:
        mine = {t: r for t, r in self.view.tickets.items() if self.world.messages[t].task == task}
        open_ = {t: r for t, r in mine.items() if r.state in ("waiting", "granted", "away") and r.kept}
        outcome = self.store.cancel(task, settle_within=SETTLE_WITHIN)
        self.world.remembered[task] = self.clock.now + round(POLICY.revoke_ttl * SECOND)
        assert outcome.running == sum(r.state == "running" for r in mine.values())
        assert {ended.ticket for ended in outcome.ended} == open_.keys()
        self.after("cancel", outcome.after, task=task)
        for ended in outcome.ended:
            assert self.view.tickets[ended.ticket].reason == "revoked"
            assert self.world.messages[ended.ticket].is_payload(ended.message, self.view.tickets[ended.ticket])
        if tell and outcome.ended:
            for ended in outcome.ended:
                self.world.messages[ended.ticket].fate = "revoked"
            self.settle(outcome.ended)

    # -- dispatch -----------------------------------------------------------------------------------------

    @judged
    def claim(self, count: int, again: Sequence[Claimed] = ()) -> list[Errand]:
        """`again`: claimed before, and not finished."""
        before = self.view
        outcome = self.store.claim(count, settle_within=SETTLE_WITHIN, again=again)
        times = dict(before.outbox)
        for entry in again:
            record = before.tickets.get(entry.ticket)
            if entry.ticket in times and record and record.fence == entry.fence:
                times[entry.ticket] = self.clock.now
        due = sorted((when, ticket) for ticket, when in times.items() if when <= self.clock.now)[:count]
        assert [claim.ticket for claim in outcome] == [ticket for _, ticket in due]
        self.after("claim")
        errands = [Errand(self.world.messages[claim.ticket], claim) for claim in outcome]
        for errand in errands:
            record = self.view.tickets[errand.claim.ticket]
            assert errand.claim.reason == (record.reason if record.state == "ended" else None)
            assert errand.message.is_payload(errand.claim.message, record)
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
    def beat(self, worker: Worker, *, look: bool = True, renew: bool = False) -> Beat:
        """Without a look where a sweep follows, which takes one."""
        buried = worker.name in self.view.dead or (not worker.leased and worker.name in self.view.unacked)
        due = Lost if buried or (renew and not worker.leased) else Renewed if worker.leased else Joined
        serving = None if renew else Serving(worker.places, (QUEUE,))
        outcome = self.store.beat(worker.name, renew=renew, serving=serving)
        assert type(outcome) is due, f"{outcome} for {worker}, {due.__name__} was due"
        if due is not Lost:
            self.clock.keep()
            worker.leased, worker.beaten = True, self.clock.now
            worker.told = worker.told if renew else worker.places
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
        self.clock.keep()
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
        untied = frozenset(one.ticket for one in outcome.untied if one.ticket)
        self.after("sweep", outcome.after, worker=name, complete=not more, untied=untied)
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
        """No call: it is never heard of again. What it had not acknowledged, the broker delivers again at once, and
        our own transport when its lease has lapsed."""
        worker.crashed = True
        world = self.world
        world.requests = [request for request in world.requests if request.worker is not worker]
        for body in [b for b in world.bodies if b.worker is worker]:
            message = body.message
            message.excused = True
            if body.copy:
                world.broker.append(message)
            elif message.ticket not in self.view.messages and not world.copies(message, self.view):
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
        findings = audit(self.store)
        assert not findings, f"the audit finds {findings}"
