"""Where a message is: with our own transport, which keeps it in the store's Redis, or with any other broker.

Which of the two is decided once per channel. The rest of the worker asks a delivery, and knows neither the numbers
under which our transport keeps messages nor the envelope in which the store keeps those of another broker.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakKeyDictionary

from celery_limits.message.envelope import pack
from celery_limits.transport.delivery import has_number, requeue
from celery_limits.transport.early_park import RAW

from .plan import Plan
from .untrusted import queue_of, rank_of

__all__ = ["Deliveries", "Delivery", "ForeignDelivery", "OwnDelivery", "is_own_channel"]


class Delivery(Protocol):
    packs: bool
    """Whether the store needs the message itself in order to park it."""

    @property
    def queue(self) -> str:
        """The one queue that the message came from (see `steps.QueueMarks`)."""

    @property
    def rank(self) -> int:
        """Celery's priority as a rank: lower first."""

    def park_arguments(self, plan: Plan, *, whole: bool) -> dict[str, Any]:
        """What the store is told so that it can park the message."""

    def was_parked(self) -> None: ...

    def was_admitted(self) -> None: ...

    def give_back(self) -> None:
        """The message, to the front of its queue."""


def is_own_channel(channel: Any) -> bool:
    """Whether it is one of our own transport."""
    return hasattr(channel, "still_running")


class _Base:
    def __init__(self, request: Any, app: Any) -> None:
        self._request, self._message, self._app = request, request.message, app

    @property
    def queue(self) -> str:
        return queue_of(self._request)

    @property
    def rank(self) -> int:
        return rank_of(self._request, self._app)


class OwnDelivery(_Base):
    """The store has the message: it is named, and parked where it is."""

    packs = False

    def park_arguments(self, plan: Plan, *, whole: bool) -> dict[str, Any]:
        cut = RAW if plan.as_sent else None
        return {"cut": cut, "queue": self.queue, "field": self._message.delivery_tag}

    def was_parked(self) -> None:
        """Which has acknowledged it; and what comes next may have to wait for the same."""
        channel = self._message.channel
        channel.acks.was_done(self._message.delivery_tag)
        channel.sift()

    def was_admitted(self) -> None:
        self._message.channel.acks.was_admitted(self._message.delivery_tag)

    def give_back(self) -> None:
        requeue(self._message)


class ForeignDelivery(_Base):
    """Packed only when it has to be parked: most messages are admitted at once."""

    packs = True

    def park_arguments(self, plan: Plan, *, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        message, cut = pack(self._message, self.queue, plan.header)
        return {"message": message, "cut": cut}

    def was_parked(self) -> None:
        """Its acknowledgement says so."""

    def was_admitted(self) -> None:
        """Nobody keeps a grant for it."""

    def give_back(self) -> None:
        requeue(self._message)


class Deliveries:
    """Of one worker, whose lease is `lease`."""

    def __init__(self, lease: Any, app: Any) -> None:
        self._lease, self._app = lease, app
        self._under_lease: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def delivery_of(self, request: Any) -> Delivery:
        """A broadcast has no number, so the store can't name it."""
        message = request.message
        own = self.is_under_lease(message.channel) and has_number(message.delivery_tag)
        return (OwnDelivery if own else ForeignDelivery)(request, self._app)

    def is_under_lease(self, channel: Any) -> bool:
        """Whether this is a channel of our own transport, and what it fetches is under this worker's lease."""
        if channel is None:
            return False
        known = self._under_lease.get(channel)
        if known is None:
            known = self._under_lease[channel] = getattr(getattr(channel, "member", None), "lease", None) is self._lease
        return known
