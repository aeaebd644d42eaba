"""A message as our channels deliver it, what is under way on one of them, and how it may be handed more."""

from __future__ import annotations

from typing import Any, NamedTuple

from kombu.transport import redis, virtual

__all__ = ["QUEUE_MARK", "Message", "QoS", "Taking"]

QUEUE_MARK = "limits_queue"


class Message(virtual.Message):  # type: ignore[misc]
    """Knows the queue it came from, and is acknowledged by the number under which it was fetched."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        super().__init__(payload, channel=channel, **kwargs)
        field, queue = channel.arriving
        if field:
            self.delivery_tag = field
        setattr(self, QUEUE_MARK, queue)


class Taking(NamedTuple):
    """How a release is told where it may hand a message over: under this mark, from these queues."""

    mark: str
    queues: list[str]
    lists: list[Any]

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
