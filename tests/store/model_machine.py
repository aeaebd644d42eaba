"""The state machine: which step comes next, in any order that hypothesis thinks of, and how a story comes to its end.

Numbers drawn for a step only choose among what there is (modulo its count), so that any story can be shortened.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.errors import StopTest
from hypothesis.stateful import initialize, precondition, rule
from redis import Redis

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.scripts import Script, load

from .actors import SECOND, Clock, drain_time, leftovers
from .model import POLICY, Body, Errand, Floating, Message, Worker
from .model_cast import GROUPS, MANNERS, SLOTS, THEMES, Chain, Manner
from .model_machine_post import PICK, PostMachine, choose
from .model_play import Play
from .model_trace import traced
from .model_view import Reader

__all__ = ["LimitsMachine", "machine_on"]

KEYS = st.sampled_from(sorted({*SLOTS, *GROUPS}))


class LimitsMachine(PostMachine):
    """One story. `store`, `clock` and `reader` are those of the class, which is made for one server."""

    store: ClassVar[Store]
    clock: ClassVar[Clock]
    reader: ClassVar[Reader]
    themes: ClassVar[list[list[Chain]]] = THEMES

    def __init__(self) -> None:
        super().__init__()
        client: Any = self.store.client
        client.flushdb()
        self.clock.reset()
        self.play = Play(self.store, self.clock, self.reader)
        self.world = self.play.world
        self.world.floating["f"] = Floating()
        self.last: tuple[Message, Worker, str] | None = None
        self.done: set[str] = set()
        self.admitted: set[str] = set()
        self.marks = 0
        for _ in range(2):
            self._join()

    def _join(self) -> Worker:
        count = len(self.world.workers)
        worker = Worker(f"w{count + 1}", places=1 + count % 2)
        self.world.workers[worker.name] = worker
        self.play.beat(worker)
        return worker

    def _publish(self, chain: Chain, manner: Manner, *, again: bool = False) -> Message:
        n = len(self.world.messages)
        task = next(reversed(self.world.messages.values())).task if again and n else f"t{n}"
        queue, late, cut, rank, lasts = manner
        expires = None if lasts is None else self.clock.now + round(lasts * SECOND)
        message = Message(f"{task}.{n}", chain.links, rank, late, queue, expires, cut)
        if queue:
            self.play.publish(message)
        else:
            self.world.messages[message.ticket] = message
            self.world.broker.append(message)
        return message

    def _deliver(self, message: Message, worker: Worker, how: int) -> None:
        """Mostly plainly; else asking without the message first, or dying before the delivery is acknowledged."""
        if message.queue:
            self._fetch(worker, 1 if how == 1 else 2, start=how != 2)
            return
        if how == 1:
            self.play.deliver(message, worker, source="broker", full=False)
            if message not in self.world.broker:
                return
        self.play.deliver(message, worker, source="broker", ack=how != 2)
        self.last = (message, worker, f"d{self.play.deliveries}")

    # -- messages -----------------------------------------------------------------------------------------

    @initialize(data=st.data(), manners=st.lists(st.sampled_from(MANNERS), min_size=1, max_size=3))
    def begin(self, data: st.DataObject, manners: list[Manner]) -> None:
        """A story has few sorts of messages, so that they meet; and some are there before it starts."""
        theme = data.draw(st.sampled_from(self.themes))
        self.chains = chains = data.draw(st.lists(st.sampled_from(theme), min_size=1, max_size=5))
        self.manners = manners
        for i in range(4):
            self._deliver(self._publish(choose(chains, i), choose(manners, i)), choose(self.live, i), 0)

    @rule(pick=PICK, chain=st.integers(0, 4), manner=st.integers(0, 2), how=st.integers(0, 7))
    def publish(self, pick: int, chain: int, manner: int, how: int) -> None:
        message = self._publish(choose(self.chains, chain), choose(self.manners, manner), again=how == 5)
        if how != 3:
            self._deliver(message, self._worker(pick), how)

    @rule(pick=st.integers(0, 4))
    def publish_more(self, pick: int) -> None:
        self._deliver(self._publish(choose(self.chains, pick), choose(self.manners, pick)), self._worker(pick), 0)

    @precondition(lambda self: self.world.broker)
    @rule(pick=PICK, which=PICK, how=st.integers(0, 7))
    def deliver(self, pick: int, which: int, how: int) -> None:
        self._deliver(choose(self.world.broker, which), self._worker(pick), how)

    @precondition(lambda self: any(b.copy for b in self.world.bodies))
    @rule(pick=PICK, which=PICK)
    def deliver_twice(self, pick: int, which: int) -> None:
        """The broker believes that a worker is gone, and is wrong."""
        body = choose([b for b in self.world.bodies if b.copy], which)
        self.play.deliver(body.message, self._worker(pick), source="twin")
        body.message.excused = True

    @precondition(lambda self: self.last is not None and not self.last[1].crashed)
    @rule()
    def repeat_call(self) -> None:
        """The answer was lost on the way: the same call again, unless its outcome is history already."""
        assert self.last is not None
        message, worker, delivery = self.last
        record = self.play.view.tickets.get(message.ticket)
        if record and record.delivery == delivery and record.state != "away":
            message.excused = True
            self.play.deliver(message, worker, source="twin", delivery=delivery)

    @precondition(lambda self: self._bodies())
    @rule(which=PICK, how=st.integers(0, 7))
    def finish(self, which: int, how: int) -> None:
        self._release(choose(self._bodies(), which), ack=how != 1, along=how in (1, 3, 4, 5), takes=how in (1, 3, 4, 6))

    def _release(self, body: Body, *, ack: bool = True, along: bool = False, takes: bool = False) -> None:
        """What is not acknowledged now, or along with a release, is so with a later fetch, or never."""
        if body.field:
            self.done.add(body.field)
            self.admitted.add(body.field)
        acked = self._as_told(sorted(self._done(body.worker))) if along else []
        self.marks += takes
        self.play.release(body, ack=ack, acked=acked, mark=f"m{self.marks}" if takes else "")
        if body.field and ack and not along and body.worker.leased:
            self.play.acknowledge(body.worker, self._as_told([body.field]))

    @precondition(lambda self: self._returnable())
    @rule(which=PICK)
    def give_back(self, which: int) -> None:
        body = choose(self._returnable(), which)
        self.play.release(body, back=True)
        if body.field:
            self.play.requeue(body.worker, [body.field], "end")

    def _returnable(self) -> list[Body]:
        """But for those that our transport was told to forget."""
        unacked = self.play.view.unacked
        return [b for b in self._bodies() if not b.field or b.field in unacked.get(b.worker.name, ())]

    def _bodies(self) -> list[Body]:
        return [b for b in self.world.bodies if not b.worker.crashed]

    @precondition(lambda self: self.world.ghosts or self.world.bodies)
    @rule(pick=PICK, which=PICK, back=st.booleans(), along=st.booleans())
    def release_stale(self, pick: int, which: int, back: bool, along: bool) -> None:
        """What was released or lost before; or what runs, with another's name or with a fence of before."""
        running = [body.admission for body in self.world.bodies]
        ticket, worker, fence = choose(running if running and pick % 3 else self.world.ghosts or running, which)
        if pick % 3 == 1:
            worker = choose(sorted(self.world.workers), pick)
        elif pick % 3 == 2:
            fence -= 1
        acked = sorted(self.play.view.unacked.get(worker, ())) if along else []
        self.play.release_stale(ticket, worker, fence, back=back, acked=acked, mark="m" if along else "")

    @precondition(lambda self: self.world.messages)
    @rule(which=PICK, tell=st.booleans())
    def cancel(self, which: int, tell: bool) -> None:
        message = choose(list(self.world.messages.values()), -1 - which)
        self.play.cancel(message.task, tell=tell)

    # -- dispatch -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.play.view.outbox)
    @rule(count=st.integers(1, 3))
    def claim(self, count: int) -> None:
        self.play.claim(count)

    @precondition(lambda self: self.play.view.outbox)
    @rule(settle=st.booleans())
    def dispatch(self, settle: bool) -> None:
        """Claims and publishes; settles now, or later, or never."""
        self._dispatch(settle=settle)

    def _dispatch(self, *, settle: bool) -> None:
        errands = self.play.claim(10)
        for errand in errands:
            self.play.run(errand)
        if settle:
            self._settle(errands)

    @precondition(lambda self: self.world.errands)
    @rule(which=PICK)
    def run_errand(self, which: int) -> None:
        """Goes on with what was claimed, long ago perhaps."""
        errand = choose(self.world.errands, which)
        if errand.run:
            self._settle([errand])
        else:
            self.play.run(errand)

    def _settle(self, errands: list[Errand]) -> None:
        for errand in errands:
            self.world.errands.remove(errand)
        if errands:
            self.play.settle([errand.claim for errand in errands])

    # -- time and death -----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.5, 1.0, 0.999999, 2.5, 5.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.pass_(seconds)

    @rule(seconds=st.sampled_from((8.0, 21.0, 700.0, 4000.0)))
    def much_time_passes(self, seconds: float) -> None:
        self.clock.pass_(seconds)

    @rule(pick=PICK, batch=st.sampled_from((100, 1, 2)))
    def sweep(self, pick: int, batch: int) -> None:
        self.play.sweep(None if pick == 0 else self._worker(pick), batch)

    @rule(rounds=st.sampled_from((1, 3, 3)), silent=st.integers(0, 7))
    def live_on(self, rounds: int, silent: int) -> None:
        """Seconds as they are: workers beat and someone sweeps. One may be cut off, and comes back another time."""
        for _ in range(rounds):
            self.clock.pass_(1.9)  # in half a lease, so that nobody takes it for an outage
            beating = [w for i, w in enumerate(self.live) if i != silent]
            for worker in beating:
                self.play.beat(worker, look=False)
            self._sweep_all(beating[0] if beating else None)

    def _sweep_all(self, worker: Worker | None) -> None:
        while self.play.sweep(worker, 100).after.more:
            pass

    @rule(pick=PICK, what=st.sampled_from(("beat", "crash", "leave", "crash")))
    def staff_changes(self, pick: int, what: str) -> None:
        """One dies, leaves or only beats; two are left at least, and while there are fewer than four another comes."""
        worker = choose(self.live, pick)
        if what == "beat" or len(self.live) < 3:
            self.play.beat(worker)
        elif what == "crash":
            self.play.crash(worker)
        else:
            self.play.leave(worker)
        if len(self.live) < 4 and pick % 2:
            self._join()

    @rule(pick=PICK, places=st.sampled_from((0, 1, 2, 3)))
    def pool_changes(self, pick: int, places: int) -> None:
        worker = choose(self.live, pick)
        worker.places = places
        self.play.beat(worker)

    # -- steering -----------------------------------------------------------------------------------------

    @rule(key=KEYS, size=st.sampled_from((None, None, 1, 2, 0, 3, "pause")))
    def steer(self, key: str, size: int | str | None) -> None:
        """A pause does not last: whoever steers next ends it."""
        paused = sorted(self.world.paused)
        if paused:
            self.play.resume(paused[0])
        elif size == "pause":
            self.play.pause(key)
        elif key in "rs" and isinstance(size, int):
            self.play.resize(key, f"{size}/s", burst=max(1, size - 1))
        else:
            self.play.resize(key, size)

    @precondition(lambda self: self.world.requests)
    @rule(which=PICK, size=st.sampled_from((1, 2, 3, 0, None)))
    def answer_refresh(self, which: int, size: int | None) -> None:
        """The last asked mostly; those before it have been overtaken."""
        self.play.refreshed(choose(self.world.requests, -1 - (which if which > 9 else 0)), size)

    @rule(key=KEYS, which=PICK)
    def look_over(self, key: str, which: int) -> None:
        self.play.read(key, choose(list(self.world.messages.values()), which).task)
        self._sweep_all(self._worker(which))
        self.play.look_over()

    # A rule that has several names is drawn that many times as often.
    publish_2 = publish_3 = publish
    publish_more_2 = publish_more_3 = publish_more
    deliver_2 = deliver
    finish_2 = finish_3 = finish_4 = finish_5 = finish
    give_back_2 = give_back
    finish_6 = finish_7 = finish
    run_errand_2 = run_errand
    dispatch_2 = dispatch
    time_passes_2 = time_passes_3 = time_passes
    sweep_2 = sweep_3 = sweep

    # -- the end ------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Everyone recovers, everything runs, time passes; then every message has ended and nothing is left."""
        if not self.play.sound or isinstance(sys.exc_info()[1], StopTest):
            return  # it has failed already, or hypothesis has had enough of it
        for key in sorted(self.world.paused):
            self.play.resume(key)
        for key in sorted({spec.key for message in self.world.messages.values() for spec in message.specs}):
            self.play.resize(key, "1000/s" if key in "rs" else 50, burst=50)
        last = self._join()
        for _ in range(600):  # a clock set back after a silence keeps what was claimed for as long as the silence
            if self._quiet():
                break
            self._finish_round(last)
        assert self._quiet(), f"never comes to rest: {self.play.view.tickets}"
        for worker in self.live:
            self.store.leave(worker.name)
        for key in {**SLOTS, **GROUPS}:
            self.store.reset(key)
        drain_time(self.store, self.clock)
        assert audit(self.store) == []
        assert leftovers(self.store) == []
        unended = [m for m in self.world.messages.values() if not m.fate]
        assert not unended, f"{unended} never ended"

    def _quiet(self) -> bool:
        world = self.world
        remembered = all(r.state in ("away", "finished") and not r.kept for r in self.play.view.tickets.values())
        return remembered and not (world.broker or world.bodies or self.play.view.carried)

    def _finish_round(self, last: Worker) -> None:
        play, world = self.play, self.world
        for body in self._bodies():
            self._release(body)
        for worker in self.live:
            if done := self._done(worker):
                play.acknowledge(worker, self._as_told(sorted(done)))
        for worker, field in self._fetched():
            if field in self.play.view.unacked.get(worker.name, ()):
                self._start_fetched(worker, field)
        for message in list(world.broker):
            play.deliver(message, last, source="broker")
        self._fetch(last, 20, start=True)
        for body in self._bodies():
            self._release(body)
        self._dispatch(settle=True)
        self.clock.pass_(1.9)  # in half a lease, so that nobody takes it for an outage
        for worker in self.live:
            play.beat(worker, look=False)
        self._sweep_all(last)


def machine_on(
    client: Redis, scripts: Callable[[str], Script] = load, themes: list[list[Chain]] = THEMES
) -> type[LimitsMachine]:
    """A machine for one server, on connections that all its stories share."""
    clock = Clock()
    store = Store(client, "model", POLICY, clock, traced(scripts))
    own = {"store": store, "clock": clock, "reader": Reader(store), "themes": themes}
    return type("LimitsMachine", (LimitsMachine,), own)
