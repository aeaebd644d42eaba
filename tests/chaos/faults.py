"""The injector: does to workers, to Redis and to the wires between them what the plan says, and mends it again.

Each fault runs in a thread of its own, for some last. One that needs a worker takes a place where no other fault is at
work; where there is none it waits for one, and if need be in vain. What was done, to whom and for how long is in the
ledger.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery_limits.store import StoreError
from tests.chaos.fleet import LEASE, Fleet, Place
from tests.chaos.ledger import Ledger
from tests.chaos.plan import Fault, Plan
from tests.chaos.world import NEW, OLD, size_of
from tests.server_clock import SetClockServer
from tests.store.cutting_proxy import CuttingProxy

__all__ = ["HARD", "Injector"]

HARD = frozenset({"kill", "kill child", "kill all"})
"""What ends a process without a word."""


PATIENCE = 30.0
"""Seconds for which a fault waits for a worker that is worth it: many that wait would let none do any work."""


class TooLate(Exception):
    """No worker was ready for the fault, for long or before the end."""


class Injector:
    """Works off the plan; `finish` waits for what is under way and puts everything right."""

    def __init__(self, fleet: Fleet, plan: Plan, on_deploy: Callable[[], Any]) -> None:
        self._thread = threading.Thread(target=self._run, name="chaos-faults", daemon=True)
        self._fleet, self._plan, self._on_deploy = fleet, plan, on_deploy
        self._ledger: Ledger = fleet.ledger
        self._servers = threading.RLock()
        self._limits = fleet.limits()
        self._under_way: list[threading.Thread] = []
        self.struck: Counter[str] = Counter()
        self.kills = 0
        self.over = threading.Event()
        self.failures: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        for fault in self._plan.faults:
            if self.over.wait(max(0.0, began + fault.at - time.monotonic())):
                return
            thread = threading.Thread(target=self._strike, args=(fault,), name=f"chaos-{fault.kind}", daemon=True)
            thread.start()
            self._under_way = [each for each in self._under_way if each.is_alive()] + [thread]

    def finish(self) -> None:
        self.over.set()
        self._thread.join()
        for thread in self._under_way:
            thread.join()
        self._fleet.site.mend()
        for place in self._fleet.places:
            if place.wire is not None:
                place.wire.reopen()
        self.restart_the_fallen()

    def restart_the_fallen(self) -> None:
        """A worker may end by itself, for instance when it could not reach its broker for too long."""
        for place in self._fleet.places:
            if place.lock.acquire(blocking=False):  # else a fault is at work there
                try:
                    if place.worker is not None and not place.worker.is_running:
                        self._ledger.note("gone", worker=place.worker.name)
                        self._fleet.replace(place)
                finally:
                    place.lock.release()

    def _strike(self, fault: Fault) -> None:
        act = getattr(self, "_" + fault.kind.replace(" ", "_").replace("-", "_"))
        try:
            act(fault)
        except TooLate:
            pass
        except Exception as error:
            self.failures.append(f"{fault}: {error!r}")
            self._ledger.note("fault failed", kind=fault.kind, error=repr(error))

    @contextmanager
    def _a_place(self, fault: Fault) -> Iterator[Place]:
        """With a worker that is ready; a fault that finds none before the end is over is not struck."""
        places = self._fleet.places
        order = places[int(fault.whom * len(places)) :] + places[: int(fault.whom * len(places))]
        given_up = time.monotonic() + PATIENCE
        while not self.over.is_set() and time.monotonic() < given_up:
            self.restart_the_fallen()
            for place in order:
                if place.lock.acquire(blocking=False):
                    try:
                        if place.has_been_ready(self._plan.profile.calm):
                            yield place
                            place.calm_down()
                            return
                    finally:
                        place.lock.release()
            self.over.wait(0.1)
        raise TooLate

    def _note(self, fault: Fault, place: Place | None = None, phase: str = "fault", **more: Any) -> None:
        if phase == "fault":
            self.struck[fault.kind] += 1
        worker = place.worker.name if place is not None and place.worker is not None else ""
        self._ledger.note(phase, kind=fault.kind, worker=worker, seconds=fault.seconds, **more)

    # -- workers -----------------------------------------------------------------------------------------------------

    def _end(self, fault: Fault, *signals: signal.Signals) -> None:
        with self._a_place(fault) as place:
            self._end_at(fault, place, *signals)
            place.wait_ready()

    def _end_at(self, fault: Fault, place: Place, *signals: signal.Signals, shift: float = 0.0) -> None:
        worker = place.worker
        assert worker is not None
        self._note(fault, place)
        for number in signals:
            worker.signal(number)
            self.over.wait(0.3 if len(signals) > 1 else 0)
        self.kills += signal.SIGKILL in signals
        self._fleet.replace(place, shift=shift)

    def _kill(self, fault: Fault) -> None:
        self._end(fault, signal.SIGKILL)

    def _term(self, fault: Fault) -> None:
        self._end(fault, signal.SIGTERM)

    def _quit(self, fault: Fault) -> None:
        self._end(fault, signal.SIGQUIT)

    def _term_twice(self, fault: Fault) -> None:
        self._end(fault, signal.SIGTERM, signal.SIGTERM)

    def _kill_all(self, fault: Fault) -> None:
        places = self._fleet.places
        for place in places:
            place.lock.acquire()
        try:
            for place in places:
                self._end_at(fault, place, signal.SIGKILL)
            for place in places:
                place.wait_ready()
        finally:
            for place in places:
                place.lock.release()

    def _kill_child(self, fault: Fault) -> None:
        with self._a_place(fault) as place:
            worker = place.worker
            assert worker is not None
            children = worker.children()
            if not children:  # threads: then there is only the worker to kill
                self._end_at(fault, place, signal.SIGKILL)
                place.wait_ready()
                return
            child = children[int(fault.whom * 997) % len(children)]
            self._note(fault, place, child=child)
            self.kills += 1
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def _stop(self, fault: Fault) -> None:
        with self._a_place(fault) as place:
            worker = place.worker
            assert worker is not None
            self._note(fault, place)
            worker.signal_all(signal.SIGSTOP)
            self.over.wait(fault.seconds)
            worker.signal_all(signal.SIGCONT)
            self._note(fault, place, "mended")

    _stop_briefly = _stop

    def _clock(self, fault: Fault) -> None:
        """Its worker is told to go, and the next one in its place has a clock that is ahead, or behind."""
        with self._a_place(fault) as place:
            shift = (1 if fault.whom < 0.5 else -1) * (LEASE + 120 * fault.whom)
            self._end_at(fault, place, signal.SIGTERM, shift=shift)
            place.wait_ready()

    # -- wires -------------------------------------------------------------------------------------------------------

    def _note_behind(self, fault: Fault, workers: list[str], phase: str = "fault") -> None:
        """The wire is the place's, and one that was told to go may still end there what it runs."""
        self.struck[fault.kind] += phase == "fault"
        for worker in workers:
            self._ledger.note(phase, kind=fault.kind, worker=worker, seconds=fault.seconds)

    def _cut(self, fault: Fault) -> None:
        with self._a_place(fault) as place:
            self._note_behind(fault, self._fleet.behind_the_wire_of(place))
            _wire_of(place).cut_all()

    def _away(self, fault: Fault, *, silently: bool) -> None:
        with self._a_place(fault) as place:
            workers = self._fleet.behind_the_wire_of(place)
            self._note_behind(fault, workers)
            _wire_of(place).shut(silently=silently)
            self.over.wait(fault.seconds)
            _wire_of(place).reopen()
            self._note_behind(fault, workers, "mended")

    def _cut_off(self, fault: Fault) -> None:
        self._away(fault, silently=False)

    def _half_open(self, fault: Fault) -> None:
        self._away(fault, silently=True)

    _half_open_briefly = _half_open

    # -- Redis -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _server(self, fault: Fault) -> Iterator[Any]:
        """One fault of the servers at a time. One that lasts is mended when the block ends."""
        with self._servers:
            if self.over.is_set():
                raise TooLate
            self._note(fault)
            yield self._fleet.site
            if fault.seconds:
                self._note(fault, phase="mended")

    def _redis_killed(self, fault: Fault) -> None:
        with self._server(fault) as site:
            site.redis.kill()
            self.over.wait(fault.seconds)
            site.redis.start(within=60)

    _redis_away = _redis_killed

    def _redis_paused(self, fault: Fault) -> None:
        with self._server(fault) as site:
            site.redis.pause()
            self.over.wait(fault.seconds)
            site.redis.resume()

    def _redis_clock(self, fault: Fault) -> None:
        """Its clock is set back, and stays so: ahead, a rate would have been idle meanwhile, and let a burst pass."""
        if not isinstance(getattr(self._fleet.site, "redis", None), SetClockServer):
            raise TooLate
        with self._server(fault) as site:
            site.redis.step(-(1 + 600 * fault.whom))

    def _rabbit_killed(self, fault: Fault) -> None:
        with self._server(fault) as site:
            site.rabbit.kill()
            self.over.wait(fault.seconds)
            site.rabbit.start(within=120)

    def _rabbit_restarted(self, fault: Fault) -> None:
        with self._server(fault) as site:
            site.rabbit.stop()
            self.over.wait(fault.seconds)
            site.rabbit.start(within=120)

    def _rabbit_closed(self, fault: Fault) -> None:
        with self._server(fault) as site:
            site.rabbit.close_connections()

    def _failover(self, fault: Fault) -> None:
        """Mended when there is a primary again; the next one waits until that has a replica, too."""
        with self._servers:
            with self._server(fault) as site:
                site.watched.fail_over()
            site.watched.bring_back()

    # -- steering ----------------------------------------------------------------------------------------------------

    def _resize(self, fault: Fault) -> None:
        """A hot tenant's key, so that it matters; and back to what is declared."""
        key = f"tenant:{int(fault.whom * 8)}"
        size = size_of(key, OLD) + 1 + int(fault.whom * 100) % 2
        self._steer(fault, key, lambda: self._limits.resize(key, size), lambda: self._limits.reset(key), size)

    def _pause(self, fault: Fault) -> None:
        key = f"region:{int(fault.whom * 20)}"
        self._steer(fault, key, lambda: self._limits.pause(key), lambda: self._limits.resume(key))

    def _steer(self, fault: Fault, key: str, do: Callable[[], Any], undo: Callable[[], Any], size: int = 0) -> None:
        self.struck[fault.kind] += 1
        self._ledger.note("steers", kind=fault.kind, key=key, size=size)
        _insist(do)
        self.over.wait(fault.seconds)
        _insist(undo)
        self._ledger.note("steered", kind=fault.kind, key=key)

    def _deploy(self, fault: Fault) -> None:
        """Publisher first, then one worker after another, all at once with whatever else goes on."""
        self._note(fault)
        self._fleet.conf["declared"] = NEW
        self._on_deploy()
        for place in self._fleet.places:
            with place.lock:
                self._end_at(Fault(fault.at, "deploy term", 0.0), place, signal.SIGTERM)
                place.wait_ready()
        self._ledger.note("deployed")


def _wire_of(place: Place) -> CuttingProxy:
    assert place.wire is not None, "the plan has cuts where there are no wires"
    return place.wire


def _insist(do: Callable[[], Any]) -> None:
    """Until it is done: what an operator would do while Redis is away."""
    deadline = time.monotonic() + 120
    while True:
        try:
            do()
            return
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)
