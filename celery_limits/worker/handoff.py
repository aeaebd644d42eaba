"""What goes along with a release on our own transport: the acknowledgements that are due, and the wish for whoever the
release lets go (direct hand-off), who is admitted with it and whose message comes with the answer.

It is wished for only where a place of the pool is free that nobody waits for, and granted only while the queues of this
worker are empty. So no other task waits behind a line that is handed over. What was handed over and does not come to
the gate at once gives back its slots: Celery has dropped it, or lets it wait. Should it come, it asks like any other,
in its old place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_limits.store.outcomes import Admitted, Handed, Released
from celery_limits.transport.delivery import Taking
from celery_limits.wire import task_id_of

if TYPE_CHECKING:
    from .exits import Ledger, Releaser

__all__ = ["Expected", "Ride", "Taker"]


def is_stopping() -> bool:
    """Celery sets an exit code, of which 0 is one."""
    return any(code is not None and code is not False for code in (state.should_stop, state.should_terminate))


class Expected:
    """What was handed over, and is admitted, and has not come to the gate yet."""

    def __init__(self, ledger: Ledger, releaser: Releaser) -> None:
        self._ledger, self._releaser = ledger, releaser
        self._admitted: dict[str, tuple[str, Admitted]] = {}
        self.last_come = ""
        """The task that came to the gate last. Pools that queue by themselves ask for it later."""

    def add(self, worker: str, handed: Handed) -> None:
        self._ledger.enter(handed.ticket, handed.admitted.fence)
        self._admitted[handed.ticket] = (worker, handed.admitted)

    def pop(self, ticket: str) -> tuple[str, Admitted] | None:
        """It has come: who it was admitted for, and how."""
        return self._admitted.pop(ticket, None)

    def drop(self, ticket: str) -> None:
        """It will not come, and its message was given back."""
        if self.pop(ticket) is not None:
            self._ledger.close(ticket)

    def give_up_all(self) -> None:
        for ticket in tuple(self._admitted):
            self.give_up(ticket)

    def give_up(self, ticket: str) -> None:
        if (handed := self.pop(ticket)) is not None:
            worker, admitted = handed
            self._releaser.release(ticket, worker, admitted.fence, back=True)
            self._ledger.close(ticket, back=True)


class Ride:
    """In the event loop's own thread, with the release of one who has ended."""

    def __init__(self, expected: Expected, consumer: Any, *, has_place: bool) -> None:
        self._expected, self._channel = expected, consumer.task_consumer.channel
        self._acked: list[str] = self._channel.acks.take()
        wanted = has_place and not is_stopping()
        self._taking: Taking | None = self._channel.taking() if wanted else None

    @property
    def along(self) -> dict[str, Any]:
        acked = self._channel.acks.as_told(self._acked)
        return {"acked": acked, "taking": self._taking.told if self._taking else ()}

    def arrive(self, worker: str, outcome: Any) -> None:
        """The store has answered, or could not be asked."""
        if not isinstance(outcome, Released):  # so none of it has happened; or all of it, and the answer was lost
            self._channel.acks.add(self._acked)
            if self._taking:
                self._channel.lose_sight_of(self._taking, worker)
            return
        self._channel.acks.were_told(self._acked)
        if self._taking and outcome.handed is not None:
            self._expected.add(worker, outcome.handed)
            self._channel.take_over(self._taking, worker, outcome.handed.delivery)


class Taker:
    """For a pool of threads, which release by themselves: what they are handed is delivered by the event loop.

    Relies on a loop that wakes when it is called from another thread (`Hub._waker`, kombu 5.7 and later), and on the
    pool's executor keeping in `_work_queue` what no thread has begun.
    """

    def __init__(self, expected: Expected, consumer: Any) -> None:
        self._expected, self._consumer = expected, consumer

    @staticmethod
    def fits(consumer: Any) -> bool:
        pool_queues = hasattr(getattr(consumer.pool, "executor", None), "_work_queue")
        return pool_queues and hasattr(consumer.hub, "_waker")

    def taking(self) -> Taking | None:
        """Called in the thread whose body has ended: the place that is free is its own."""
        if is_stopping() or self._consumer.pool.executor._work_queue.qsize():
            return None
        taking: Taking | None = self._consumer.task_consumer.channel.taking()
        return taking

    def arrive(self, taking: Taking, worker: str, outcome: Any) -> None:
        channel = self._consumer.task_consumer.channel
        if not isinstance(outcome, Released):
            channel.lose_sight_of(taking, worker)
        elif outcome.handed is not None:
            self._expected.add(worker, outcome.handed)
            self._consumer.call_soon(self._deliver, channel, taking, worker, outcome.handed)

    def _deliver(self, channel: Any, taking: Taking, worker: str, handed: Handed) -> None:
        if is_stopping():  # the pool takes no more: as one that is fetched and not begun it goes to another worker
            channel.give_back([handed.delivery[0].decode()], "front")
            return self._expected.drop(handed.ticket)
        self._expected.last_come = ""
        channel.take_over(taking, worker, handed.delivery)
        if self._expected.last_come != task_id_of(handed.ticket):
            self._expected.give_up(handed.ticket)
        return None
