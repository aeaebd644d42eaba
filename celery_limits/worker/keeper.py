"""Renews the lease where threads are greenlets: from a thread of the operating system's.

In a gevent or eventlet worker every `threading.Thread` is a greenlet, which waits for the others to yield. A body that
never does, such as a long computation, would cost the worker its lease. Both libraries give each real thread a loop of
its own, so this one uses the store like any other. It shares no lock with a greenlet, writes no log, and is not joined:
whoever waits for a greenlet's lock from a real thread, or the other way round, may wait for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from celery_limits.store import Store, StoreError
from celery_limits.store.outcomes import Renewed

__all__ = ["Keeper", "native_threads"]


class NativeThreads(NamedTuple):
    """What the module `_thread` had before it was patched."""

    start_new_thread: Callable[..., Any]
    allocate_lock: Callable[[], Any]
    leave: Callable[[], Any]


def native_threads(pool_cls: Any) -> NativeThreads | None:
    """For pools of greenlets, how to make a real thread; None where threads are real anyway."""
    if not pool_cls.is_green:
        return None
    if "gevent" in pool_cls.__module__:
        from gevent import get_hub  # noqa: PLC0415  (there only with its pool)
        from gevent.monkey import get_original  # noqa: PLC0415

        start, lock = get_original("_thread", ["start_new_thread", "allocate_lock"])
        return NativeThreads(start, lock, lambda: get_hub().destroy(destroy_loop=True))
    from eventlet.patcher import original  # noqa: PLC0415

    module = original("_thread")
    return NativeThreads(module.start_new_thread, module.allocate_lock, lambda: None)


class Keeper:
    """Beats for whoever `name` says, `every` so many seconds, until `stop`.

    `on_renewed(name, when)` and `on_lost(name)` are called in its thread: they may assign, and nothing else.
    """

    def __init__(
        self,
        native: NativeThreads,
        store: Store,
        every: float,
        *,
        name: Callable[[], str],
        on_renewed: Callable[[str, float], Any],
        on_lost: Callable[[str], Any],
    ) -> None:
        self._native, self._store, self._every = native, store, every
        self._name, self._on_renewed, self._on_lost = name, on_renewed, on_lost
        self._running = native.allocate_lock()
        self._ended = native.allocate_lock()
        self._lost = ""

    def start(self) -> None:
        """The lease is held already: what is not renewed but new was lost before."""
        self._running.acquire()
        self._ended.acquire()
        self._native.start_new_thread(self._keep, ())

    def stop(self) -> None:
        """Returns when there will be no more beats; the store's own timeout bounds how long that takes."""
        self._running.release()
        self._ended.acquire()

    def _keep(self) -> None:
        try:
            while not self._running.acquire(timeout=self._every):
                self._beat(self._name())
        finally:
            self._store.close()
            self._native.leave()
            self._ended.release()

    def _beat(self, name: str) -> None:
        if name == self._lost:
            return  # its next name will be another
        sent = time.monotonic()
        try:
            outcome = self._store.beat(name)
        except StoreError:
            return  # the housekeeping greenlet says so, when it can
        if isinstance(outcome, Renewed):
            self._on_renewed(name, sent)
        else:
            self._lost = name
            self._on_lost(name)
