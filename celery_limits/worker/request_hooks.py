"""The hooks on Celery's Request, all of them: what the pool and Celery report of a request is fed to its passage.

A limited request becomes an instance of a subclass of its own class. So the hooks work with any Request class, call
what they hide by `super()`, and the one thing that is attached to a request is its passage. They must be there before
the request is handed to the pool, which keeps the callbacks that it is given; while a passage holds nothing they change
nothing.

Relies on the pool calling `on_accepted`, `on_success`, `on_timeout` and `on_failure` of the request, on Celery
acknowledging and rejecting by its `acknowledge` and `reject`, on a terminated one ending by its `_announce_revoked`,
and on the `__class__` of a request being assignable.
"""

from __future__ import annotations

import os
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Reject, Terminated, TimeLimitExceeded, WorkerLostError

from .passage import Passage, Result

__all__ = ["RequestHooks", "attach", "is_gone", "passage_of"]

_CLASS = "__celery_limits_class__"
_DYING = (WorkerLostError, Terminated, TimeLimitExceeded)
"""What the pool itself says of a process. Any other exception was brought by the process, whose body is over then."""


def attach(request: Any, passage: Passage) -> None:
    request.limits_passage = passage
    request.__class__ = _limited(type(request))


def passage_of(request: Any) -> Passage | None:
    """None for a request without limits."""
    passage: Passage | None = getattr(request, "limits_passage", None)
    return passage


def _limited(cls: type) -> type:
    """Kept with the class, so that both go together: Celery makes one per task and connection."""
    limited: type | None = cls.__dict__.get(_CLASS)
    if limited is None:
        limited = type(cls.__name__, (RequestHooks, cls), {"__slots__": (), "__module__": cls.__module__})
        setattr(cls, _CLASS, limited)
    return limited


class RequestHooks:
    limits_passage: Passage

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        """In pools that queue by themselves this is the gate: the place that will run the body is free now, and what is
        raised here keeps the body from beginning."""
        passage = self.limits_passage
        if passage.pool.forked:
            return self._accept(pid, time_accepted)
        host = passage.host
        try:
            if not host.may_begin(passage):
                raise host.not_now
            return self._accept(pid, time_accepted)
        except Exception:  # any other is the end that somebody has put to it
            host.send_back(passage)
            raise

    def _accept(self, pid: int, time_accepted: float) -> Any:
        passage = self.limits_passage
        passage.accept()
        try:
            result = super().on_accepted(pid, time_accepted)  # type: ignore[misc]
        except BaseException:
            passage.host.carry_out(passage, passage.not_accepted())
            raise
        passage.accepted()
        return result

    def acknowledge(self) -> None:
        passage = self.limits_passage
        passage.host.carry_out(passage, passage.acknowledge())

    def reject(self, requeue: bool = False) -> None:
        passage = self.limits_passage
        passage.host.carry_out(passage, passage.reject(requeue))

    def limits_acknowledge(self) -> None:
        """Celery's own."""
        super().acknowledge()  # type: ignore[misc]

    def limits_reject(self, requeue: bool) -> None:
        super().reject(requeue)  # type: ignore[misc]

    def on_success(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        passage = self.limits_passage
        passage.host.carry_out(passage, passage.bring(_kind_of(result)))
        return super().on_success(result, *args, **kwargs)  # type: ignore[misc]

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        passage = self.limits_passage
        left = not soft and passage.is_left_to_broker
        if not soft:
            passage.host.carry_out(passage, passage.time_out())
        return None if left else super().on_timeout(soft, timeout)  # type: ignore[misc]

    def _announce_revoked(self, reason: str, *args: Any) -> Any:
        """A body that was terminated for a newcomer says so in its result."""
        passage = self.limits_passage
        if passage.superseded_by and reason == "terminated":
            reason = passage.host.superseded(passage)
        return super()._announce_revoked(reason, *args)  # type: ignore[misc]

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        passage = self.limits_passage
        died = isinstance(_exception_of(exc_info), _DYING)
        passage.host.carry_out(passage, passage.fail(died=died))
        try:
            if died and passage.is_left_to_broker:
                return None
            return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]
        finally:
            passage.host.carry_out(passage, passage.failed())


def _kind_of(result: Any) -> Result:
    """Celery skips a redelivered task whose success is stored already (`worker_deduplicate_successful_tasks`): its
    result comes without a runtime, or is a Reject if what follows on it could not be published, and nothing was
    released."""
    if isinstance(result, tuple):
        if result[0] and isinstance(_exception_of(result[1]), Reject):
            return Result.REJECTED
        if len(result) == 3 and not result[0] and result[2] is None:
            return Result.SKIPPED
    return Result.ENDED


def _exception_of(exc_info: Any) -> Any:
    exception = exc_info.exception
    return exception.exc if isinstance(exception, ExceptionWithTraceback) else exception


def is_gone(pid: int) -> bool:
    """Whether nothing of the process runs any more; one that only waits to be reaped does not."""
    if pid == os.getpid():  # in our own name the pool accepts what was revoked, and whose process is dead
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return True
    try:  # a system without /proc: a zombie counts as alive there, until the pool has reaped it
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
