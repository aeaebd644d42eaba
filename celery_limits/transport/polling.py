"""What our channels have to do before the event loop sleeps, and no oftener.

Relies on kombu calling `on_poll_start` before each sleep, on its poller being level-triggered (asked twice it answers
twice), and on `Hub.readers` having the callback and arguments of each file descriptor that is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kombu.transport import redis

if TYPE_CHECKING:
    from .ack_buffer import Acks

__all__ = ["Loop", "Polled", "Poller"]

MOST_WAITS = 8
"""Turns of a busy loop for which acknowledgements, and a fetch of a few, wait for something to go along with."""


class Polled:
    """What the poller asks of a channel."""

    acks: Acks
    flush_acks: Callable[[], Any]
    _asleep: bool
    connection: Any
    qos: Any
    active_fanout_queues: set[str]
    _active_queues: list[str]
    _in_poll: Any
    _in_listen: Any

    _waited = 0

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to do: it listens, and waits for Redis to answer."""
        if self.active_fanout_queues and not _is_open(self._in_listen):
            return False
        if self.active_fanout_queues.issuperset(self._active_queues):
            return True
        return _is_open(self._in_poll) and not (self._asleep and self.acks) and bool(self.qos.can_consume())

    def can_wait(self) -> bool:
        """Whether all there is to do is to acknowledge, or to fetch a few while more are in hand. Not for long."""
        most = self.qos.prefetch_count
        self._waited += 1
        return bool(
            most
            and self._waited <= MOST_WAITS
            and self.connection.has_loop
            and (self._asleep or not self._in_poll)
            and 2 * self.qos.can_consume_max_estimate() < most
        )

    def before_poll(self) -> None:
        self._waited = 0
        if self.acks and (self._asleep or not self._in_poll):
            self.flush_acks()


def _is_open(connection: Any) -> bool:
    return bool(connection) and connection._sock is not None


class Poller(redis.MultiChannelPoller):  # type: ignore[misc]
    """kombu's, but a channel that has nothing to do is left alone; one that can wait does, while the loop is busy; and
    none goes to sleep with something to acknowledge."""

    def on_poll_start(self) -> None:
        due = [channel for channel in self._channels if not channel.is_settled]
        paused = getattr(self, "_paused_brpop", ())  # since kombu 5.7: not listened to while there was no room for more
        if paused or (due and not (all(channel.can_wait() for channel in due) and self.poller.poll(0))):
            super().on_poll_start()
            for channel in due:
                channel.before_poll()


class Loop:
    """The event loop, as kombu's transport is given it: what it adds once more in each turn costs no system call."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        if self._loop.readers.get(fd) != (callback, args):
            self._loop.add_reader(fd, callback, *args)
