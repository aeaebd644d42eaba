"""Kills processes of a pool at a certain moment of their worker's reconnection, which nobody outside could meet."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
from celery.concurrency.asynpool import AsynPool
from celery.worker.consumer import Consumer

from tests.waiting import wait_until

__all__ = ["kill_who_stands_still"]


def kill_who_stands_still(when: str) -> None:
    """When the worker has lost its connection: "before" the pool is flushed, "between" its first look for the dead and
    that, or "amid". To be called before celery_limits has its hooks there."""
    lost: list[Any] = []
    if when == "before":
        _precede(Consumer, "on_close", lambda consumer: _kill(consumer.pool._pool))
    elif when == "amid":
        _precede(AsynPool, "flush", _kill)
    else:
        _precede(Consumer, "on_close", lost.append)
        _follow(AsynPool, "maintain_pool", lambda pool: _kill(pool) if lost else None)


def _kill(pool: Any) -> None:
    for process in pool._pool:
        if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
            os.kill(process.pid, signal.SIGKILL)
            wait_until(lambda process=process: not process._is_alive(), "it is dead")  # type: ignore[misc]


def _precede(owner: Any, name: str, act: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)

    def acted_first(self: Any) -> Any:
        act(self)
        return original(self)

    setattr(owner, name, acted_first)


def _follow(owner: Any, name: str, act: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)

    def act_then(self: Any) -> None:
        original(self)
        act(self)

    setattr(owner, name, act_then)
