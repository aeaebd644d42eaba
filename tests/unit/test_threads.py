"""Which threads of a pool are free, as a channel asks it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery.concurrency.thread import TaskPool

from celery_limits.worker.threads import Threads
from tests.waiting import wait_until


@pytest.fixture
def pool() -> Iterator[Any]:
    pool = TaskPool(2)
    pool.start()
    yield pool
    pool.stop()


def test_a_thread_is_free_again_when_its_task_has_ended_or_failed(pool: Any) -> None:
    threads, freed, gate = Threads.of(pool), threading.Semaphore(0), threading.Event()
    threads.when_free = freed.release

    def fail() -> None:
        gate.wait(20)
        raise KeyError

    pool.apply_async(gate.wait, (20,))
    assert threads.has_place()
    pool.apply_async(fail)
    pool.apply_async(gate.wait, (20,))  # waits in the pool for a thread
    assert not threads.has_place()
    gate.set()
    for _ in range(3):
        assert freed.acquire(timeout=20)
    wait_until(threads.has_place, "both threads are free")


def test_a_pool_is_counted_once_although_its_worker_reconnects(pool: Any) -> None:
    assert Threads.of(pool) is Threads.of(pool)


def test_what_the_pool_refuses_occupies_no_thread(pool: Any) -> None:
    threads = Threads.of(pool)
    pool.executor.shutdown()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            pool.apply_async(len, ("",))
    assert threads.has_place()
