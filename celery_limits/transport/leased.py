"""A channel of a process that has a lease: what was fetched is its own, until it says otherwise.

**Acknowledging.** In a worker with an event loop acknowledgements go with the next fetch or release, or before the loop
sleeps (see `polling`). Elsewhere each is sent at once.
"""

from __future__ import annotations

import threading
from typing import Any

from kombu.transport import redis
from redis import exceptions as redis_errors

from celery_limits.secret import bare
from celery_limits.store.keys import prefix_of
from celery_limits.store.script_runner import discreet_pool

from .ack_buffer import Acks
from .delays import delay_of, is_far
from .member import member_of
from .polling import Polled
from .queue_scripts import QueueScripts, explained
from .unconfirmed import ERRORS

__all__ = ["OPTIONS", "Leased"]

OPTIONS = ("limits_namespace", "limits_lease", "limits_lines", "limits_delays")


class Leased(Polled, redis.Channel):  # type: ignore[misc]
    """Its settings, its lease, and what it tells Redis of what was fetched."""

    from_transport_options = (*redis.Channel.from_transport_options, *OPTIONS)

    limits_namespace = "celery"
    limits_lease = 30.0
    limits_lines = False
    """Whether the limits of those who publish here are kept in this very Redis."""

    limits_delays = False
    """Whether a message with an eta waits in this Redis and not with a worker."""

    _asleep = False
    _thread = 0
    """Whether it waits to be rung for, and which thread has begun that."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.acks = Acks()
        try:
            super().__init__(*args, **kwargs)
        except redis_errors.ResponseError as error:
            raise explained(error, "connect") from bare(error)

    @property
    def scripts(self) -> QueueScripts:
        scripts: QueueScripts | None = self.__dict__.get("_scripts")
        if scripts is None:
            prefix = self.global_keyprefix + prefix_of(self.limits_namespace)
            scripts = self.__dict__["_scripts"] = QueueScripts(self._create_client(), prefix)
        return scripts

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
            return discreet_pool(super()._get_pool(asynchronous))

    def acknowledge(self, field: str) -> None:
        if self.acks.is_done(field):
            return
        self.acks.add([field])
        looped = getattr(self.connection, "has_loop", False) and self._consumers
        if not looped or (self._asleep and threading.get_ident() != self._thread):
            self.flush_acks()

    def was_delayed(self, field: str, queue: str, raw: Any) -> bool:
        """Whether this delivery went into the store, since its eta is far away: its producer has not put it there."""
        delay = delay_of(raw, queue) if field else None
        if delay is None or not is_far(delay):
            return False
        try:
            return self.scripts.delay_fetched(delay, queue, self.member.worker, field)
        except ERRORS:  # it may be in the store; if not, it comes again
            self.give_back([field], "front")
            return True

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
                self.scripts.acknowledge(member.worker, told)
            except BaseException as error:
                if not isinstance(error, ERRORS) or (self._consumers and not self._closing):
                    self.acks.add(fields)
                    raise
                member.unconfirmed.acknowledge(self.scripts, member.worker, told)
            self.acks.were_told(fields)

    def give_back(self, fields: list[str], where: str) -> None:
        """Back to the queues they came from, now or as soon as Redis answers."""
        fields = [field for field in fields if "." in field]
        if not fields:
            return
        self.acks.were_told(fields)
        member = self.member
        try:
            self.scripts.requeue(member.worker, fields, where)
        except ERRORS:
            member.unconfirmed.give_back(self.scripts, member.worker, fields, where)
