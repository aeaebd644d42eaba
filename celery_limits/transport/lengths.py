"""How many messages wait in a queue for a worker, whatever the broker.

Relies on `_size` of kombu's own brokers, and on a passive declaration telling the count on any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

__all__ = ["queue_lengths"]


def queue_lengths(connection: Any, names: Iterable[str]) -> dict[str, int]:
    """By queue. One that does not exist is left out; to most brokers of kombu's own, that is an empty one."""
    found = {}
    for name in names:
        channel = connection.channel()  # a queue that does not exist closes it
        with suppress(*connection.channel_errors):
            if hasattr(channel, "_size"):
                found[name] = int(channel._size(name))
            else:
                found[name] = int(channel.queue_declare(queue=name, passive=True).message_count)
            channel.close()
    return found
