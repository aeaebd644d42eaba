"""A call that the handler of a signal interrupts, and the calls that the handler makes, each get their own answer."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from celery_limits.declare.chain import ConcurrencyLink
from celery_limits.store import Store
from celery_limits.store.outcomes import Admitted, Joined, Released
from tests.redis_server import RedisServer

LINKS = (ConcurrencyLink(key="k", limit=2),)


def test_each_gets_its_own_answer() -> None:
    """A second SIGTERM makes Celery give back what runs, in the handler, while an admission waits for its answer: the
    handler would take that for its own, and leave its own to the admission."""
    heard: list[object] = []
    with RedisServer() as server:
        store = Store.from_url(server.url)
        assert isinstance(store.beat("w"), Joined)
        first = store.admit("a.1", LINKS, "w", delivery="1")
        assert isinstance(first, Admitted)

        def handle(_number: int, _frame: FrameType | None) -> None:
            server.resume()
            heard.append(store.release("a.1", "w", first.fence))

        before = signal.signal(signal.SIGUSR1, handle)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
        try:
            server.pause()  # so that the admission waits for its answer until the handler has come
            timer.start()
            second = store.admit("b.1", LINKS, "w", delivery="2")
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)
        assert isinstance(second, Admitted)
        assert [type(answer) for answer in heard] == [Released]
        assert isinstance(store.release("b.1", "w", second.fence), Released)
        store.close()
