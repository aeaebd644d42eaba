"""What the gate needs of Celery's prefork pool and the pool does not do by itself; nobody else knows its insides.

When the broker's connection is lost, the pool drops every job that no process has accepted, and tells nobody. Those
that were written to a process run all the same: they are kept, so that their end is seen. Those that were not hold
slots for nothing, while their message comes again: they give them back.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

from celery.concurrency.asynpool import AsynPool

from .exits import Holding

__all__ = ["install", "kill_holders"]

_MARK = "__celery_limits__"


def install() -> None:
    """Relies on `AsynPool.flush` being what is called then, on a job's `_accepted`, `_write_to` (the process that was
    sent it) and `_accept_callback`, on `outbound_buffer` (what no process was sent) and on `_cache` (jobs by number).
    """
    if hasattr(AsynPool, _MARK):
        return
    setattr(AsynPool, _MARK, True)
    flush = AsynPool.flush

    def flush_and_give_back(pool: Any) -> None:
        unsent = set(map(id, pool.outbound_buffer))
        held = [(job, holding) for job in pool._cache.values() if (holding := _waits_in(job)) is not None]
        flush(pool)
        for job, holding in held:
            if job._job in pool._cache:
                continue
            process = None if id(job) in unsent else job._write_to
            if process is not None and process._is_alive():
                pool._cache[job._job] = job
                pool._busy_workers.add(process.inqW_fd)  # until it reports the job's end: it can't run another
            else:
                holding.release(back=True)

    AsynPool.flush = flush_and_give_back


def kill_holders(pool: Any) -> None:
    """Ends every process that runs a body which holds slots, or was sent one. Called from any thread."""
    for job in tuple(pool._cache.values()):
        process = job._worker_pid or getattr(job._write_to, "pid", None)
        if process and isinstance(getattr(job._accept_callback, "__self__", None), Holding):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _waits_in(job: Any) -> Holding | None:
    """What a job holds that was handed to the pool and that no process has accepted yet."""
    owner = None if job._accepted else getattr(job._accept_callback, "__self__", None)
    return owner if isinstance(owner, Holding) else None
