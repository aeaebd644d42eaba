"""What our hooks make of Celery's prefork pool, by itself and without a worker around it."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery.concurrency.asynpool import AsynPool
from kombu.asynchronous import Hub

from celery_limits.worker import prefork
from tests.waiting import wait_until


def test_a_process_that_is_ending_when_the_pool_gets_a_new_event_loop() -> None:
    """Its end was noticed, and it could not be waited for yet; then the broker's connection was lost. The pool watches
    it again, and replaces it."""
    prefork.install()
    hub = Hub()
    pool: Any = AsynPool(1, threads=False)
    try:
        pool.register_with_event_loop(hub)
        (process,) = pool._pool
        os.kill(process.pid, signal.SIGKILL)
        pool._untrack_child_process(process, hub)  # what the pool does when it hears of the end
        hub.reset()
        pool.register_with_event_loop(hub)
        loop = hub.create_loop()
        hub.call_repeatedly(0.01, lambda: None)  # so that the loop does not wait for anything else

        def is_replaced() -> bool:
            next(loop)
            return process not in pool._pool and len(pool._pool) == 1

        wait_until(is_replaced, "another process is there in its place")
    finally:
        pool.terminate()
        pool.join()
        hub.close()
