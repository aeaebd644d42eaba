"""What goes wrong in a story: which kinds of faults it has, how often, and when, all from its seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tests.store.actors import SECOND
from tests.store.model import POLICY

from .pools import Job, ProcessPool
from .schedule import Call, Process, Steps, Thread, Unreachable
from .worker import VirtualWorker

if TYPE_CHECKING:
    from .story import Story

__all__ = ["Faults"]

MOST_WORKERS = 5

LOOK_AGAIN = 0.5
"""Seconds between two looks whether a call of before is still under way."""


class Faults:
    def __init__(self, story: Story) -> None:
        self.story, self.dice = story, story.dice
        self.unconfirmed = 0.0
        """The share of messages that the broker takes, or not, without saying so."""
        self.unstored = 0.0
        """The share of results that can't be stored."""
        self.prompt = True
        """Store and broker answer at once or not at all, so that a lease is renewed whenever it can be."""
        self.skewed = self.dice.random() < 0.3
        self.person = Process("a person")
        self.stopped = False
        self._ambushes = self._lingers = self._revokes = 0
        self._threads: list[Thread] = []
        self.struck: Counter[str] = Counter()

    def clock_rate(self) -> float:
        """Of a skewed story, about one worker in two has a clock that is far off."""
        return self.dice.choice((1.0, 1.0, 0.8, 1.25)) if self.skewed else 1.0

    def plan(self, seconds: float) -> None:
        """Draws the faults of this story: a few kinds of them, so that each kind is met with and without the others."""
        dice, schedule, weather = self.dice, self.story.schedule, self.story.schedule.weather
        weather.lost_request = dice.choice((0.0, 0.0, 0.05, 0.15))
        weather.lost_answer = dice.choice((0.0, 0.0, 0.1, 0.3))
        weather.late = dice.choice((0.0, 0.5))
        weather.slow = dice.choice((0.0, 0.0, 0.05))
        self.unconfirmed = dice.choice((0.0, 0.0, 0.2))
        self.unstored = dice.choice((0.0, 0.0, 0.3))
        self.prompt = not (weather.slow or self.unconfirmed)
        kinds = dice.sample(self.kinds(), dice.choice((0, 1, 2, 3, 4)))
        for kind in kinds:
            for _ in range(dice.choice((1, 1, 2, 3))):
                schedule.after(dice.random() * seconds * 0.9, self._strike, kind)

    def kinds(self) -> list[Callable[[], None]]:
        return [
            *(self.crash, self.crash, self.crash_all, self.kill_body, self.time_limit),
            *(self.stand_still, self.stand_still, self.cut_off, self.outage),
            *(self.ambush, self.ambush, self.linger, self.reconnect, self.reconnect, self.revoke, self.revoke_asking),
            *(self.leave, self.deliver_again, self.broker_restart, self.leap),
            *(self.cancel, self.cancel, self.resize, self.resize, self.pause),
        ]

    def _strike(self, kind: Callable[[], None]) -> None:
        if not self.stopped:
            self.struck[kind.__name__] += 1
            kind()

    def stop(self) -> None:
        """All is well from here on; a person has seen to it."""
        self.stopped = True
        self.unconfirmed = 0.0
        schedule = self.story.schedule
        schedule.weather.clear()
        for worker in self.story.workers:
            worker.process.stopped_until = worker.process.cut_until = 0
        self._steer_back()

    def _steer_back(self) -> None:
        """When nothing that people have done before is still on its way."""
        if self.story.schedule.late or not all(thread.over for thread in self._threads):
            return self.story.schedule.after(LOOK_AGAIN, self._steer_back)
        referee = self.story.referee
        for key in self.story.keys:
            self._person(f"reset({key})", partial(referee.resize, key, None))
            self._person(f"resume({key})", partial(referee.resume, key))
        return None

    # -- the kinds ------------------------------------------------------------------------------------------

    def _somebody(self, *, busy: bool = False) -> VirtualWorker | None:
        """`busy`: rather one that runs something than another."""
        alive = [w for w in self.story.workers if w.process.alive]
        running = [w for w in alive if w.bodies] if busy else []
        return self.dice.choice(running or alive) if alive else None

    def _say(self, what: str) -> None:
        self.story.schedule.say("** fault **", what)

    def crash(self, worker: VirtualWorker | None = None) -> None:
        """The broker notices, and someone starts another; both sooner or later."""
        worker = worker or self._somebody()
        if worker is None:
            return
        self._say(f"{worker.name} dies")
        worker.crash()
        schedule = self.story.schedule
        schedule.after(self.dice.choice((0.001, 0.5, 6.0)), self._notice, worker)
        schedule.after(self.dice.choice((0.01, 2.0)), self._replace)

    def _notice(self, worker: VirtualWorker) -> None:
        self.story.broker.hang_up(worker)
        self.story.looked()

    def _replace(self) -> None:
        if not self.story.closing and sum(w.process.alive for w in self.story.workers) < MOST_WORKERS:
            self.story.hire()

    def ambush(self) -> None:
        """The next worker that is handed something dies of it: before it hears, as it begins, or a little later."""
        self._ambushes += 1

    def linger(self) -> None:
        """The next answer that hands something off is slow."""
        self._lingers += 1

    def revoke_asking(self) -> None:
        """The next task that a thread asks for is revoked and terminated meanwhile."""
        self._revokes += 1

    def asks_in_thread(self, job: Job) -> None:
        if self._revokes and not self.stopped:
            self._revokes -= 1
            self.story.schedule.after(self.dice.choice((0.0002, 0.001)), self._terminate, job)

    def _terminate(self, job: Job) -> None:
        if not job.begun:
            self._say(f"{job} is revoked")
            job.request.delivery.message.excused = job.request.terminated = True

    def was_handed(self, life: str) -> None:
        if self._lingers and not self.stopped:
            self._lingers -= 1
            self.story.schedule.lingers = True
        found = [w for w in self.story.workers if w.life.name == life and w.process.alive]
        if self._ambushes and not self.stopped and found:
            self._ambushes -= 1
            self.story.schedule.after(self.dice.choice((0.0, 0.002, 0.005, 0.3)), self._die_of_it, found[0])

    def _die_of_it(self, worker: VirtualWorker) -> None:
        if worker.process.alive and not self.stopped:
            self.crash(worker)

    def crash_all(self) -> None:
        for worker in [w for w in self.story.workers if w.process.alive]:
            self.crash(worker)

    def kill_body(self) -> None:
        """Or a process that has just been given one."""
        if found := self._job():
            found[0].kill(found[1])

    def _job(self) -> tuple[ProcessPool, Job] | None:
        worker = self._somebody()
        if worker and isinstance(worker.pool, ProcessPool) and worker.pool.jobs:
            return worker.pool, self.dice.choice(list(worker.pool.jobs))
        return None

    def time_limit(self) -> None:
        if found := self._job():
            pool, job = found
            pool.worker.call_soon(pool.time_out, job)

    def revoke(self) -> None:
        """The worker that has a task is told to revoke and terminate it, and the store is not, which may be away."""
        worker = self._somebody()
        if not worker or not worker.in_hand:
            return
        message = self.dice.choice(list(worker.in_hand)).message
        self._say(f"{worker.name} is told to revoke {message.task}")
        message.excused = True
        worker.revoked.add(message.task)
        for job in worker.pool.jobs:
            if job.request.delivery.message is message and not job.begun:
                job.request.terminated = True

    def stand_still(self) -> None:
        """A stopped process, or a machine that swaps: nothing of it moves, and then all goes on as if nothing was."""
        worker = self._somebody(busy=True)
        if worker:
            seconds = self.dice.choice((0.5, 3.0, 1.5 * POLICY.lease, 3 * POLICY.lease))
            self._say(f"{worker.name} stands still for {seconds} s")
            worker.process.stopped_until = self.story.schedule.now + round(seconds * SECOND)
            worker.ever_stopped = True

    def cut_off(self) -> None:
        worker = self._somebody(busy=True)
        if worker:
            seconds = self.dice.choice((0.5, 3.0, 1.5 * POLICY.lease, 3 * POLICY.lease))
            self._say(f"{worker.name} does not reach the store for {seconds} s")
            worker.process.cut_until = self.story.schedule.now + round(seconds * SECOND)

    def outage(self) -> None:
        seconds = self.dice.choice((0.5, 3.0, 1.5 * POLICY.lease, 3 * POLICY.lease))
        self._say(f"nobody reaches the store for {seconds} s")
        self.story.schedule.weather.outage_until = self.story.schedule.now + round(seconds * SECOND)

    def leave(self) -> None:
        worker = self._somebody(busy=True)
        if worker and not worker.leaving:
            self._say(f"{worker.name} is told to leave")
            worker.leave()
            self.story.schedule.after(self.dice.choice((0.01, 2.0)), self._replace)

    def deliver_again(self) -> None:
        if waiting := list(self.story.broker.unacknowledged):
            number = self.dice.choice(waiting)
            self._say(f"the broker delivers d{number} again")
            self.story.broker.deliver_again(number)

    def reconnect(self) -> None:
        worker = self._somebody()
        if worker:
            self._say(f"{worker.name} loses its connection")
            worker.lose_connection()

    def broker_restart(self) -> None:
        self._say("the broker loses every connection")
        self.story.broker.hang_up()
        for worker in self.story.workers:
            worker.lose_connection()

    def leap(self) -> None:
        """Another machine becomes the store, and its clock is ahead, or behind."""
        seconds = self.dice.choice((0.5, 10.0, 700.0, -0.5, -10.0, -700.0))
        self._say(f"the clock of the store's server leaps by {seconds} s")
        self.story.schedule.leap += round(seconds * SECOND)
        self.story.clock.pass_(seconds)

    # -- what people do -------------------------------------------------------------------------------------

    def _person(self, what: str, act: Callable[[], object]) -> None:
        def steps() -> Steps:
            with suppress(Unreachable):
                yield Call(what, act)

        self._threads.append(self.story.schedule.start(steps(), self.person))

    def cancel(self) -> None:
        if messages := list(self.story.referee.world.messages.values()):
            task, tell = self.dice.choice(messages).task, self.dice.random() < 0.7
            self._person(f"cancel({task})", lambda: self.story.referee.cancel(task, tell=tell))

    def resize(self) -> None:
        key, size = self.dice.choice(self.story.keys), self.dice.choice((None, 0, 1, 2, 3))
        rate = f"{size}/s" if key in "rs" and size is not None else None
        burst = max(1, (size or 0) - 1)
        self._person(f"resize({key}, {rate or size})", lambda: self.story.referee.resize(key, rate or size, burst))

    def pause(self) -> None:
        key = self.dice.choice(self.story.keys)
        self._person(f"pause({key})", lambda: self.story.referee.pause(key))
        self.story.schedule.after(self.dice.choice((0.5, 3.0)), self._resume, key)

    def _resume(self, key: str) -> None:
        if not self.stopped:
            self._person(f"resume({key})", lambda: self.story.referee.resume(key))
