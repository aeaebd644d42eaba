"""The renewals of the lease, in a thread of the operating system's that does nothing else.

What else a worker does for the store may take long: a broker that is away keeps the outbox waiting, a body that never
yields keeps every greenlet waiting, and where threads are greenlets that includes the housekeeping. The lease must not
wait for any of them. In green pools this thread is a real one all the same; gevent and eventlet give it a loop of its
own. It shares no lock with greenlets, writes no log there, and is not joined: whoever waits for a greenlet's lock from
a real thread, or the other way round, may wait for ever.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from celery_limits.store import Store
from celery_limits.store.outcomes import Renewed

__all__ = ["BEATS", "REAL", "Heartbeat", "Runtime", "Threads", "real_threads"]

BEATS = 3
"""Renewals in the time of one lease: two may be lost."""


class Threads(NamedTuple):
    """How to make a real thread, as the module `_thread` does where nobody has patched it."""

    start_new_thread: Callable[..., Any]
    allocate_lock: Callable[[], Any]
    leave: Callable[[], Any] = lambda: None
    are_green: bool = False


def real_threads(pool_cls: Any) -> Threads:
    if not pool_cls.is_green:
        return Threads(_thread.start_new_thread, _thread.allocate_lock)
    if "gevent" in pool_cls.__module__:
        from gevent import get_hub  # noqa: PLC0415  (there only with its pool)
        from gevent.monkey import get_original  # noqa: PLC0415

        start, lock = get_original("_thread", ["start_new_thread", "allocate_lock"])
        return Threads(start, lock, lambda: get_hub().destroy(destroy_loop=True), are_green=True)
    from eventlet.patcher import original  # noqa: PLC0415

    module = original("_thread")
    return Threads(module.start_new_thread, module.allocate_lock, are_green=True)


def _start(function: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=function, name=name, daemon=True)
    thread.start()
    return thread


class Runtime(NamedTuple):
    """Time and threads as the housekeeping sees them; the simulation has its own."""

    clock: Callable[[], float] = time.monotonic
    event: Callable[[], Any] = threading.Event
    start: Callable[[Callable[[], None], str], Any] = _start


REAL = Runtime()


class Heartbeat:
    """Beats for whoever `name` says, if anyone, `every` so many seconds, until `stop`.

    The callbacks are called in its thread: `on_renewed(name, when)`, `on_lost(name)` when the lease was not there any
    more, `on_silence()` each time that the store can't be reached. In green pools they may assign, and nothing else.
    """

    def __init__(
        self,
        threads: Threads,
        store: Store,
        every: float,
        clock: Callable[[], float],
        *,
        name: Callable[[], str],
        on_renewed: Callable[[str, float], Any],
        on_lost: Callable[[str], Any],
        on_silence: Callable[[], Any],
    ) -> None:
        self._threads, self._store, self._every, self._clock = threads, store, every, clock
        self._name, self._on_renewed, self._on_lost, self._on_silence = name, on_renewed, on_lost, on_silence
        self._stopped = threads.allocate_lock()
        self._ended = threads.allocate_lock()
        self._is_running = False

    def start(self) -> None:
        self._stopped.acquire()
        self._ended.acquire()
        self._is_running = True
        self._threads.start_new_thread(self._keep, ())

    def stop(self) -> None:
        """Returns when there will be no more beats; the store's timeout bounds how long that takes."""
        if self._is_running:
            self._is_running = False
            self._stopped.release()
            self._ended.acquire()

    def _keep(self) -> None:
        pause = self._every
        try:
            while not self._stopped.acquire(timeout=pause):
                name = self._name()
                pause = self._every if not name or self._beat(name) else self._every / 3
        finally:
            self._store.close()
            self._threads.leave()
            self._ended.release()

    def _beat(self, name: str) -> bool:
        """Whether the store has answered."""
        sent = self._clock()
        try:
            outcome = self._store.beat(name, renew=True)
        except Exception:  # whatever it is, it must not end the renewals; the housekeeping meets it too, and says so
            self._on_silence()
            return False
        if isinstance(outcome, Renewed):
            self._on_renewed(name, sent)
        else:
            self._on_lost(name)
        return True
