"""What limits need of Celery's prefork pool and the pool does not do by itself; nobody else knows its insides.

When the broker's connection is lost, the pool drops every job that no process has accepted (before Celery 5.6: every
job), and tells nobody. Those that were written to a process run all the same: they are kept, so that their end is seen.
Those that were not hold slots for nothing, while their message comes again: they give them back. So do those that were
written to a process which has died since, and they are taken out of the way of the process that gets its pipe.

When a process dies, the pool hears of it a moment before it can be waited for, finds it alive, and looks again after
five seconds. Until then its slots would be held for nothing: here it looks again at once. And where the connection to
the broker is lost in between, the pool is registered with the event loop anew and falls over the process that it does
not watch any more, and with it the worker: here it is watched again.

When a process dies with a job, the pool closes its pipes and goes on knowing the number of the one that it read results
from. Registered with the event loop anew, it reads from whatever has that number by then. That may be the pipe of
another process's jobs: a job is stolen from it, or both sides wait for the rest of one for ever. Here it is forgotten.

A result that is longer than what a pipe holds is read in parts. When the connection is lost in between, what was read
is forgotten, the rest is taken for the beginning of another, and nothing more is heard of that process: here it is read
on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from celery.concurrency.asynpool import AsynPool, ResultHandler

from celery_limits.transport.delivery import Message

from .exits import Holding

__all__ = ["has_process", "install", "kill_holders", "write_now"]

_MARK = "__celery_limits__"

LOOK_AGAIN = 0.005
LOOKS = 200
"""Seconds between two looks at a process that is ending, and how many before it is left to the pool's own timer."""


def install() -> None:
    """Relies on `AsynPool.flush`, `_event_process_exit(hub, proc)`, `_track_child_process(proc, hub)` and
    `destroy_queues(queues, proc)`, and `ResultHandler._recv_message(add_reader, fd, callback)`, being what is called
    then."""
    if not hasattr(AsynPool, _MARK):
        setattr(AsynPool, _MARK, True)
        AsynPool.flush = _giving_back(AsynPool.flush)
        AsynPool._event_process_exit = _looking_again(AsynPool._event_process_exit)
        AsynPool._track_child_process = _watching_anew(AsynPool._track_child_process)
        AsynPool.destroy_queues = _forgetting(AsynPool.destroy_queues)
        ResultHandler._recv_message = _reading_on(ResultHandler._recv_message)


def _giving_back(flush: Callable[[Any], None]) -> Callable[[Any], None]:
    """Relies on a job's `_accepted`, `_write_to` (the process that was sent it) and `_accept_callback` (a method of its
    request or its `Holding`), on the pool's `outbound_buffer` (what no process was sent, or one that was found dead)
    and `_cache` (jobs by number), and on `maintain_pool` replacing the pipe of a process that has died with a job that
    is there, before `flush` and in the middle of it: else a new process reads on where the dead one has left off."""

    def flush_and_give_back(pool: Any) -> None:
        pool.maintain_pool()
        jobs = [job for job in pool._cache.values() if not job.ready()]
        kept = {job._job: job for job in jobs if _was_sent(pool, job)}

        def maintain() -> None:
            """Knowing who was sent what; those whose process is found dead are in the buffer then."""
            pool._cache.update({number: job for number, job in kept.items() if not job.ready()})
            type(pool).maintain_pool(pool)
            for job in pool.outbound_buffer:
                kept.pop(job._job, None)

        pool.maintain_pool = maintain
        try:
            flush(pool)
        finally:
            del pool.maintain_pool
        maintain()
        pool.outbound_buffer.clear()
        for job in jobs:
            if job.ready():
                continue
            if job._job in kept:
                pool._busy_workers.add(job._write_to.inqW_fd)  # until it reports the job's end: it can't run another
            elif not job._accepted:
                pool._cache.pop(job._job, None)
                _give_back(job)

    return flush_and_give_back


def _give_back(job: Any) -> None:
    """Its slots, and its message, which the closed channel may have kept for a process that lived then. Where it went
    back with the others, a second time does nothing."""
    owner = getattr(job._accept_callback, "__self__", None)
    if isinstance(owner, Holding):
        owner.release(back=True)
    message = getattr(owner, "message", None)
    if isinstance(message, Message):
        message.channel.give_back([message.delivery_tag], "front")


def _looking_again(notice: Callable[..., None]) -> Callable[..., None]:
    """Relies on `maintain_pool` taking a process that has ended out of the pool's list `_pool`."""

    def look(pool: Any, hub: Any, process: Any, looks: int) -> None:
        pool.maintain_pool()
        if process in pool._pool and looks > 0:
            hub.call_later(LOOK_AGAIN, look, pool, hub, process, looks - 1)

    def notice_and_look_again(pool: Any, hub: Any, process: Any) -> None:
        notice(pool, hub, process)
        if process in pool._pool:
            hub.call_later(LOOK_AGAIN, look, pool, hub, process, LOOKS)

    return notice_and_look_again


def _watching_anew(track: Callable[..., None]) -> Callable[..., None]:
    """Relies on a process's `_sentinel_poll`: the file that is watched, made when it is missing, None since its end was
    noticed."""

    def watch_anew(pool: Any, process: Any, hub: Any) -> None:
        if getattr(process, "_sentinel_poll", 0) is None:
            del process._sentinel_poll
        track(pool, process, hub)

    return watch_anew


def _forgetting(destroy: Callable[..., int]) -> Callable[..., int]:
    """Relies on `_fileno_to_outq` being what the pool reads from when it is registered, on `hub_remove` being a method
    of its event loop, and on `_untrack_child_process` closing the file by which the process was watched. Where the end
    of one that the pool has replaced was not noticed through that file, nobody else closes it."""

    def forget_and_destroy(pool: Any, queues: Any, process: Any) -> int:
        if pool._fileno_to_outq.get(process.outqR_fd) is process:
            del pool._fileno_to_outq[process.outqR_fd]
            _half_read(pool._result_handler).pop(process.outqR_fd, None)
        if process not in pool._pool:
            pool._untrack_child_process(process, pool.hub_remove.__self__)
        return destroy(pool, queues, process)

    return forget_and_destroy


def _reading_on(receive: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
    """Relies on it being a generator that reads one message from the file and yields while nothing is there. The event
    loop drops it when it is reset."""

    def read_on(handler: Any, add_reader: Any, fd: int, callback: Any) -> Iterator[None]:
        half_read = _half_read(handler)
        message = half_read.pop(fd, None) or receive(handler, add_reader, fd, callback)
        for _ in message:
            half_read[fd] = message
            yield
            half_read.pop(fd, None)

    return read_on


def _half_read(handler: Any) -> dict[int, Iterator[None]]:
    """The messages of which a part was read, by the number of their file."""
    found: dict[int, Iterator[None]] = handler.__dict__.setdefault("limits_half_read", {})
    return found


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
        if process and isinstance(getattr(job._accept_callback, "__self__", None), Holding):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def has_process(pool: Any, job: Any) -> bool:
    """Whether a process was sent the job, and lives: it runs it, whether or not it has said so."""
    return _was_sent(pool, job) and job._write_to._is_alive()


def _was_sent(pool: Any, job: Any) -> bool:
    """Whether it is in the pipe of a process, or was; unless the pool has found out that this process is dead."""
    return getattr(job, "_write_to", None) is not None and not any(job is other for other in pool.outbound_buffer)
