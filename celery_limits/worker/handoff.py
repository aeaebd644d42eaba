"""Direct hand-off on our own transport: a release may bring the next message with its answer, admitted already. In the
event loop's own thread the acknowledgements that are due go along with the release, too.

A worker asks for it only where a place of the pool is free that nobody waits for, and the store grants it only while
the queues of this worker are empty. So no other task waits behind a line that is handed off. A message that was handed
off and does not come to the gate at once gives its slots back: Celery has dropped it, or lets it wait. Should it come,
it asks like any other, in its old place.

Where headers are not trusted nothing is handed off: it would run under the recorded chain, and not the one resolved
here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from celery_limits.lease.ledger import Ledger
from celery_limits.message.header import task_id_of
from celery_limits.store.outcomes import Admitted, Handed, Released
from celery_limits.transport.delivery import Taking

from .passage import Event, returns_to_broker
from .port import ChannelLike, WorkerLike

__all__ = ["DirectHandoff", "Offer"]


class Offer(NamedTuple):
    """What goes along with one release: the acknowledgements that are due, and where a message may be handed off to."""

    channel: ChannelLike
    acked: list[str]
    taking: Taking | None
    in_loop: bool
    number: int
    """Under which the ledger expects a ticket that comes along; 0 where none can."""

    @property
    def along(self) -> dict[str, Any]:
        acked = self.channel.acks.as_told(self.acked)
        return {"acked": acked, "taking": self.taking.told if self.taking else ()}


class DirectHandoff:
    """Knows what was handed off to this worker, is admitted, and has not come to the gate yet."""

    def __init__(self, worker: WorkerLike, ledger: Ledger, release: Callable[..., None], *, wanted: bool) -> None:
        self._worker, self._ledger, self._release, self._wanted = worker, ledger, release, wanted
        self._admitted: dict[str, tuple[str, Admitted]] = {}
        self._arrived = ""

    # -- with a release -----------------------------------------------------------------------------------------

    def offer(self, *, has_place: bool) -> Offer | None:
        """In the event loop's own thread. None while nothing is consumed, as when a worker drains its pool."""
        channel = self._worker.channel
        if channel is None:
            return None
        acked = channel.acks.take()
        wanted = self._wanted and has_place and self._worker.has_place and not self._worker.is_stopping
        taking = channel.taking() if wanted else None
        return Offer(channel, acked, taking, in_loop=True, number=self._ledger.offer() if taking else 0)

    def offer_from_thread(self) -> Offer | None:
        """In the thread whose body has ended: the place that is free is its own."""
        channel = self._worker.channel
        if not self._wanted or channel is None or self._worker.is_stopping or self._worker.pool_queues:
            return None
        taking = channel.taking()
        if taking is None:
            return None
        return Offer(channel, [], taking, in_loop=False, number=self._ledger.offer())

    def answered(self, offer: Offer, worker: str, outcome: Any) -> None:
        """The store has answered the release, or could not be asked."""
        if isinstance(outcome, Released) and outcome.handed is not None:
            self._ledger.enter(outcome.handed.ticket, outcome.handed.admitted.fence)
        self._ledger.offer_answered(offer.number)
        channel, taking = offer.channel, offer.taking
        if not isinstance(outcome, Released):  # so none of it has happened; or all of it, and the answer was lost
            channel.acks.add(offer.acked)
            if taking is not None:
                channel.lose_sight_of(taking, worker)
            return
        channel.acks.were_told(offer.acked)
        handed = outcome.handed
        if taking is None or handed is None:
            return
        self._admitted[handed.ticket] = (worker, handed.admitted)
        if offer.in_loop:
            channel.take_over(taking, worker, handed.delivery)
        else:
            self._worker.call_soon(self._deliver, channel, taking, worker, handed)

    def _deliver(self, channel: ChannelLike, taking: Taking, worker: str, handed: Handed) -> None:
        """In the event loop's own thread, for a thread of the pool."""
        if self._worker.is_stopping:  # the pool takes no more: as one that is fetched and not begun it goes to another
            channel.give_back([handed.delivery[0].decode()], "front")
            if self.take(handed.ticket) is not None:
                self._ledger.close(handed.ticket, handed.admitted.fence)
            return
        self._arrived = ""
        channel.take_over(taking, worker, handed.delivery)
        if self._arrived != task_id_of(handed.ticket):
            self.give_up(handed.ticket)

    # -- at the gate --------------------------------------------------------------------------------------------

    def arrive(self, task_id: str) -> None:
        """This task has come to the gate. Pools that queue by themselves ask for it later."""
        self._arrived = task_id

    def take(self, ticket: str) -> tuple[str, Admitted] | None:
        """It has come: for which worker it was admitted, and how."""
        return self._admitted.pop(ticket, None)

    def end(self, task_id: str) -> None:
        """It has come, and will not run: its message is acknowledged or rejected."""
        for ticket in [ticket for ticket in tuple(self._admitted) if task_id_of(ticket) == task_id]:
            if (handed := self.take(ticket)) is not None:
                worker, admitted = handed
                self._release(ticket, worker, admitted.fence)
                self._ledger.close(ticket, admitted.fence)

    def give_up_all(self) -> None:
        for ticket in tuple(self._admitted):
            self.give_up(ticket)

    def give_up(self, ticket: str) -> None:
        if (handed := self.take(ticket)) is not None:
            worker, admitted = handed
            back = returns_to_broker(Event.HANDOFF_UNUSED)
            self._release(ticket, worker, admitted.fence, back=back)
            self._ledger.close(ticket, admitted.fence, back=back)
