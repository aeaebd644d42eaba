"""The names of the lists that a queue's messages are in, one for each step of priority."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["list_names"]


def list_names(connection: Any) -> Callable[[str, int], str]:
    """By queue and rank, for a connection of ours: as its channels name them."""
    channel = connection.default_channel
    prefix, name = channel.global_keyprefix, channel._q_for_pri
    return lambda queue, rank: f"{prefix}{name(queue, rank)}"
