"""Channels that fetch atomically, and hand on what they have fetched; `leased` says whose that is.

Relies on these parts of kombu's Redis channel: its poller calls `_brpop_start` when there is room and `_brpop_read`
when the connection that was used can be read; `_put` and `_size` are one queue's; `_q_for_pri` names a list.

**Waiting.** A fetch that brings nothing is followed by a sleep on `call:<queue>`, which whoever makes something to
fetch rings; and by another fetch after `brpop_timeout` (a second), for what plain producers have put there meanwhile.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty
from time import monotonic
from typing import Any

from kombu.log import get_logger
from kombu.transport import redis, virtual
from redis import exceptions as redis_errors

from celery_limits.message.header import HEADER, queue_mark
from celery_limits.printable import printable
from celery_limits.store.keys import prefix_of

from . import early_park as lines
from .delays import delay_of
from .delivery import QUEUE_MARK, Message, QoS, Taking
from .leased import OPTIONS
from .payload import Unreadable, dump, read
from .queue_scripts import MOST, explained, number_of
from .refused import MISREAD, Refusing
from .unconfirmed import ERRORS

__all__ = ["QUEUE_MARK", "Channel", "SentinelChannel"]

logger = get_logger(__name__)

_marks = itertools.count(1)
SIFTING = 2.0
"""Seconds for which what is fetched is sifted after something had to be parked."""


Arrival = tuple[str, str, bytes]
"""Field, queue and text of a message that was fetched."""


def _new_mark() -> str:
    """Names a channel among all of this process."""
    return str(next(_marks))


class Channel(Refusing):
    """For `limits+redis://`, `limits+rediss://` and `limits+embedded://`."""

    QoS = QoS
    Message = Message
    supports_batch_publish = False

    has_place: Callable[[], bool] = staticmethod(lambda: True)
    """Whether something that is fetched could begin at once, as far as anybody knows."""

    declares_once = True
    still_running: Callable[[], Iterable[str]] = staticmethod(frozenset)
    """Deliveries that stay this process's although the channel that brought them is closed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.arriving = ("", "")
        self._sift_until = self._look_at = 0.0
        self._bare: set[str] = set()
        self._hungry, self.is_resting, self._turn = True, False, False
        self._listed: dict[tuple[str, ...], list[Any]] = {}
        self._asked: list[str] = []
        self._mark = _new_mark()
        self._fetching = ""  # in this worker's name a fetch was sent that is not answered yet
        self._fetched = ""  # in this worker's name something was fetched
        self._newest = self._sent_after = 0  # the highest number of a delivery so far, and when the last fetch was sent
        super().__init__(*args, **kwargs)

    # -- consuming -----------------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        if no_ack or not self.ack_emulation:
            self._bare.add(queue)
        else:
            self._bare.discard(queue)
        self._listed.clear()
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        bare = no_ack or not self.ack_emulation
        worker, mark = "" if bare else self.member.worker, _new_mark()
        try:
            reply = self.scripts.fetch_now(worker, mark, 1, self._lists([queue], {queue} if bare else set()))
        except ERRORS:
            if worker:
                self.member.unconfirmed.lose_sight(self.scripts, worker, mark, (), self._newest)
            raise
        if reply == b"lost" or not reply:
            return None
        field = reply[0].decode()
        try:
            message = self._arrived(field, queue, lambda: self.Message(read(reply[2]), channel=self))
        except Unreadable as error:
            self.set_aside(field, queue, reply[2], error)
            return self.basic_get(queue, no_ack, **kwargs)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        reply = self.scripts.fetch_now("", "", 1, self._lists([queue], {queue}))
        if not reply:
            raise Empty
        try:
            return read(reply[2])
        except Unreadable as error:
            self.set_aside("", queue, reply[2], error)
            return self._get(queue)

    def _lists(self, queues: list[str], bare: set[str]) -> list[Any]:
        """What fetch.lua wants to know of the queues."""
        prefix = self.global_keyprefix
        named = [part for queue in queues for part in (queue, "1" if queue in bare else "", queue_mark(queue))]
        keys = [f"{prefix}{self._q_for_pri(queue, step)}" for step in self.priority_steps for queue in queues]
        return [str(len(queues)), *named, str(len(self.priority_steps)), *map(str, self.priority_steps), *keys]

    def _consumed(self, queues: list[str]) -> list[Any]:
        """The same of those that this channel consumes, which does not change from fetch to fetch."""
        lists = self._listed.get(tuple(queues))
        if lists is None:
            lists = self._listed[tuple(queues)] = self._lists(queues, self._bare)
        return lists

    def _room(self) -> int:
        if "can_consume" in self.qos.__dict__:  # somebody counts differently (worker_disable_prefetch), one by one
            return 1
        if not self.connection.has_loop:  # whoever drains events by itself gets one at a time, as from kombu's
            return 1
        room = self.qos.can_consume_max_estimate()
        return MOST if room is None else max(1, min(room, MOST))

    def _brpop_start(self, timeout: float | None = None) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues or self._rests():
            return
        connection = self.client.connection
        self._lose_sight()
        self._asleep = not self._hungry
        if self._asleep:
            command = self.scripts.wait_command(queues, timeout or self._nap)
        else:
            command = self._fetch_command(queues)
        self._thread = threading.get_ident()
        self._in_poll = connection
        self._brpop_sent_at = monotonic()
        connection.send_packed_command([command], check_health=False)

    @property
    def _nap(self) -> float:
        """Seconds between two looks; an option since kombu 5.6."""
        return getattr(self, "brpop_timeout", None) or 1.0

    def _rests(self) -> bool:
        """With every place taken, what comes now is left to those who could begin it: they listen. This one looks when
        a place is free, which is an event of its loop, and once in a while."""
        if self._hungry:
            return False
        rested, self.is_resting = (
            self.is_resting,
            True,
        )  # a place freed after this is announced
        self.is_resting = not self.has_place()
        self._hungry = monotonic() >= self._look_at if self.is_resting else rested
        return self.is_resting and not self._hungry

    def _fetch_command(self, queues: list[str]) -> bytes:
        self._asked = queues
        worker = ""
        if not self._bare.issuperset(queues):
            member = self.member
            worker = member.worker
            if self._fetched and worker != self._fetched:
                self._cut_off()
            if member.unconfirmed:
                member.unconfirmed.confirm(worker)
            self._fetching, self._sent_after = worker, self._newest
        self._turn = not self._turn
        flags = ("r" if self._turn else "") + ("c" if self.queue_order_strategy == "round_robin" else "")
        if self.limits_lines and monotonic() < self._sift_until:
            flags += "s"
        if not self.has_place():
            flags += "b"
        acks, lists = self.acks.take_for_fetch(), self._consumed(queues)
        return self.scripts.fetch_command(worker, self._mark, self._room(), flags, acks, lists)

    def _lose_sight(self) -> None:
        """A fetch that was sent and will not be answered may have brought something."""
        if worker := self._fetching:
            self.member.unconfirmed.lose_sight(self.scripts, worker, self._mark, self._known, self._sent_after)
            self._fetching, self._mark = "", _new_mark()

    @property
    def _known(self) -> set[str]:
        """All that this channel has brought, and that is not done with."""
        return {*self.qos._delivered, *self.acks.known}

    def _cut_off(self) -> None:
        """Others have what this worker had fetched. As with a broker that did so, whoever consumes must start over."""
        self._fetched = ""
        raise redis_errors.ConnectionError(
            "this worker was not heard of for longer than its lease, and what it had fetched was given to others"
        )

    def _brpop_read(self, **options: Any) -> bool:
        try:
            reply = self._reply()
        finally:
            self._in_poll = None
            self._flush_reauth()
        if self._asleep:
            self._hungry = True
            if not self._closing and self.qos.can_consume():
                self._brpop_start()
            raise Empty
        worker, self._fetching = self._fetching, ""
        self.acks.fetch_answered()
        if reply == b"lost" and self._fetched:
            self._cut_off()
        if not reply or reply == b"lost":
            self._hungry = False
            self._look_at = monotonic() + self._nap
            raise Empty
        self._fetched = worker or self._fetched
        self._deliver_all(reply, self._asked)
        return True

    def _reply(self) -> Any:
        connection = self.client.connection
        try:
            return connection.read_response(disable_decoding=True)
        except redis_errors.ResponseError as error:  # so nothing was fetched
            self._fetching = ""
            if not isinstance(error, redis_errors.NoScriptError):
                raise explained(error, "fetch") from error
            self.scripts.unknown()
            raise Empty from None
        except self.connection_errors:
            connection.disconnect()  # the next turn reconnects
            raise

    def _flush_reauth(self) -> None:
        """Since kombu 5.6: the connection is idle now, and may be told of new credentials."""
        if flush := getattr(self, "_flush_brpop_reauth", None):
            flush()

    def _deliver_all(self, reply: Sequence[Any], queues: list[str]) -> None:
        arrived: deque[Arrival] = deque()
        for i in range(0, len(reply), 3):
            field, number, payload = reply[i : i + 3]
            arrived.append((field.decode(), queues[number - 1], payload))
        if arrived[-1][0]:
            self._newest = number_of(arrived[-1][0])
        try:
            while arrived:
                self._deliver_one(*arrived.popleft())
        finally:
            if rest := [field for field, _, _ in arrived if field]:
                self.give_back(rest, "front")  # what failed is one message's matter: the others are fetched again

    def _deliver_one(self, field: str, queue: str, payload: bytes) -> None:
        self._queue_cycle.rotate(queue)
        if self._closing or queue not in self.connection._callbacks:  # cancelled meanwhile: it must not begin here
            return self.give_back([field], "front")
        try:
            raw = read(payload)
            if self.limits_delays and self.sets_aside and self.was_delayed(field, queue, raw):
                return None
            self._arrived(field, queue, lambda: self.connection._deliver(raw, queue))
        except Unreadable as error:
            self.set_aside(field, queue, payload, error)
        except MISREAD as error:
            if not self.sets_aside or not field:
                raise
            self.refuse(field, queue, raw, error)
        return None

    def _arrived(self, field: str, queue: str, make: Callable[[], Any]) -> Any:
        """What becomes a message meanwhile has this number; a broadcast, which comes another way, has none."""
        self.arriving = (field, queue)
        try:
            return make()
        finally:
            self.arriving = ("", "")

    def _receive_one(self, client: Any) -> Any:
        """A broadcast, which nobody keeps."""
        try:
            return super()._receive_one(client)
        except Unreadable as error:
            logger.error("limits: a broadcast that is no message is dropped: %s", printable(error))
            raise Empty from None

    def sift(self) -> None:
        """Something that was fetched had to be parked: what comes next may have to wait for the same."""
        self._sift_until = monotonic() + SIFTING

    # -- going along with a release: see worker/handoff.py ------------------------------------------------------------

    def taking(self) -> Taking | None:
        """For a release that may hand over the next message."""
        if self._closing or not self.qos.can_consume():
            return None
        queues = self._queue_cycle.consume(len(self.active_queues))
        return Taking(_new_mark(), queues, self._consumed(queues), self._newest) if queues else None

    def take_over(self, taking: Taking, worker: str, delivery: Sequence[Any]) -> None:
        """Delivers what the release has brought along."""
        self._fetched = worker
        self._deliver_all(delivery, taking.queues)

    def lose_sight_of(self, taking: Taking, worker: str) -> None:
        """The release was not answered, or not at the first time, and may have handed something over."""
        self.member.unconfirmed.lose_sight(self.scripts, worker, taking.mark, (), taking.after)

    # -- publishing ----------------------------------------------------------------------------------------------------

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        if queue in getattr(self, "_expires", ()):  # kombu 5.7 and later
            super()._put(queue, message, **kwargs)
            return self.scripts.ring(queue)
        step = self._get_message_priority(message, reverse=False)
        key = f"{self.global_keyprefix}{self._q_for_pri(queue, step)}"
        if self.limits_delays and (delay := delay_of(message, queue)) is not None:
            return self.scripts.delay(delay, queue, key, dump(message))
        stamp = lines.stamp_of(message, queue) if self.limits_lines and HEADER in message["headers"] else ()
        self.scripts.publish(queue, key, dump(message), *stamp)
        return None

    def _size(self, queue: str) -> int:
        size: int = super()._size(queue)
        return size + int(self._create_client().zcard(self._ready(queue)))

    def _ready(self, queue: str) -> str:
        return f"{prefix_of(self.limits_namespace)}ready:{queue}"

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Whatever state the connection is in: what is not acknowledged goes back, what is must not come again."""
        if self.closed:
            return
        self._closing = True
        if self._in_poll and not self._asleep:
            with suppress(Empty, *ERRORS):
                self._brpop_read()
        self._in_poll = None  # nothing can be lost by not waiting for the bell
        self._lose_sight()
        self.acks.fetch_gone()
        self.flush_acks()
        if (member := self.__dict__.get("_member")) is not None and member.unconfirmed:
            member.unconfirmed.try_to_confirm(member.worker)  # before older ones go to the front
        try:
            super().close()
        except ERRORS:  # a queue that was to go with its channel could not be deleted
            self._disconnect_pools()
            self._close_clients()
            virtual.Channel.close(self)


class _Asking:
    """A connection that asks the sentinel whenever it is made. redis-py (since 6) does so when it is told to connect;
    when it has something to send and was disconnected, it goes back to the address it had. There the old primary may be
    again, with other data or none."""

    def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        if not self._sock:
            self.connect()
        super().send_packed_command(command, check_health)  # type: ignore[misc]


class _Managed(_Asking, redis.SentinelChannel.connection_class):  # type: ignore[misc]
    pass


class _ManagedOverTls(_Asking, redis.SentinelChannel.connection_class_ssl):  # type: ignore[misc]
    pass


class SentinelChannel(Channel, redis.SentinelChannel):  # type: ignore[misc]
    """For `limits+sentinel://`."""

    connection_class = _Managed
    connection_class_ssl = _ManagedOverTls
    from_transport_options = (*redis.SentinelChannel.from_transport_options, *OPTIONS)
