"""Channels that fetch atomically, keep what they fetched under the worker's lease, and acknowledge in batches.

Relies on these parts of kombu's Redis channel: its poller calls `_brpop_start` when there is room and `_brpop_read`
when the connection that was used can be read; `_put` and `_size` are one queue's; `_q_for_pri` names a list.

**Waiting.** A fetch that brings nothing is followed by a sleep on `call:<queue>`, which whoever makes something to
fetch rings; and by another fetch after `brpop_timeout` (a second), for what plain producers have put there meanwhile.

**Acknowledging.** In a worker with an event loop the acknowledgements of one turn of the loop go with the next fetch,
or before the loop sleeps. Elsewhere each is sent at once.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty
from time import monotonic
from typing import Any

from kombu.log import get_logger
from kombu.transport import redis, virtual
from redis import exceptions as redis_errors

from celery_limits.store.keys import prefix_of
from celery_limits.wire import HEADER, queue_mark

from . import lines
from .courier import MOST, Courier, explained
from .debts import ERRORS
from .delivery import QUEUE_MARK, Message, QoS
from .membership import member_of
from .payload import dump, read

__all__ = ["QUEUE_MARK", "Channel", "Poller", "SentinelChannel"]

logger = get_logger(__name__)

OPTIONS = ("limits_namespace", "limits_lease", "limits_lines")
_marks = itertools.count(1)
SIFTING = 2.0
"""Seconds for which what is fetched is sifted after something had to be parked."""


Arrival = tuple[str, str, bytes]
"""Field, queue and text of a message that was fetched."""


def _new_mark() -> str:
    """Names a channel among all of this process."""
    return str(next(_marks))


class Poller(redis.MultiChannelPoller):  # type: ignore[misc]
    """kombu's, but no channel goes to sleep with something to acknowledge."""

    def on_poll_start(self) -> None:
        super().on_poll_start()
        for channel in self._channels:
            channel.before_poll()


class Channel(redis.Channel):  # type: ignore[misc]
    """For `limits+redis://`, `limits+rediss://` and `limits+embedded://`."""

    from_transport_options = (*redis.Channel.from_transport_options, *OPTIONS)

    QoS = QoS
    Message = Message
    limits_namespace = "celery"
    limits_lease = 30.0
    limits_lines = False
    """Whether the limits of those who publish here are kept in this very Redis."""

    supports_batch_publish = False

    still_running: Callable[[], Iterable[str]] = staticmethod(frozenset)
    """Deliveries that stay this process's although the channel that brought them is closed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.arriving = ("", "")
        self._sift_until = 0.0
        self._acks: deque[str] = deque()
        self._acking: list[str] = []
        self._known_acked: set[str] = set()
        self._bare: set[str] = set()
        self._hungry, self._asleep, self._turn = True, False, False
        self._asked: list[str] = []
        self._mark = _new_mark()
        self._fetching = ""  # in this worker's name a fetch was sent that is not answered yet
        self._fetched = ""  # in this worker's name something was fetched
        self._thread = 0
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

    # -- consuming -----------------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        if no_ack or not self.ack_emulation:
            self._bare.add(queue)
        else:
            self._bare.discard(queue)
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        bare = no_ack or not self.ack_emulation
        worker, mark = "" if bare else self.member.worker, _new_mark()
        try:
            reply = self.courier.fetch_now(worker, mark, 1, self._lists([queue], {queue} if bare else set()))
        except ERRORS:
            if worker:
                self.member.debts.lose_sight(self.courier, worker, mark, ())
            raise
        if reply == b"lost" or not reply:
            return None
        message = self._arrived(reply[0].decode(), queue, lambda: self.Message(read(reply[2]), channel=self))
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        reply = self.courier.fetch_now("", "", 1, self._lists([queue], {queue}))
        if not reply:
            raise Empty
        return read(reply[2])

    def _lists(self, queues: list[str], bare: set[str]) -> list[Any]:
        """What fetch.lua wants to know of the queues."""
        prefix = self.global_keyprefix
        named = [part for queue in queues for part in (queue, "1" if queue in bare else "", queue_mark(queue))]
        keys = [f"{prefix}{self._q_for_pri(queue, step)}" for step in self.priority_steps for queue in queues]
        return [str(len(queues)), *named, str(len(self.priority_steps)), *map(str, self.priority_steps), *keys]

    def _room(self) -> int:
        if "can_consume" in self.qos.__dict__:  # somebody counts differently (worker_disable_prefetch), one by one
            return 1
        if not self.connection.has_loop:  # whoever drains events by itself gets one at a time, as from kombu's
            return 1
        room = self.qos.can_consume_max_estimate()
        return MOST if room is None else max(1, min(room, MOST))

    def _brpop_start(self, timeout: float | None = None) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        connection = self.client.connection
        self._lose_sight()
        self._asleep = not self._hungry
        if self._asleep:
            command = self.courier.wait_command(queues, timeout or self.brpop_timeout or 1)
        else:
            command = self._fetch_command(queues)
        self._thread = threading.get_ident()
        self._in_poll = connection
        self._brpop_sent_at = monotonic()
        connection.send_packed_command([command], check_health=False)

    def _fetch_command(self, queues: list[str]) -> bytes:
        self._asked = queues
        worker = ""
        if not self._bare.issuperset(queues):
            member = self.member
            worker = member.worker
            if self._fetched and worker != self._fetched:
                self._cut_off()
            if member.debts:
                member.debts.pay(worker)
            self._fetching = worker
        while self._acks and len(self._acking) < MOST:
            self._acking.append(self._acks.popleft())
        self._turn = not self._turn
        flags = ("r" if self._turn else "") + ("c" if self.queue_order_strategy == "round_robin" else "")
        if self.limits_lines and monotonic() < self._sift_until:
            flags += "s"
        lists = self._lists(queues, self._bare)
        return self.courier.fetch_command(worker, self._mark, self._room(), flags, self._acking, lists)

    def _lose_sight(self) -> None:
        """A fetch that was sent and will not be answered may have brought something."""
        if worker := self._fetching:
            known = {*self.qos._delivered, *self._acks, *self._acking}
            self.member.debts.lose_sight(self.courier, worker, self._mark, known)
            self._fetching, self._mark = "", _new_mark()

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
        self._acking.clear()
        if reply == b"lost" and self._fetched:
            self._cut_off()
        if not reply or reply == b"lost":
            self._hungry = False
            raise Empty
        self._fetched = worker or self._fetched
        self._deliver_all(reply)
        return True

    def _reply(self) -> Any:
        connection = self.client.connection
        try:
            return connection.read_response(disable_decoding=True)
        except redis_errors.ResponseError as error:  # so nothing was fetched
            self._fetching = ""
            if not isinstance(error, redis_errors.NoScriptError):
                raise explained(error, "fetch") from error
            self.courier.unknown()
            raise Empty from None
        except self.connection_errors:
            connection.disconnect()  # the next turn reconnects
            raise

    def _flush_reauth(self) -> None:
        """Since kombu 5.6: the connection is idle now, and may be told of new credentials."""
        if flush := getattr(self, "_flush_brpop_reauth", None):
            flush()

    def _deliver_all(self, reply: list[Any]) -> None:
        arrived: deque[Arrival] = deque()
        for i in range(0, len(reply), 3):
            field, number, payload = reply[i : i + 3]
            arrived.append((field.decode(), self._asked[number - 1], payload))
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
        except ValueError:
            logger.critical("a message in %s that is not JSON is dropped: %r", queue, payload[:4096])
            return self.acknowledge(field)
        self._arrived(field, queue, lambda: self.connection._deliver(raw, queue))
        return None

    def _arrived(self, field: str, queue: str, make: Callable[[], Any]) -> Any:
        """What becomes a message meanwhile has this number; a broadcast, which comes another way, has none."""
        self.arriving = (field, queue)
        try:
            return make()
        finally:
            self.arriving = ("", "")

    def sift(self) -> None:
        """Something that was fetched had to be parked: what comes next may have to wait for the same."""
        self._sift_until = monotonic() + SIFTING

    # -- acknowledging ----------------------------------------------------------------------------------------------

    def was_acknowledged(self, field: str) -> None:
        """By the script that parked it. The acknowledgement that kombu asks for has nothing left to do."""
        self._known_acked.add(field)

    def acknowledge(self, field: str) -> None:
        if "." not in field or field in self._known_acked:  # a broadcast has no number
            self._known_acked.discard(field)
            return
        self._acks.append(field)
        looped = getattr(self.connection, "has_loop", False) and self._consumers
        if not looped or (self._asleep and threading.get_ident() != self._thread):
            self.flush_acks()

    def _basic_cancel(self, consumer_tag: str) -> None:
        """After the last, no fetch takes acknowledgements along, and a worker leaves the store before it closes us."""
        super()._basic_cancel(consumer_tag)
        if not self._consumers:
            self._acks.extend(self._acking)
            self.flush_acks()

    def flush_acks(self) -> None:
        fields = []
        with suppress(IndexError):
            while True:
                fields.append(self._acks.popleft())
        if fields:
            member = self.member
            try:
                self.courier.acknowledge(member.worker, fields)
            except BaseException as error:
                if not isinstance(error, ERRORS) or (self._consumers and not self._closing):
                    self._acks.extend(fields)
                    raise
                member.debts.acknowledge(self.courier, member.worker, fields)

    def before_poll(self) -> None:
        if self._acks and (self._asleep or not self._in_poll):
            self.flush_acks()

    def give_back(self, fields: list[str], where: str) -> None:
        """Back to the queues they came from, now or as soon as Redis answers."""
        fields = [field for field in fields if "." in field]
        if not fields:
            return
        member = self.member
        try:
            self.courier.requeue(member.worker, fields, where)
        except ERRORS:
            member.debts.give_back(self.courier, member.worker, fields, where)

    # -- publishing ----------------------------------------------------------------------------------------------------

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        if queue in self._expires:
            super()._put(queue, message, **kwargs)
            return self.courier.ring(queue)
        step = self._get_message_priority(message, reverse=False)
        key = f"{self.global_keyprefix}{self._q_for_pri(queue, step)}"
        stamp = lines.stamp_of(message, queue) if self.limits_lines and HEADER in message["headers"] else ()
        self.courier.publish(queue, key, dump(message), *stamp)
        return None

    def _size(self, queue: str) -> int:
        size: int = super()._size(queue)
        return size + int(self._create_client().llen(self._ready(queue)))

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
        self._acks.extend(self._acking)
        self.flush_acks()
        if (member := self.__dict__.get("_member")) is not None and member.debts:
            member.debts.try_to_pay(member.worker)  # before older ones go to the front
        try:
            super().close()
        except ERRORS:  # a queue that was to go with its channel could not be deleted
            self._disconnect_pools()
            self._close_clients()
            virtual.Channel.close(self)


class SentinelChannel(Channel, redis.SentinelChannel):  # type: ignore[misc]
    """For `limits+sentinel://`."""

    from_transport_options = (*redis.SentinelChannel.from_transport_options, *OPTIONS)
