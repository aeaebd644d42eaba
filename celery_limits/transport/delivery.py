"""A message as our channels deliver it, what is under way on one of them, and how it may be handed more."""

from __future__ import annotations

from typing import Any, NamedTuple

from kombu.transport import redis, virtual

from .payload import Unreadable

__all__ = ["QUEUE_MARK", "Message", "QoS", "Taking", "has_number", "is_own", "requeue"]

QUEUE_MARK = "limits_queue"


def has_number(delivery_tag: Any) -> bool:
    """Whether a message was fetched from a queue, under this number; a broadcast was not."""
    return "." in delivery_tag


class Message(virtual.Message):  # type: ignore[misc]
    """Knows the queue it came from, and is acknowledged by the number under which it was fetched."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        try:
            super().__init__(payload, channel=channel, **kwargs)
            if not isinstance(self.delivery_info, dict):
                raise TypeError(f"delivery_info is {self.delivery_info!r:.100}")
        except Exception as error:  # a part is missing, is of another kind, or can't be decoded
            raise Unreadable(f"not a message: {error!r:.200}") from error
        field, queue = channel.arriving
        if field:
            self.delivery_tag = field
        setattr(self, QUEUE_MARK, queue)


def is_own(message: Any) -> bool:
    """Whether a channel of our own transport brought it."""
    return isinstance(message, Message)


def requeue(message: Any) -> None:
    """To the front of its queue. Another broker does so by itself when the connection is lost; and where our transport
    has done so already, a second time does nothing."""
    if is_own(message):
        message.channel.give_back([message.delivery_tag], "front")


class Taking(NamedTuple):
    """How a release is told where it may hand a message over: under this mark, from these queues. What that brings is
    numbered above `after`."""

    mark: str
    queues: list[str]
    lists: list[Any]
    after: int = 0

    @property
    def told(self) -> list[Any]:
        return [self.mark, *self.lists]


class QoS(redis.QoS):  # type: ignore[misc]
    """What is under way on one channel. What stock workers left behind is still restored by kombu's own rule."""

    def append(self, message: Any, delivery_tag: str) -> None:
        virtual.QoS.append(self, message, delivery_tag)  # it was recorded when it was fetched

    def ack(self, delivery_tag: str) -> None:
        self._quick_ack(delivery_tag)
        self.channel.acknowledge(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if not requeue:
            return self.ack(delivery_tag)
        self._quick_ack(delivery_tag)
        self.channel.give_back([delivery_tag], "end")
        return None

    def restore_unacked(self, client: Any = None) -> list[Any]:
        self._flush()
        running = self.channel.still_running()
        fields = [tag for tag in self._delivered if tag not in running]
        self._delivered.clear()
        self.channel.give_back(fields, "front")
        return []
