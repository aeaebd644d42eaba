"""The time of a namespace, for reads that no script makes. lua/include/clock.lua says what it is."""

from __future__ import annotations

from typing import Any

from redis.cluster import RedisCluster

from .errors import translated

__all__ = ["now_and_lead"]


def now_and_lead(store: Any) -> tuple[float, float]:
    """The time of the namespace in seconds, and how far it is ahead of the server's clock."""
    client, clock = store.client, getattr(store, "_clock", None)
    with translated("time"):
        seconds, micros = client.time(target_nodes="random") if isinstance(client, RedisCluster) else client.time()
        kept: bytes = client.get(f"{store.prefix}clock") or b""
    server = int(seconds) + int(micros) / 1e6 if clock is None else clock() / 1e6
    mark, _, written = kept.partition(b" ")
    if not (mark.isdigit() and written.isdigit()):
        return server, 0.0
    lead = max(int(written) / 1e6, int(mark) / 1e6 - server)
    return server + lead, lead
