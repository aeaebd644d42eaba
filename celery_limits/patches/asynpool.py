"""Celery's prefork pool: what it drops, watches and reads when a process dies or the broker's connection is lost.

When the broker's connection is lost, the pool drops every job that no process has accepted (before Celery 5.6: every
job), and reports none of them. Jobs that were written to a process run all the same: they are kept, so that their end
is seen. Jobs that were not hold slots for nothing, while their message comes again: they are released. So are jobs that
were written to a process which has died since, and they are taken out of the pipe that the next process inherits.

When a process dies, the pool hears of it a moment before it can be waited for, finds it alive, and looks again after
five seconds. Until then its slots would be held for nothing: here it looks again at once. And where the connection to
the broker is lost in between, the pool is registered with the event loop anew and fails at the process that it does not
watch any more, and with it the worker: here it is watched again.

When a process dies with a job, the pool closes its pipes and goes on knowing the number of the one that it read results
from. Registered with the event loop anew, it reads from whatever file has that number by then. That may be the pipe of
another process's jobs: a job is stolen from it, or both sides wait for the rest of one for ever. Here it is forgotten.

A result that is longer than what a pipe holds is read in parts. When the connection is lost in between, what was read
is forgotten, the rest is taken for the beginning of another, and nothing more is heard of that process: here it is read
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery_limits.transport.delivery import requeue

from .registry import patch

__all__ = ["request_of", "was_sent"]

_POOL = "celery.concurrency.asynpool:AsynPool"

LOOK_AGAIN = 0.005
LOOKS = 200
"""Seconds between two looks at a process that is ending, and how many before it is left to the pool's own timer."""


@patch(
    f"{_POOL}.flush",
    takes="self",
    why="When the broker's connection is lost, jobs that the pool drops are kept or released; Celery reports none.",
)
def release_dropped(flush: Callable[[Any], None], pool: Any) -> None:
    """Relies on a job's `_accepted`, `_write_to` (the process that was sent it) and `_accept_callback` (a method of its
    request), on the pool's `outbound_buffer` (what no process was sent, or one that was found dead)
    and `_cache` (jobs by number), and on `maintain_pool` replacing the pipe of a process that has died with a job that
    is there, before `flush` and in the middle of it: else a new process reads on where the dead one has left off."""
    pool.maintain_pool()
    jobs = [job for job in pool._cache.values() if not job.ready()]
    kept = {job._job: job for job in jobs if was_sent(pool, job)}

    def maintain() -> None:
        """Knowing who was sent what; jobs whose process is found dead are in the buffer then."""
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
            _release(job)


def _release(job: Any) -> None:
    """Its slots, and its message, which the closed channel may have kept for a process that lived then. Where it went
    back with the others, a second time does nothing."""
    request = request_of(job)
    passage = getattr(request, "limits_passage", None)
    if passage is not None:
        passage.host.carry_out(passage, passage.flush())
    requeue(getattr(request, "message", None))


def request_of(job: Any) -> Any:
    return getattr(job._accept_callback, "__self__", None)


def was_sent(pool: Any, job: Any) -> bool:
    """Whether it is in the pipe of a process, or was; unless the pool has found out that this process is dead."""
    return getattr(job, "_write_to", None) is not None and not any(job is other for other in pool.outbound_buffer)


@patch(
    f"{_POOL}._event_process_exit",
    takes="self hub proc",
    why="The pool finds a process alive that has just died, and looks again after five seconds: slots stay held.",
)
def look_again(notice: Callable[..., None], pool: Any, hub: Any, proc: Any) -> None:
    """Relies on `maintain_pool` taking a process that has ended out of the pool's list `_pool`."""

    def look(looks: int) -> None:
        pool.maintain_pool()
        if proc in pool._pool and looks > 0:
            hub.call_later(LOOK_AGAIN, look, looks - 1)

    notice(pool, hub, proc)
    if proc in pool._pool:
        hub.call_later(LOOK_AGAIN, look, LOOKS)


@patch(
    f"{_POOL}._track_child_process",
    takes="self proc hub",
    why="A process that is ending when the broker's connection is lost ends the worker.",
)
def watch_anew(track: Callable[..., None], pool: Any, proc: Any, hub: Any) -> None:
    """Relies on a process's `_sentinel_poll`: the file that is watched, made when it is missing, None since its end was
    noticed."""
    if getattr(proc, "_sentinel_poll", 0) is None:
        del proc._sentinel_poll
    track(pool, proc, hub)


@patch(
    f"{_POOL}.destroy_queues",
    takes="self queues proc",
    why="The pool goes on reading from the number of a dead process's pipe, whatever file has it by then.",
)
def forget_pipe(destroy: Callable[..., int], pool: Any, queues: Any, proc: Any) -> int:
    """Relies on `_fileno_to_outq` being what the pool reads from when it is registered, on `hub_remove` being a method
    of its event loop, and on `_untrack_child_process` closing the file by which the process was watched. Where the end
    of one that the pool has replaced was not noticed through that file, nobody else closes it."""
    if pool._fileno_to_outq.get(proc.outqR_fd) is proc:
        del pool._fileno_to_outq[proc.outqR_fd]
        _half_read(pool._result_handler).pop(proc.outqR_fd, None)
    if proc not in pool._pool:
        pool._untrack_child_process(proc, pool.hub_remove.__self__)
    return destroy(pool, queues, proc)


@patch(
    "celery.concurrency.asynpool:ResultHandler._recv_message",
    takes="self add_reader fd callback",
    why="A result of which a part was read when the broker's connection was lost silences its process for ever.",
)
def read_on(receive: Callable[..., Iterator[None]], handler: Any, add_reader: Any, fd: int, callback: Any) -> Any:
    """Relies on it being a generator that reads one message from the file and yields while nothing is there. The event
    loop drops it when it is reset."""
    half_read = _half_read(handler)
    message = half_read.pop(fd, None) or receive(handler, add_reader, fd, callback)
    for _ in message:
        half_read[fd] = message
        yield
        half_read.pop(fd, None)


def _half_read(handler: Any) -> dict[int, Iterator[None]]:
    """The messages of which a part was read, by the number of their file."""
    found: dict[int, Iterator[None]] = handler.__dict__.setdefault("limits_half_read", {})
    return found
