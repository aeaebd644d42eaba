"""Celery's Request, as far as limits have to do with it: what it does when a pool reports, in Celery's own order.

The hooks of `celery_limits.worker.request_hooks` are put on it as on a real one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.exceptions import Reject, Terminated, TimeLimitExceeded, WorkerLostError

from celery_limits.message.header import HEADER
from celery_limits.patches.request import NotNow
from celery_limits.transport.delivery import Message as OwnMessage
from celery_limits.worker.delivery import ForeignDelivery, OwnDelivery
from celery_limits.worker.plan import Plan

from .broker import Delivery

if TYPE_CHECKING:
    from .worker import VirtualWorker

__all__ = ["NotStored", "VirtualDeliveries", "VirtualRequest", "plan_of", "reported"]


class NotStored(Exception):
    """The result backend is away."""


class _Fetched(OwnMessage):
    """What our own transport delivers."""

    def __init__(self, channel: Any, field: str) -> None:
        self.channel, self.delivery_tag = channel, field


class _Moment:
    def __init__(self, us: int) -> None:
        self._us = us

    def timestamp(self) -> float:
        return self._us / 1e6


def reported(error: Exception) -> Any:
    """As a pool reports an exception."""
    return SimpleNamespace(exception=error)


class VirtualRequest:
    eventer = None
    time_limits = (None, None)
    _payload: Any = ((), {}, None)
    _already_cancelled = _already_revoked = False
    worker_pid: int | None = None
    time_start: float | None = None
    terminated = False
    """`revoke(terminate=True)` came before its body began."""

    def __init__(self, worker: VirtualWorker, delivery: Delivery) -> None:
        message = delivery.message
        self.worker, self.delivery = worker, delivery
        self.id, self.name = message.task, "task"
        self.task = SimpleNamespace(name="task", acks_late=message.late, limits=None)
        self.request_dict: dict[str, Any] = {HEADER: {"ticket": message.ticket}}
        self.message: Any = _Fetched(worker.consumer, delivery.field) if delivery.field else SimpleNamespace()
        self.expires = None if message.expires is None else _Moment(message.expires)
        self.acknowledged = False

    def __repr__(self) -> str:
        return f"<{self.delivery.message.ticket} d{self.delivery.number}>"

    def revoked(self) -> bool:
        """Celery sees by itself what was revoked here, and that its time has passed; the latter only by a clock that is
        right, so that the store has to say it to others."""
        message, worker = self.delivery.message, self.worker
        if self._already_revoked:
            return True
        expired = message.expires is not None and message.expires <= worker.schedule.clock.server
        if (expired and worker.habits.forked) or message.task in worker.revoked:
            worker.say(f"drops {message.ticket}, which {'has expired' if expired else 'is revoked'}")
            self._announce_revoked("expired" if expired else "revoked", False, None, expired)
            return True
        return False

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        message = self.delivery.message
        of_body = self.worker.schedule.current is not self.worker.loop  # else the error would be Celery's own
        if of_body and self.worker.story.backend_fails():
            if self.acknowledged:  # before its body began, so nothing will come again
                message.fate = message.fate or "lost"
            raise NotStored(reason)
        message.fate = message.fate or reason
        self.acknowledge()
        self._already_revoked = True

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        self.worker_pid, self.time_start = pid, time_accepted
        if not self.task.acks_late:
            self.acknowledge()
        if self.terminated and not self.worker.forked:  # see patches/request.py
            self._announce_revoked("terminated", True, None, False)
            raise NotNow

    def on_timeout(self, soft: bool, timeout: float) -> None:
        self._ends("timed out")
        if self.task.acks_late:
            self.acknowledge()

    def on_success(self, result: tuple[bool, Any, float]) -> None:
        failed, value, _ = result
        if failed:
            return self.on_failure(value, return_ok=True)
        if self.task.acks_late:
            self.acknowledge()
        return None

    def on_failure(self, info: Any, return_ok: bool = False) -> None:
        error = info.exception
        if isinstance(error, Terminated):
            if not self._already_cancelled and not self._already_revoked:
                self._announce_revoked("terminated", True, None, False)
            return None
        if isinstance(error, Reject):
            return self.reject(requeue=error.requeue)
        if self.task.acks_late and isinstance(error, WorkerLostError):  # reject_on_worker_lost
            return self.reject(requeue=True)
        assert isinstance(error, (WorkerLostError, TimeLimitExceeded)), error
        self._ends("lost")
        if self.task.acks_late:
            self.acknowledge()
        return None

    def _ends(self, how: str) -> None:
        """In a cold shutdown Celery tells nobody."""
        if self.worker.quitting and self.task.acks_late:
            return
        self.delivery.message.fate = self.delivery.message.fate or how

    def acknowledge(self) -> None:
        if not self.acknowledged:
            self.worker.acknowledge(self.delivery)
            self.acknowledged = True

    def reject(self, requeue: bool = False) -> None:
        if not self.acknowledged:
            (self.worker.put_back if requeue else self.worker.acknowledge)(self.delivery)
            self.acknowledged = True


class _Said(NamedTuple):
    """Where the message stands, by its header."""

    at: int
    fence: int
    arrival: int


def plan_of(request: VirtualRequest, *, trust: bool) -> Plan:
    """What `worker.plan` makes of a request."""
    delivery = request.delivery
    moved = int(not delivery.new)
    said: Any = _Said(moved, moved, delivery.arrival)
    return Plan(delivery.message.ticket, said, delivery.message.links)


class _Own(OwnDelivery):
    @property
    def queue(self) -> str:
        queue: str = self._request.delivery.message.queue
        return queue

    @property
    def rank(self) -> int:
        rank: int = self._request.delivery.message.rank
        return rank


class _Foreign(ForeignDelivery):
    queue, rank = _Own.queue, _Own.rank

    def park_arguments(self, plan: Plan, *, whole: bool) -> dict[str, Any]:
        return {"message": self._request.delivery.message.body} if whole else {}


class VirtualDeliveries:
    """As `worker.delivery.Deliveries`, of a worker that consumes from both."""

    @staticmethod
    def delivery_of(request: VirtualRequest) -> Any:
        return (_Own if request.delivery.field else _Foreign)(request, None)
