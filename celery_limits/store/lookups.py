"""What is read or written beside the scripts: single commands, for which no state of a ticket matters."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from .errors import translated
from .namespace_time import now_and_lead
from .outcomes import name_of, text
from .status import Status
from .store import PAGE, Store

__all__ = [
    "count_bodies",
    "counted",
    "has_worker",
    "leases",
    "live_workers",
    "running_of",
    "times_parked",
    "workers_known",
]

MOST_COUNTED = 500


def has_worker(store: Store) -> bool:
    """Whether a Celery worker holds a lease, by this machine's clock. What only consumes has a name without @."""
    client: Any = store.client
    with translated("has_worker"):
        names = client.zrevrangebyscore(f"{store.prefix}leases", "+inf", time.time_ns() // 1000, start=0, num=PAGE)
    return any(b"@" in name for name in names)


def live_workers(store: Store) -> list[str]:
    """The Celery workers that hold a lease, by their names in the store."""
    client: Any = store.client
    with translated("live_workers"):
        names = client.zrevrangebyscore(f"{store.prefix}leases", "+inf", time.time_ns() // 1000)
    return sorted(name_of(name) for name in names if b"@" in name)


def workers_known(store: Store) -> bool:
    """Whether a Celery worker has a lease, lapsed or not, or died and is not reclaimed yet."""
    client: Any = store.client
    with translated("workers_known"):
        names = client.zrange(f"{store.prefix}leases", 0, -1)
        alarms = client.zscan_iter(f"{store.prefix}alarms", match="reclaim|*", count=1000)
        return any(b"@" in name for name in names) or any(True for _ in alarms)


def times_parked(store: Store) -> int:
    """How often a ticket was parked in this namespace since it was made."""
    client: Any = store.client
    with translated("times_parked"):
        return int(client.hget(f"{store.prefix}counts", "parked") or 0)


def leases(store: Store) -> dict[str, float]:
    """Every worker that has a lease, and the seconds that are left of it, by the time of the namespace; below 0 when it
    has lapsed."""
    client: Any = store.client
    with translated("leases"):
        now, _ = now_and_lead(store)
        found = client.zrange(f"{store.prefix}leases", 0, -1, withscores=True)
    return {text(name): until / 1e6 - now for name, until in found}


def count_bodies(store: Store, key: str) -> int:
    """How many holders of a key run, of one that has too many of them for one script to count. Read in pages: a
    body that begins or ends meanwhile may count or not."""
    client: Any = store.client
    count = 0
    with translated("count_bodies"):
        cursor = -1
        while cursor:
            cursor, held = client.hscan(f"{store.prefix}hold:{key}", max(cursor, 0), count=500)
            pipe = client.pipeline(transaction=False)
            for ticket in held:
                task_id, _, nonce = ticket.rpartition(b".")
                pipe.hget(f"{store.prefix}task:".encode() + task_id, nonce)
            count += sum(bool(record) and record.startswith(b"running\t") for record in pipe.execute())
    return count


def counted(store: Store, status: Status) -> Status:
    """The status with the number of bodies, however many there are."""
    return status if status.bodies is not None else replace(status, bodies=count_bodies(store, status.key))


def running_of(store: Store, worker: str, most: int = PAGE) -> tuple[int, list[str]]:
    """How many tickets a worker runs, and a page of them. Beside them are its mark and its refreshes, of which
    there are few."""
    client: Any = store.client
    name = f"{store.prefix}worker:{worker}"
    with translated("running_of"):
        members = client.zrange(name, 0, MOST_COUNTED)
        count = int(client.zcard(name))
    tickets = [text(member) for member in members if b"." in member and b"\t" not in member]
    return len(tickets) + max(0, count - len(members)), tickets[:most]
