"""One seed, told to its end: load and faults, then a time without faults in which everything must come to rest.

While there are faults, every guarantee is checked after every call. When they stop, every message must end within
`patience`; when all have ended and the workers have left, the store must be empty and its audit find nothing.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Callable

from celery_limits.declare.chain import ConcurrencyLink, Link
from celery_limits.store.audit import audit, leftovers
from tests.store.actors import SECOND, c, drain_time, f, r
from tests.store.model import Errand, Floating, Message

from .broker import Broker
from .consumer import Consumer
from .faults import Faults
from .fibers import abandon_all
from .pools import Pool, ProcessPool
from .referee import Referee
from .schedule import Call, Schedule, Sleep, Steps, Thread, Unreachable
from .trip import BELL, CALL, Stage
from .worker import Habits, VirtualWorker

__all__ = ["Story", "Violation"]

LINKS: dict[str, tuple[Link, ...]] = {
    "a": (c("a", 1), c("a", 1), c("a", 2), c("a", 1, on_full="discard"), c("a", 1, max_waiting=1)),
    "b": (c("b", 2), c("b", 2, weight=2), c("b", 3, weight=2), c("b", 2, max_waiting=2)),
    "f": (f("f", 1, every=5), f("f", 2, every=5), f("f", 2, every=5, weight=2)),
    "g": (c("g", 2, group="x"), c("g", 2, group="y"), c("g", 2, group="y", share=3.0), c("g", 3, group="z", weight=2)),
    "p": tuple(ConcurrencyLink(key="p", limit="workers", group=group) for group in ("x", "y", None)),
    "r": (r("r", "2/s"), r("r", "2/s", 2), r("r", "2/s", 2, cost=2)),
    "s": (r("s", "2/s", group="x"), r("s", "2/s", 2, group="y", share=2.0), r("s", "2/s", 2, cost=2, group="z")),
    "z": (c("z", 1), c("z", 2), c("z", 1, max_waiting=3)),
}
"""All chains take their keys in this order, so that no story ends in a deadlock; deadlocks have tests of their own."""

PATIENCE = 120
"""Virtual seconds from the last fault until the first of a line must have ended: leases lapse, claims and grants time
out, a refresh that failed is tried again."""

EACH = 4
"""Further seconds for every message that is still open."""


class Violation(AssertionError):
    """A guarantee does not hold, in this seed."""


class Story:
    def __init__(self, seed: int, stage: Stage, trace: Callable[[str], None] | None = None) -> None:
        stage.clear()
        self.seed, self.store, self.clock = seed, stage.store, stage.clock
        self.schedule = Schedule(seed, self.clock, trace)
        self._order = random.Random(f"order of {seed}")
        self.crosswise = self._order.random() < 0.2
        """Whether messages take their keys in any order, so that they may wait for each other."""
        self.schedule.looked = self.looked
        self.dice = self.schedule.dice
        self.broker = Broker()
        self.referee = Referee(stage, self._elsewhere)
        self.referee.on_dead = self._declared_dead
        self.referee.true_time = lambda: self.schedule.now
        self.referee.world.floating["f"] = Floating()
        self.workers: list[VirtualWorker] = []
        self.healed = self.closing = False
        self.runs = 0
        self._listeners: list[Thread] = []
        self._sleepers: list[Consumer] = []
        self._stage = stage
        self.published = self.unsent = 0
        self._hired = 0
        keys = self.dice.sample(sorted(LINKS), self.dice.choice((1, 2, 2, 3)))
        self.keys = sorted(keys)
        self.faults = Faults(self)
        self.referee.on_handed = self.faults.was_handed
        self.referee.on_released = self._was_released

    # -- the whole of it ------------------------------------------------------------------------------------

    def tell(self) -> None:
        logging.disable(logging.CRITICAL)
        try:
            self._tell()
        except Exception as error:  # a script that fails, say: nothing may
            line = traceback.extract_tb(error.__traceback__)[-1].line
            what = str(error) or line if isinstance(error, AssertionError) else repr(error)
            raise Violation(f"seed {self.seed}: {what}") from error
        finally:
            abandon_all()
            logging.disable(logging.NOTSET)

    def _tell(self) -> None:
        dice, schedule = self.dice, self.schedule
        for _ in range(dice.choice((2, 2, 3, 4))):
            self.hire()
        length = dice.choice((3, 6, 12))
        for _ in range(dice.randint(4, 14)):
            schedule.after(dice.random() * length * 0.7, self.publish)
        self.faults.plan(length)
        schedule.run(schedule.now + length * SECOND)
        self._heal()
        patience = PATIENCE + EACH * len(self._open())
        schedule.run(schedule.now + patience * SECOND, over=self._at_rest)
        assert self._at_rest(), f"after {patience} s without faults these have not ended: {self._open_told()}"
        self._close()

    def _heal(self) -> None:
        self.schedule.say("", "-- no more faults --")
        self.healed = True
        self.faults.stop()
        if not self._hands():
            self.hire()

    def _hands(self) -> list[VirtualWorker]:
        return [w for w in self.workers if w.process.alive and not w.leaving]

    def _open(self) -> list[Message]:
        return [m for m in self.referee.world.messages.values() if not m.fate]

    def _open_told(self) -> str:
        """What is open; or, where every message has ended, what somebody still has of one."""
        view = self.referee.view
        open_ = [f"{m}: {view.tickets.get(m.ticket)}" for m in self._open()]
        hands = [f"{w} has {d.message} in hand" for w in self.workers for d in w.in_hand]
        with_broker = [f"{w} has not acknowledged {d.message}" for d, w in self.broker.unacknowledged.values()]
        kept = [f"{t}: {r}" for t, r in view.tickets.items() if r.state not in ("away", "finished") or r.kept]
        return "; ".join([*open_, *hands, *with_broker, *kept])

    def _at_rest(self) -> bool:
        """Nothing of any message is anywhere but in memories that time will take."""
        if self.unsent or self.referee.view.carried or self.broker.ready:
            return False
        if any(not m.fate for m in self.referee.world.messages.values()):
            return False
        if any(w.in_hand for w in self.workers) or self.broker.unacknowledged:
            return False
        return all(t.state in ("away", "finished") and not t.kept for t in self.referee.view.tickets.values())

    def _close(self) -> None:
        self.closing = True
        for worker in self._hands():
            worker.leave()
        self.schedule.run(self.schedule.now + 60 * SECOND, over=lambda: all(w.gone for w in self.workers))
        assert all(w.gone for w in self.workers), "a worker could not leave"
        self._stage.caller.looking = False
        world = self.referee.world
        for key in {*world.sizes, *world.rates, *world.paused}:
            self.store.reset(key)
            self.store.resume(key)
        self.clock.server = max(self.clock.server, self.schedule.now + self.schedule.leap)
        drain_time(self.store, self.clock)
        if self._stage.is_empty():
            return
        findings, left = audit(self.store), leftovers(self.store)
        assert not findings, f"the audit finds {findings}"
        assert not left, f"left when all is quiet: {left}"

    # -- the cast -------------------------------------------------------------------------------------------

    def hire(self) -> VirtualWorker:
        dice = self.dice
        self._hired += 1
        habits = Habits(
            places=dice.choice((1, 2, 3)),
            prefetch=dice.choice((1, 2, 4, 8)),
            forked=dice.random() < 0.6,
            parent_releases=dice.random() < 0.8,
            terminates=dice.random() < 0.3,
            rate=self.faults.clock_rate(),
            batch=dice.choice((100, 1, 1, 2)),
        )
        worker = VirtualWorker(self, f"w{self._hired}", habits)
        self.schedule.say(worker.name, f"begins: {habits}")
        self.workers.append(worker)
        return worker

    def publish(self, task: str = "") -> None:
        dice = self.dice
        number = self.published
        self.published += 1
        keys = [key for key in self.keys if dice.random() < 0.7] or [dice.choice(self.keys)]
        links = tuple(dice.choice(LINKS[key]) for key in keys)
        if self.crosswise:  # limits of one call, which no check of declarations has seen
            links = tuple(self._order.sample(links, len(links)))
        expires = self.clock.server + dice.randint(1, 8) * SECOND if dice.random() < 0.15 else None
        eta = self.schedule.now + dice.randint(1, 5) * SECOND if expires is None and dice.random() < 0.1 else None
        message = Message(
            f"{task or f't{number}'}.{number}",
            links,
            rank=dice.choice((0, 0, 3)),
            late=dice.random() < 0.5,
            queue=dice.choice(("q", "q", "")),
            expires=expires,
            cut=dice.choice((None, 1)),
            eta=eta,
        )
        self.schedule.say("", f"publish {message} {links}")
        if message.queue:
            self.unsent += 1
            self.schedule.start(self._publishing(message), self.faults.person)
        else:
            self.referee.world.messages[message.ticket] = message
            self._send(message, new=True)

    def _publishing(self, message: Message) -> Steps:
        """Through our own transport; what was not answered is published again, as kombu does."""
        while True:
            try:
                yield Call(f"publish({message.ticket})", lambda: self.referee.publish(message), attempts=1)
            except Unreachable:
                yield Sleep(SECOND // 5)
            else:
                break
        self.unsent -= 1

    def _send(self, message: Message, *, new: bool) -> None:
        self.broker.publish(message, new=new)
        self.wake_someone()

    def wake_someone(self) -> None:
        hands = self._hands()
        if hands:
            self.dice.choice(hands).wake()

    # -- what virtual workers ask for -----------------------------------------------------------------------

    def duration(self) -> float:
        return self.dice.choice((0.01, 0.3, 1.0, 2.5, 2.5, 9.0))

    def body_starts(self, worker: VirtualWorker, message: Message, life: str, fence: int) -> None:
        self.runs += 1
        assert (message.ticket, life, fence) not in self.referee.released, f"{message} begins though it was released"
        worker.say(f"runs {message.ticket} as {life}, {fence}")

    def body_ends(self, message: Message) -> None:
        message.fate = message.fate or "done"
        message.done = self.clock.now
        if not self.healed and self.dice.random() < 0.1:
            self.publish(message.task)  # a retry: the same task, another message

    def rejects(self) -> bool:
        """Whether a body wants its message to go back to its queue."""
        return not self.healed and self.dice.random() < 0.05

    def reception(self, message: Message) -> str:
        """What becomes of a message that was handed over: it comes to the gate at once, or waits for its time, or was
        dropped on the way, such as one whose time has passed."""
        return "begins" if self.healed else self.dice.choice(("begins",) * 8 + ("waits", "dropped"))

    def backend_fails(self) -> bool:
        """Whether a result can't be stored."""
        return not self.healed and self.dice.random() < self.faults.unstored

    def patience(self) -> int:
        """How often a worker that leaves looks whether its bodies have ended, before it ends them."""
        return 20 if self.healed else self.dice.choice((1, 1, 20))

    def times_out(self) -> bool:
        """Whether the time limit of a body passes while a worker ends it."""
        return not self.healed and self.dice.random() < 0.5

    def closing_seconds(self, pool: Pool) -> float:
        """How long it takes to close a connection that is lost; a process of the pool may die meanwhile."""
        if self.healed:
            return 0.0
        if isinstance(pool, ProcessPool) and pool.jobs and self.dice.random() < 0.3:
            pool.kill(self.dice.choice(list(pool.jobs)))
        return self.dice.choice((0.0, 0.001, 0.1))

    def refresh_answer(self) -> tuple[int | None, float]:
        """A size, or None for a failure; and after how long."""
        if self.healed:
            return 3, 0.1
        return self.dice.choice((1, 2, 3, 0, None)), self.dice.choice((0.05, 1.0, 25.0))

    def errand_seconds(self) -> float:
        """How long the broker takes; where it does not always confirm, it may take longer than the claim lasts."""
        return self.dice.choice((0.001, 0.001, 0.1, 10.0)) if self.faults.unconfirmed else 0.001

    def errand_done(self, errand: Errand) -> bool:
        """Publishes, or tells the end. False when the broker's confirmation is lost."""
        confirmed = self.dice.random() >= self.faults.unconfirmed
        if errand.claim.reason is not None:
            errand.message.fate = errand.message.fate or errand.claim.reason
        elif confirmed or self.dice.random() < 0.5:
            self._send(errand.message, new=False)
        return confirmed

    def is_gone(self, worker: VirtualWorker) -> None:
        """Its connections are closed: it hears nothing any more."""
        self._listeners = [thread for thread in self._listeners if thread.process is not worker.process]
        self.awake(worker.consumer)

    def has_left(self, worker: VirtualWorker) -> None:
        self.is_gone(worker)
        worker.process.alive = False
        worker.in_hand.clear()
        self.broker.hang_up(worker)
        self.wake_someone()

    def sleeping(self, consumer: Consumer) -> None:
        """It waits for the bell of the queue."""
        self._sleepers.append(consumer)

    def awake(self, consumer: Consumer) -> None:
        if consumer in self._sleepers:
            self._sleepers.remove(consumer)

    def listening(self, housekeeper: Thread) -> None:
        """It waits for the bell of the housekeeping."""
        self._listeners.append(housekeeper)

    def stop_listening(self, housekeeper: Thread) -> bool:
        """True when the bell is what woke it."""
        rung = housekeeper not in self._listeners
        if not rung:
            self._listeners.remove(housekeeper)
        return rung

    def looked(self) -> None:
        """After every call: whoever is blocked hears its bell, the one that has waited longest for it."""
        rung = self._stage.reader.rung
        if BELL in rung and self._listeners:
            self._stage.silence(BELL)
            self.schedule.wake(self._listeners.pop(0))
        if CALL in rung and self._sleepers:
            self._stage.silence(CALL)
            sleeper = self._sleepers.pop(0)
            sleeper.rung = True
            sleeper.wake()

    def _was_released(self, message: Message, life: str, fence: int) -> None:
        """Guarantee 1: the slot is free when the body is dead, not when it was told to die."""
        for worker in self.workers:
            for body, delivery in worker.bodies.items():
                runs = delivery.message is message and delivery.body == (life, fence)
                alive = body.process.alive and not body.over
                assert not (runs and alive), f"{message} is released while its body runs"

    def _declared_dead(self, name: str) -> None:
        """Guarantee 1, without its exception: a worker that ends its bodies in time has none when its lease lapses. The
        one that has noticed may be slow to go on with what the dead one had."""
        self.schedule.lingers = not self.healed and self.dice.random() < 0.5
        for worker in self.workers:
            if worker.life.name == name and worker.ends_in_time and self.faults.prompt:
                assert not worker.bodies, f"{name} is taken for dead, and has not ended its bodies"

    def _elsewhere(self, message: Message) -> bool:
        """With a broker that knows nothing of the store, or where a body runs. What our own transport has brought to a
        worker, and is not begun, is no copy: the store must have it."""
        if message.queue:
            bodies = [(body, d) for w in self.workers for body, d in w.bodies.items()]
            return any(d.message is message and body.process.alive for body, d in bodies)
        return self.broker.has(message) or any(d.message is message for w in self.workers for d in w.in_hand)
