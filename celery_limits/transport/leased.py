"""A channel of a process that has a lease: what was fetched is its own, until it says otherwise.

**Acknowledging.** In a worker with an event loop acknowledgements go with the next fetch or release, or before the loop
sleeps (see `polling`). Elsewhere each is sent at once.
"""

from __future__ import annotations

import threading
from typing import Any

from kombu.transport import redis
from redis import exceptions as redis_errors

from celery_limits.store.keys import prefix_of

from .acks import Acks
from .courier import Courier, explained
from .debts import ERRORS
from .membership import member_of
from .polling import Polled

__all__ = ["OPTIONS", "Leased"]

OPTIONS = ("limits_namespace", "limits_lease", "limits_lines")


class Leased(Polled, redis.Channel):  # type: ignore[misc]
    """Its settings, its lease, and what it tells Redis of what was fetched."""

    from_transport_options = (*redis.Channel.from_transport_options, *OPTIONS)

    limits_namespace = "celery"
    limits_lease = 30.0
    limits_lines = False
    """Whether the limits of those who publish here are kept in this very Redis."""

    _asleep = False
    _thread = 0
    """Whether it waits to be rung for, and which thread has begun that."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.acks = Acks()
        try:
            super().__init__(*args, **kwargs)
        except redis_errors.ResponseError as error:
            raise explained(error, "connect") from error

    @property
    def courier(self) -> Courier:
        courier: Courier | None = self.__dict__.get("_courier")
        if courier is None:
            prefix = self.global_keyprefix + prefix_of(self.limits_namespace)
            courier = self.__dict__["_courier"] = Courier(self._create_client(), prefix)
        return courier

    @property
    def member(self) -> Any:
        """This process's lease in this Redis. A closed channel keeps it: what it brought may still run."""
        if self.connection is not None:
            self.__dict__["_member"] = member_of(self)
        return self.__dict__.get("_member")

    def _get_pool(self, asynchronous: bool = False) -> Any:
        if self.connection is None:  # closed while a thread publishes, who tries again on another one when told so
            raise redis_errors.ConnectionError("the channel was closed")
        with self.connection.plainly():
            return super()._get_pool(asynchronous)

    def acknowledge(self, field: str) -> None:
        if self.acks.is_done(field):
            return
        self.acks.add([field])
        looped = getattr(self.connection, "has_loop", False) and self._consumers
        if not looped or (self._asleep and threading.get_ident() != self._thread):
            self.flush_acks()

    def _basic_cancel(self, consumer_tag: str) -> None:
        """After the last, no fetch takes acknowledgements along, and a worker leaves the store before it closes us."""
        super()._basic_cancel(consumer_tag)
        if not self._consumers:
            self.acks.fetch_gone()
            self.flush_acks()

    def flush_acks(self) -> None:
        while fields := self.acks.take():
            member, told = self.member, self.acks.as_told(fields)
            try:
                self.courier.acknowledge(member.worker, told)
            except BaseException as error:
                if not isinstance(error, ERRORS) or (self._consumers and not self._closing):
                    self.acks.add(fields)
                    raise
                member.debts.acknowledge(self.courier, member.worker, told)
            self.acks.were_told(fields)

    def give_back(self, fields: list[str], where: str) -> None:
        """Back to the queues they came from, now or as soon as Redis answers."""
        fields = [field for field in fields if "." in field]
        if not fields:
            return
        self.acks.were_told(fields)
        member = self.member
        try:
            self.courier.requeue(member.worker, fields, where)
        except ERRORS:
            member.debts.give_back(self.courier, member.worker, fields, where)
