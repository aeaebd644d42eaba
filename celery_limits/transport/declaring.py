"""A queue that is declared already costs a publish nothing.

kombu remembers what a connection has declared, and looks before it declares again; but it copies and binds queue and
exchange first, for each message, which is a sixth of the time that a publish takes. Here it looks before that.

Relies on `Producer.maybe_declare` being what is called for each, and on what kombu's own look relies on:
`declared_entities` of the connection has the hash of what was declared, if that can be remembered.
"""

from __future__ import annotations

import functools
from typing import Any

from kombu.messaging import Producer

from .channel import Channel

__all__ = ["install"]

_MARK = "__celery_limits__"


def install() -> None:
    original = Producer.maybe_declare
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def maybe_declare(producer: Any, entity: Any, retry: bool = False, **policy: Any) -> Any:
        return False if _is_declared(entity, producer.channel) else original(producer, entity, retry, **policy)

    setattr(maybe_declare, _MARK, True)
    Producer.maybe_declare = maybe_declare


def _is_declared(entity: Any, channel: Any) -> bool:
    """On a channel of ours that is open."""
    if not entity or not isinstance(channel, Channel) or not channel.connection or not entity.can_cache_declaration:
        return False
    return hash(entity) in channel.connection.client.declared_entities
