"""A broker in memory: one queue, deliveries that it keeps until they are acknowledged, and its ways to redeliver."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.store.model import Message

if TYPE_CHECKING:
    from .worker import VirtualWorker

__all__ = ["Broker", "Delivery"]


@dataclass(eq=False, slots=True)
class Delivery:
    """A message with a worker. `taken`: by whom, where it came from the front of the queue, which is in the store."""

    message: Message
    number: int
    taken: str = ""


class Broker:
    def __init__(self) -> None:
        self.ready: deque[Message] = deque()
        self.unacknowledged: dict[int, tuple[Delivery, VirtualWorker]] = {}
        self._numbers = 0

    def publish(self, message: Message) -> None:
        self.ready.append(message)

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def fetch(self, worker: VirtualWorker) -> Delivery | None:
        if not self.ready:
            return None
        delivery = Delivery(self.ready.popleft(), self.number())
        self.unacknowledged[delivery.number] = (delivery, worker)
        return delivery

    def acknowledge(self, delivery: Delivery) -> None:
        """Nothing happens on a connection that was lost: by then the message is someone else's."""
        self.unacknowledged.pop(delivery.number, None)

    def put_back(self, delivery: Delivery) -> None:
        if self.unacknowledged.pop(delivery.number, None):
            self.ready.appendleft(delivery.message)

    def deliver_again(self, number: int) -> None:
        """The broker believes that this delivery came to nothing, be that so or not."""
        if found := self.unacknowledged.pop(number, None):
            found[0].message.excused = True
            self.ready.appendleft(found[0].message)

    def hang_up(self, worker: VirtualWorker | None = None) -> None:
        """The connection to one worker, or to all, is gone."""
        for number, (_, whose) in reversed(list(self.unacknowledged.items())):
            if worker is None or whose is worker:
                self.deliver_again(number)

    def has(self, message: Message) -> bool:
        return message in self.ready or any(d.message is message for d, _ in self.unacknowledged.values())
