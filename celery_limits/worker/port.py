"""What the gate needs of the worker it is in, as a protocol; and a Celery worker behind it.

The gate, the exchange, the hand-off and the deferred requests know no more of Celery than this. The simulation puts a
virtual worker in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from celery.worker import state
from celery.worker.state import task_ready

from celery_limits.patches.request import not_now_in
from celery_limits.transport.ack_buffer import Acks
from celery_limits.transport.delivery import Taking

from .acknowledgements import acknowledgements_of
from .request_hooks import is_gone

__all__ = ["CeleryPort", "ChannelLike", "QosLike", "WorkerLike"]


class QosLike(Protocol):
    """A prefetch count."""

    value: int

    def increment_eventually(self) -> int: ...

    def decrement_eventually(self) -> int: ...


class ChannelLike(Protocol):
    """A channel of our own transport."""

    acks: Acks

    def taking(self) -> Taking | None: ...

    def take_over(self, taking: Taking, worker: str, delivery: Sequence[Any]) -> None: ...

    def lose_sight_of(self, taking: Taking, worker: str) -> None: ...

    def give_back(self, fields: list[str], where: str) -> None: ...


class WorkerLike(Protocol):
    forked: bool
    """Bodies run in processes of their own, and the worker itself counts the free places."""
    not_now: type[BaseException]

    @property
    def channel(self) -> ChannelLike | None:
        """The one that brings messages; None while the worker consumes nothing."""

    @property
    def qos(self) -> QosLike: ...

    @property
    def has_place(self) -> bool: ...

    @property
    def is_stopping(self) -> bool: ...

    @property
    def pool_queues(self) -> bool:
        """Whether something waits in the pool for a thread."""

    def is_gone(self, process: int) -> bool: ...

    def hand_over(self, request: Any) -> Any:
        """To the pool."""

    def resubmit(self, request: Any) -> None:
        """As if it was just received: it comes to the gate when a place is free."""

    def free_place(self) -> bool:
        """Which may bring the next request to the gate. False where places are not counted."""

    def call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """In the event loop's own thread; called from any."""

    def call_after(self, seconds: float, function: Callable[..., Any], *args: Any) -> None: ...

    def acknowledge_pending(self) -> None:
        """Does now what the event loop was told to acknowledge and has not come to."""

    def is_ready(self, request: Any) -> None:
        """Celery is done with it."""


class CeleryPort:
    """A Celery worker. Relies on `worker.semaphore` counting free places, and on `_quick_release` freeing one."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.hand_over = worker._process_task
        self.forked: bool = worker.pool_cls.uses_semaphore
        self.not_now: type[BaseException] = not_now_in(worker.pool_cls)
        self.is_gone = is_gone
        self.is_ready = task_ready

    @property
    def channel(self) -> Any:
        task_consumer = self._worker.consumer.task_consumer
        return None if task_consumer is None else task_consumer.channel

    @property
    def qos(self) -> Any:
        return self._worker.consumer.qos

    @property
    def has_place(self) -> bool:
        return bool(self._worker.semaphore.value > 0)

    @property
    def is_stopping(self) -> bool:
        """Celery sets an exit code, of which 0 is one."""
        return any(code is not None and code is not False for code in (state.should_stop, state.should_terminate))

    @property
    def pool_queues(self) -> bool:
        """Relies on the executor of a pool of threads keeping in `_work_queue` what no thread has begun."""
        return bool(self._worker.consumer.pool.executor._work_queue.qsize())

    def resubmit(self, request: Any) -> None:
        self._worker.process_task(request)

    def free_place(self) -> bool:
        release = getattr(self._worker, "_quick_release", None)
        if release is None:  # a broker without an event loop: there the pool itself makes the worker wait for a place
            return False
        release()
        return True

    def call_soon(self, function: Callable[..., Any], *args: Any) -> None:
        self._worker.consumer.call_soon(function, *args)

    def call_after(self, seconds: float, function: Callable[..., Any], *args: Any) -> None:
        """The timer may forget: Celery before 5.7 clears it when the broker's connection is lost."""
        self._worker.timer.call_after(seconds, function, args)

    def acknowledge_pending(self) -> None:
        acknowledgements_of(self._worker.consumer).catch_up()
