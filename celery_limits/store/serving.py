"""What a worker says of itself with its heartbeat: the queues that it consumes, and the places of its pool."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .errors import translated
from .outcomes import name_of

__all__ = ["KEEP", "Served", "Serving", "queues_served", "serving_fields"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

KEEP = "="
"""What was said before still holds."""


class Serving(NamedTuple):
    """`places`: of the pool, busy or free. `queues`: those that the worker takes messages from. `stalled`: no place is
    free, and none has become free for a while."""

    places: int
    queues: tuple[str, ...]
    stalled: bool = False


def serving_fields(serving: Serving | None) -> list[str]:
    """As beat.lua takes it. Limits can't be kept for a queue whose name has control characters, so it is left out."""
    if serving is None:
        return [""]
    queues = sorted({queue for queue in serving.queues if queue and not _CONTROL.search(queue)})
    return [str(max(0, serving.places)), "1" if serving.stalled else "", *queues]


class Served(NamedTuple):
    """A queue: the places of the live workers that consume it, how many workers that are, and how many of them are not
    stalled."""

    places: int
    workers: int
    takers: int


def queues_served(store: Any) -> dict[str, Served]:
    """Every queue that a live worker has said it consumes."""
    with translated("queues_served"):
        fields = store.client.hgetall(f"{store.prefix}places")
    queues = {name_of(field)[2:]: raw.split() for field, raw in fields.items() if field.startswith(b"q:")}
    return {queue: Served(*map(int, sums)) for queue, sums in queues.items() if len(sums) == 3}
