"""A virtual worker: the gate, the exchange, the hand-off, the ledger, the lease and the outbox of the product, in
virtual time, around a model of Celery's event loop and pools.

One thread is the event loop, one renews the lease and one keeps house (`lease.lease`), one fetches from our own
transport (`consumer`), and bodies are processes or threads (`pools`). A worker is ended by `crash` at any instant, or
by `leave` in good order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_limits.dispatch.release import OutboxChore, Releaser
from celery_limits.lease.heartbeat import Runtime, Threads
from celery_limits.lease.housekeeping import Chore
from celery_limits.lease.lease import Lease
from celery_limits.lease.ledger import Ledger
from celery_limits.patches.request import NotNow
from celery_limits.store.outcomes import Refresh
from celery_limits.worker.chores import GateChore
from celery_limits.worker.gate import Gate
from tests.store.actors import SECOND
from tests.store.model import Worker

from .broker import Delivery
from .consumer import Consumer
from .fibers import VirtualEvent, VirtualLock, block, drive, run
from .pools import Pool, ProcessPool, new_pool
from .requests import VirtualDeliveries, VirtualRequest, plan_of
from .schedule import Call, Idle, Process, Sleep, Steps, Thread, Unreachable
from .virtual_store import VirtualBatch, VirtualOutbox, VirtualStore

if TYPE_CHECKING:
    from .story import Story

__all__ = ["Habits", "VirtualWorker"]


@dataclass(frozen=True, slots=True)
class Habits:
    """How a worker was set up. `forked`: bodies are processes of their own, which run on when the parent is stopped;
    `parent_releases`: as where it consumes from our own transport alone."""

    places: int = 2
    prefetch: int = 2
    forked: bool = True
    parent_releases: bool = True
    terminates: bool = False
    rate: float = 1.0
    """How fast its clock runs."""
    batch: int = 100
    """How much it works off in one sweep: what a dead worker had is recovered in several where there is more."""


class VirtualLease(Lease):
    """The real one, under names that are the same whenever a story is told."""

    def __init__(self, worker: VirtualWorker, *args: Any, **kwargs: Any) -> None:
        self._of = worker
        self._lives = 0
        super().__init__(worker.name, *args, **kwargs)

    def _new_name(self) -> str:
        self._lives += 1
        life = Worker(f"{self._of.name}/{self._lives}")
        self._of.story.referee.world.workers[life.name] = life
        return life.name

    @property
    def was_taken(self) -> bool:
        return self._was_here


class _Unconfirmed(Chore):
    """The unconfirmed calls of the simulated channel."""

    def __init__(self, worker: VirtualWorker) -> None:
        self._worker = worker

    def store_answered(self) -> None:
        if self._worker.consumer.owes:
            drive(self._worker.consumer.try_to_confirm())

    def leaving(self, _: str) -> None:
        self.store_answered()


class _Housekeeping:
    """The thread of the lease, as whoever stops it sees it."""

    def __init__(self, thread: Thread) -> None:
        self.thread = thread

    def join(self, _: float) -> None:
        """It looks whether it is to stop, and does nothing else then."""


class _Qos:
    def __init__(self, value: int) -> None:
        self.value = value

    def increment_eventually(self) -> int:
        self.value += 1
        return self.value

    def decrement_eventually(self) -> int:
        self.value -= 1
        return self.value


class VirtualWorker:
    """A `worker.port.WorkerLike`."""

    not_now: type[BaseException] = NotNow
    pid = -1
    consumer: Consumer
    gate: Gate
    pool: Pool

    def __init__(self, story: Story, name: str, habits: Habits) -> None:
        self.story, self.schedule, self.referee, self.broker = story, story.schedule, story.referee, story.broker
        self.name, self.habits, self.forked = name, habits, habits.forked
        self.process = Process(name, habits.rate)
        self.leaving = self.quitting = self.gone = self.ever_stopped = self._closed = False
        self.in_hand: dict[Delivery, None] = {}
        self.bodies: dict[Thread, Delivery] = {}
        self.revoked: set[str] = set()
        self._places, self._waiting = habits.places, deque[VirtualRequest]()
        self._inbox: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self.qos = _Qos(habits.prefetch)
        self.parent_is_there = habits.forked and habits.parent_releases
        self._build()
        self.loop = self.schedule.start(self._loop(), self.process)
        self.schedule.start(run(self._start), self.process)

    def _build(self) -> None:
        """As `worker.steps` puts the parts together."""
        store: Any = VirtualStore(self)
        self.store = store
        outbox = VirtualOutbox(store, self.story)
        self.ledger = Ledger()
        self.releaser, self._of_child = Releaser(store, outbox), Releaser(store, outbox)
        schedule = self.schedule
        runtime = Runtime(lambda: self.local_time / SECOND, partial(VirtualEvent, schedule), self._start_thread)
        self.lease = VirtualLease(
            self,
            store,
            self.ledger,
            runtime=runtime,
        )
        self.consumer = Consumer(self)
        deliveries: Any = VirtualDeliveries()
        batch: Any = VirtualBatch
        self.gate = Gate(
            self,
            store,
            self.lease,
            self.ledger,
            self.releaser,
            self.refresh,
            deliveries,
            plan=plan_of,
            batch=batch,
        )
        self.lease.register(GateChore(self.gate, self.refresh, self._end_bodies))
        self.lease.register(OutboxChore(outbox))
        self.lease.register(_Unconfirmed(self))
        self.gate.parent_releases = self.parent_is_there
        if not self.forked:
            self.releaser.handoff = self.gate.handoff
        self.pool = new_pool(self)

    def _start(self) -> None:
        start: Any = self._start_thread
        threads = Threads(lambda function, _: start(function, "keeper"), partial(VirtualLock, self.schedule))
        self.lease.start(threads, self.store)

    def _start_thread(self, function: Callable[[], None], name: str) -> _Housekeeping:
        return _Housekeeping(self.schedule.start(run(function), self.process))

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def say(self, what: str) -> None:
        self.schedule.say(self.name, what)

    @property
    def life(self) -> Worker:
        return self.referee.world.workers[self.lease.worker]

    @property
    def local_time(self) -> int:
        return round(self.schedule.now * self.process.rate)

    @property
    def ends_in_time(self) -> bool:
        """It ends its bodies before its lease lapses, unless it was stopped, or its clock is far too slow."""
        steady = not self.ever_stopped and self.process.rate >= 1
        return self.forked and self.habits.terminates and self.process.alive and steady

    # -- the event loop -------------------------------------------------------------------------------------------

    def _loop(self) -> Steps:
        while not self._closed:
            if self._inbox:
                function, args = self._inbox.popleft()
                yield from run(function, *args)
            elif not self._fetch_foreign():
                yield Idle(SECOND)

    def call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        self._inbox.append((function, args))
        self.schedule.wake(self.loop)

    hears = call_soon

    def call_after(self, seconds: float, function: Callable[..., Any], *args: Any) -> None:
        self.schedule.after(seconds, self.call_soon, function, *args)

    def wake(self) -> None:
        self.schedule.wake(self.loop)

    @property
    def channel(self) -> Consumer | None:
        return None if self.leaving else self.consumer

    @property
    def has_place(self) -> bool:
        """As far as it knows: a pool of threads does not say."""
        return not self.forked or self._places > 0

    @property
    def is_stopping(self) -> bool:
        return self.leaving

    @property
    def pool_queues(self) -> bool:
        return bool(self.pool.queue)

    def is_gone(self, process: int) -> bool:
        assert isinstance(self.pool, ProcessPool)
        return self.pool.is_gone(process)

    def releaser_of(self, pool: Pool) -> Releaser:
        return self._of_child if isinstance(pool, ProcessPool) else self.releaser

    def acknowledge_pending(self) -> None:
        """Here, the event loop has come to them."""

    def is_ready(self, request: VirtualRequest) -> None:
        """Nobody counts them."""

    # -- deliveries -------------------------------------------------------------------------------------------------

    def _fetch_foreign(self) -> bool:
        """From the broker that knows nothing of the store. Whether something came."""
        unacknowledged = sum(whose is self for _, whose in self.broker.unacknowledged.values())
        if self.leaving or unacknowledged >= self.qos.value:
            return False
        delivery = self.broker.fetch(self)
        if delivery is None:
            return False
        self.in_hand[delivery] = None
        self.call_soon(self.receive, delivery)
        return True

    def receive(self, delivery: Delivery) -> None:
        """In the event loop. What is due later waits for a timer."""
        if delivery not in self.in_hand:
            return
        ahead = (delivery.message.eta or 0) - self.schedule.now
        if ahead > 0:
            self.schedule.at(self.schedule.now + ahead + 1, self.call_soon, self.receive, delivery)
        elif not self.leaving:
            self.resubmit(VirtualRequest(self, delivery))

    def resubmit(self, request: VirtualRequest) -> None:
        """Celery's semaphore counts the places of a prefork pool."""
        if self.forked and self._places <= 0:
            self._waiting.append(request)
            return
        if self.forked:
            self._places -= 1
        self.gate(request)

    def hand_over(self, request: VirtualRequest) -> None:
        self.pool.apply(request)

    def free_place(self) -> bool:
        if self._waiting and not self.leaving:
            self.gate(self._waiting.popleft())
        else:
            self._places = min(self._places + 1, self.habits.places)
            self.consumer.wake()
        return True

    def acknowledge(self, delivery: Delivery) -> None:
        if delivery.field:
            self.consumer.acknowledge(delivery)
        else:
            self.broker.acknowledge(delivery)
            self.wake()
        self._acknowledged(delivery)

    def put_back(self, delivery: Delivery) -> None:
        """To its queue: rejected."""
        if delivery.field:
            self.consumer.put_back(delivery)
        else:
            self.broker.put_back(delivery)
            self.story.wake_someone()
        self._acknowledged(delivery)

    def _acknowledged(self, delivery: Delivery) -> None:
        delivery.settled = True
        self.is_settled(delivery)

    def is_settled(self, delivery: Delivery) -> None:
        """Where it is acknowledged, and no job of the pool is it, the worker has nothing of it in hand any more."""
        if delivery.settled and not any(job.request.delivery is delivery for job in self.pool.jobs):
            self.in_hand.pop(delivery, None)

    # -- the connection to the broker is lost -------------------------------------------------------------------------

    def reconnect(self) -> None:
        """In the event loop: as the channel closes, the pool is flushed, and the consumer starts again. To close takes
        time, in which processes may die."""
        self.parent_is_there = False
        kept = {job.request.delivery for job in self.pool.jobs if self.pool.keeps(job)}
        dropped = [d for d in self.in_hand if d not in kept]
        self.consumer.give_back([d.field for d in dropped if d.field and d.field in self.consumer.deliveries], "front")
        self.broker.hang_up(self)
        for delivery in dropped:
            self.in_hand.pop(delivery, None)
        block(Sleep(round(self.story.closing_seconds(self.pool) * SECOND)))
        self._waiting.clear()
        self._places = self.habits.places
        self.pool.flush()
        self.gate.reconnected()
        self.parent_is_there = self.gate.parent_releases and not self.leaving
        self.consumer.is_back()

    def lose_connection(self) -> None:
        """And it does not know yet."""
        self.consumer.broken = True
        self.consumer.wake()

    # -- bodies -------------------------------------------------------------------------------------------------

    def refresh(self, asked: Refresh) -> None:
        self.schedule.start(self._refresh(asked), self.process)

    def _refresh(self, asked: Refresh) -> Steps:
        size, seconds = self.story.refresh_answer()
        yield Sleep(round(seconds * SECOND))
        request = self.referee.request(asked.key, asked.token)
        try:
            yield Call(f"refreshed({asked.key}, {size})", lambda: self.referee.refreshed(request, size))
        except Unreachable:
            self.say(f"the refresh of {asked.key} comes to nothing")

    def _end_bodies(self) -> None:
        """The lease is about to lapse, and others will be given what this worker holds."""
        if self.habits.terminates and isinstance(self.pool, ProcessPool):
            for job in list(self.pool.jobs):
                self.pool.kill(job)

    # -- the end ----------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Nobody hears of it any more. The broker notices sooner or later."""
        self.process.alive = False
        self.gone = True
        if isinstance(self.pool, ProcessPool):
            for child in self.pool.by_pid.values():
                child.alive = False
        self.in_hand.clear()
        self.story.is_gone(self)
        for life in self._lives():
            self.referee.crash(life)

    def _lives(self) -> list[Any]:
        return [w for name, w in self.referee.world.workers.items() if name.rpartition("/")[0] == self.name]

    def leave(self) -> None:
        self.leaving = True
        self.parent_is_there = False
        self._waiting.clear()
        self.wake()
        self.consumer.wake()
        self.schedule.start(self._leave(), self.process)

    def _leave(self) -> Steps:
        """Bodies may end by themselves for a while; then those that can be are ended, and go back if they may."""
        patience = self.story.patience()
        while self.pool.jobs or self._inbox:
            yield Sleep(SECOND // 5)
            patience -= 1
            if patience == 0 and isinstance(self.pool, ProcessPool):
                self._quit(self.pool)
        yield from run(self._settle)
        yield from self.consumer.close()
        yield from run(self.lease.stop)
        self.gone = True
        self.story.has_left(self)

    def _settle(self) -> None:
        """The pool has stopped: the event loop ends."""
        self._closed = True
        self.gate.close()
        kept = [d.field for d in self.in_hand if d.field in self.consumer.deliveries]
        self.consumer.give_back(kept, "front")

    def _quit(self, pool: ProcessPool) -> None:
        """A cold shutdown: Celery cancels what is acknowledged late, and leaves it to the broker."""
        self.quitting = True
        for job in list(pool.jobs):
            if job.request.task.acks_late:
                job.request._already_cancelled = True
            self.call_soon(pool.time_out, job) if self.story.times_out() else pool.kill(job)
