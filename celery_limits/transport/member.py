"""A process's lease in the Redis that it consumes from: one for all its channels, the worker's own where there is one.

A Celery worker has a lease for its limits; where that is in the same Redis, its deliveries are under it too. Any other
process gets one when it first fetches something that it will have to acknowledge.
"""

from __future__ import annotations

import _thread
import atexit
import os
import socket
import threading
from typing import Any

from redis import Redis

from celery_limits.lease.heartbeat import Threads
from celery_limits.lease.lease import Lease
from celery_limits.lease.ledger import Ledger
from celery_limits.store import Policy, Store

from .unconfirmed import Unconfirmed

__all__ = ["Member", "adopt", "disown", "member_of"]

_lock = threading.Lock()
_members: dict[Any, Member] = {}


def _forget() -> None:
    global _lock  # noqa: PLW0603  (a thread of the parent may have held it)
    _lock = threading.Lock()
    _members.clear()


os.register_at_fork(after_in_child=_forget)


def _place(pool: Any, prefix: str) -> Any:
    """Which Redis a connection pool goes to, and which namespace there."""
    kwargs = pool.connection_kwargs
    if (service := getattr(pool, "service_name", None)) is not None:
        return service, kwargs.get("db", 0), prefix
    return kwargs.get("path") or (kwargs.get("host"), kwargs.get("port")), kwargs.get("db") or 0, prefix


class Member:
    """The lease under which the channels of a process fetch, and the calls that Redis has not confirmed to them."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.unconfirmed = Unconfirmed(lambda: lease.worker)
        lease.register(self.unconfirmed)

    @property
    def worker(self) -> str:
        """The name of this process in the store."""
        return self.lease.worker

    @property
    def held(self) -> bool:
        return self.lease.held


def adopt(store: Store, lease: Lease) -> None:
    """From now on this worker's lease covers what its channels fetch."""
    client: Any = store.client
    _members[_place(client.connection_pool, store.prefix)] = Member(lease)


def disown(lease: Lease) -> None:
    for place in [place for place, member in _members.items() if member.lease is lease]:
        del _members[place]


def member_of(channel: Any) -> Member:
    place = channel.__dict__.get("_place")
    if place is None:
        place = channel.__dict__["_place"] = _place(channel.pool, channel.scripts.prefix)
    member = _members.get(place)
    if member is None:
        with _lock:
            member = _members.get(place)
            if member is None:
                member = _members[place] = _join(channel)
    return member


def _join(channel: Any) -> Member:
    def new_store() -> Store:
        client = Redis(connection_pool=channel._get_pool())
        policy, keyprefix = Policy(lease=channel.limits_lease), channel.global_keyprefix
        return Store(client, channel.limits_namespace, policy, keyprefix=keyprefix, configures=False)

    member = Member(Lease(socket.gethostname(), new_store(), Ledger()))
    member.lease.start(Threads(_thread.start_new_thread, _thread.allocate_lock), new_store())
    atexit.register(member.lease.stop)
    return member
