"""What the gate asks of Celery's prefork pool. `patches.asynpool` has what the pool itself does otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from billiard.pool import READY

from celery_limits.patches.asynpool import request_of, was_sent

from .request_hooks import passage_of

__all__ = ["has_process", "kill_holders", "watch_results", "write_now"]

_MARK = "__celery_limits__"


def watch_results(pool: Any, run: Callable[[Callable[[], Any], int], Any]) -> None:
    """From now on each result of this pool is reported through `run(report, process)`.

    Relies on `result_handler.state_handlers[READY]` being what is called with a result and the process that it is of
    (the descriptor by which that is written to), in the event loop's own thread."""
    handlers = pool._result_handler.state_handlers
    on_ready = handlers[READY]
    if hasattr(on_ready, _MARK):
        return

    def handle(job: int, i: Any, result: Any, process: int) -> None:
        run(lambda: on_ready(job, i, result, process), process)

    setattr(handle, _MARK, True)
    handlers[READY] = handle


def write_now(pool: Any, hub: Any, process: int) -> None:
    """What was handed to the pool goes to the process that has just reported a result, unless that may be its last;
    else it waits until the event loop has seen to everything else and turned once more. Relies on
    `Hub.consolidate_callback` being what writes from `outbound_buffer` to the processes of `_all_inqueues` that it is
    given, but for `_active_writes`, and on `_busy_workers`."""
    if not pool.outbound_buffer or pool._maxtasksperchild or pool._max_memory_per_child:
        return
    if process in pool._all_inqueues and process not in pool._active_writes | pool._busy_workers:
        hub.consolidate_callback([process])


def kill_holders(pool: Any) -> None:
    """Ends every process that runs a body which holds slots, or was sent one. Called from any thread."""
    for job in tuple(pool._cache.values()):
        process = job._worker_pid or getattr(job._write_to, "pid", None)
        if process and (passage := passage_of(request_of(job))) is not None and passage.was_admitted:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def has_process(pool: Any, job: Any) -> bool:
    """Whether a process was sent the job, and lives: it runs it, whether or not it has said so."""
    return was_sent(pool, job) and job._write_to._is_alive()
