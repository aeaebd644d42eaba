"""How a virtual worker keeps house: lease, sweeps, refreshes, releases and the outbox, call by call as in
`celery_limits.worker` (lease, exits, outbox). What it runs meanwhile is left to `worker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from celery_limits.store.outcomes import Aftermath, Claimed, Joined, Lost, Refresh, Released
from celery_limits.worker.exits import Ledger
from tests.store.actors import SECOND
from tests.store.model import POLICY, Worker

from .schedule import Call, Idle, Process, Sleep, Steps, Unreachable

if TYPE_CHECKING:
    from .consumer import Consumer, Ride
    from .story import Story

__all__ = ["Habits", "Household"]

LEASE = round(POLICY.lease * SECOND)
BEATS = 3
NAP = LEASE
"""Between two sweeps when nothing is due earlier; longer than a real one, since that is only a precaution."""

CLAIM = 5
"""Entries of the outbox in one claim."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How a worker was set up. `forked`: bodies are processes of their own, which run on when the parent is stopped."""

    places: int = 2
    prefetch: int = 2
    forked: bool = True
    terminates: bool = False
    frugal: bool = False
    """It asks without the message first."""
    rate: float = 1.0
    """How fast its clock runs."""
    batch: int = 100
    """How much it works off in one sweep: what a dead worker had is recovered in several where there is more."""


class Household:
    consumer: Consumer

    def __init__(self, story: Story, name: str, habits: Habits) -> None:
        self.story, self.schedule, self.referee, self.broker = story, story.schedule, story.referee, story.broker
        self.name, self.habits = name, habits
        self.process = Process(name, habits.rate)
        self.ledger = Ledger()
        self.lives = 0
        self.life = self._new_life()
        self.good_until = 0
        self.reachable = True
        self.retired = False
        """It keeps house no more."""
        self.ever_stopped = False
        self.housekeeper = self.schedule.start(self._live(), self.process)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def came_back(self) -> None:
        """The store answers."""
        raise NotImplementedError

    def losing(self) -> None:
        """The lease will lapse, and there may be no further chance to end what others will be given."""
        raise NotImplementedError

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
        next_beat = next_sweep = 0
        while not self.retired:
            try:
                if self.local_time >= next_beat:
                    yield from self._beat()
                    next_beat = self.local_time + LEASE // BEATS
                if self.local_time >= next_sweep or not self.reachable:
                    next_sweep = (yield from self._sweep()) + self.local_time
                self.reachable = True
                self.came_back()
                if self.consumer.owes:
                    yield from self.consumer.try_to_pay()
                self.story.listening(self.housekeeper)
                yield Idle(max(1000, min(next_sweep, next_beat) - self.local_time))
                if self.story.stop_listening(self.housekeeper):
                    next_sweep = 0
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
            yield Call(f"beat({anew.name})", lambda: self.referee.renew(anew))
        if not self.good_until:
            self.consumer.wake()
        self.good_until = sent + LEASE
        life = self.life
        held = yield Call(f"held_by({life.name})", lambda: self.referee.held_by(life))
        for ticket, fence, back in self.ledger.forgotten(held):
            yield from self._release(ticket, life, fence, back=back)

    def _sweep(self) -> Steps:
        life = self.life
        while True:
            swept = yield Call(f"sweep({life.name})", lambda: self.referee.sweep(life, self.habits.batch))
            self._refresh_all(swept.after.refreshes, life)
            yield from self._follow_up(swept.after)
            if not swept.after.more:
                due = swept.after.due_in
                return NAP if due is None else min(NAP, round(due * SECOND))

    def _went_away(self) -> None:
        self.reachable = False
        if self.habits.terminates and self.local_time > self.good_until - LEASE // BEATS:
            self.losing()

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

    # -- slots, and whoever gets them next --------------------------------------------------------------------

    def _release(self, ticket: str, life: Worker, fence: int, *, back: bool = False, ride: Ride | None = None) -> Steps:
        """None when the store could not be told: the next beat makes up for it."""
        message = self.referee.world.messages[ticket]
        acked, mark = (ride.acked, ride.mark) if ride else ((), "")
        what = f"release({ticket}, {life.name}, {fence}{', back' if back else ''} {','.join(acked)} {mark})"
        release = partial(self.referee.give_up, message, life, fence, back=back, acked=acked, mark=mark)
        try:
            outcome = yield Call(what, release)
        except Unreachable:
            return None
        if isinstance(outcome, Released):
            yield from self._follow_up(outcome.after)
        return outcome

    def _follow_up(self, after: Aftermath) -> Steps:
        if after.outbox:
            try:
                yield from self._work_off()
            except Unreachable:
                self.say("the outbox has to wait")

    def _work_off(self) -> Steps:
        again: list[Claimed] = []
        while errands := (yield Call("claim", partial(self.referee.claim, CLAIM, again))):
            retried, finished, again = bool(again), list[Claimed](), []
            for errand in errands:
                yield Sleep(round(self.story.errand_seconds() * SECOND))
                done = self.story.errand_done(errand)
                (finished if done else again).append(errand.claim)
            if finished:
                yield Call("settle", partial(self.referee.settle, finished))
            if retried and again:
                break
