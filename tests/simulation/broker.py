"""A broker that knows nothing of the store: one queue in memory, deliveries that it keeps until they are acknowledged,
and its ways to redeliver."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.store.model import Message

if TYPE_CHECKING:
    from .worker import VirtualWorker

__all__ = ["Broker", "Delivery"]


@dataclass(eq=False, slots=True)
class Delivery:
    """A message with a worker. `field`: under which our own transport keeps it, where that has brought it."""

    message: Message
    number: int
    field: str = ""
    arrival: int = 0
    new: bool = False
    """It never came out of the store, by what its header says."""
    body: tuple[str, int] | None = None
    """While it runs: for which life of its worker, and under which fence."""
    settled: bool = False
    """It is acknowledged, or rejected."""


class Copy(NamedTuple):
    message: Message
    new: bool


class Broker:
    def __init__(self) -> None:
        self.ready: deque[Copy] = deque()
        self.unacknowledged: dict[int, tuple[Delivery, VirtualWorker]] = {}
        self._numbers = 0

    def publish(self, message: Message, *, new: bool) -> None:
        self.ready.append(Copy(message, new))

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def fetch(self, worker: VirtualWorker) -> Delivery | None:
        if not self.ready:
            return None
        message, new = self.ready.popleft()
        delivery = Delivery(message, self.number(), new=new)
        self.unacknowledged[delivery.number] = (delivery, worker)
        return delivery

    def acknowledge(self, delivery: Delivery) -> None:
        """Nothing happens on a connection that was lost: by then the message is someone else's."""
        self.unacknowledged.pop(delivery.number, None)

    def put_back(self, delivery: Delivery) -> None:
        if self.unacknowledged.pop(delivery.number, None):
            self.ready.appendleft(Copy(delivery.message, delivery.new))

    def deliver_again(self, number: int) -> None:
        """The broker believes that this delivery came to nothing, be that so or not."""
        if found := self.unacknowledged.pop(number, None):
            found[0].message.excused = True
            self.ready.appendleft(Copy(found[0].message, found[0].new))

    def hang_up(self, worker: VirtualWorker | None = None) -> None:
        """The connection to one worker, or to all, is gone."""
        for number, (_, whose) in reversed(list(self.unacknowledged.items())):
            if worker is None or whose is worker:
                self.deliver_again(number)

    def has(self, message: Message) -> bool:
        waiting = any(copy.message is message for copy in self.ready)
        return waiting or any(d.message is message for d, _ in self.unacknowledged.values())
