"""The connection breaks between any two steps of a delivery: nothing is lost, nothing waits for the process to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from redis import exceptions as redis_errors

from celery_limits.store.scripts import load
from celery_limits.transport import member as membership
from tests.redis_server import RedisServer
from tests.store.cutting_proxy import CuttingProxy, cutting_proxy
from tests.transport.conftest import Connect
from tests.transport.test_channel import bodies, put
from tests.waiting import wait_until

BROKEN = (redis_errors.RedisError, OSError)


@pytest.fixture
def wire(redis_server: RedisServer) -> Iterator[CuttingProxy]:
    with cutting_proxy(redis_server.socket) as proxy:
        yield proxy


class Reader:
    """A consumer behind the proxy that goes on after an error, on the same channel or on a new connection."""

    def __init__(self, wire: CuttingProxy, queue: str, **options: Any) -> None:
        self._url, self._options, self._queue = f"limits+redis+socket://{wire.path}", options, queue
        self.got: list[Any] = []
        self.errors = 0
        self.open()

    def open(self) -> None:
        self.connection = Connection(self._url, transport_options=self._options)
        self.channel = self.connection.channel()
        queue = Queue(self._queue, Exchange(""), routing_key=self._queue)
        self.consumer = Consumer(self.channel, queue, on_message=self.got.append, auto_declare=False)
        self.consumer.consume()

    def acks_with_the_next_fetch(self) -> None:
        """As in a worker with an event loop."""
        self.connection.transport.has_loop = True

    def turn(self) -> None:
        try:
            self.connection.drain_events(timeout=0.2)
        except TimeoutError:
            pass
        except BROKEN:
            self.errors += 1

    def reads(self, count: int) -> list[Any]:
        def enough() -> bool:
            if len(self.got) < count:
                self.turn()
            return len(self.got) >= count

        wait_until(enough, f"{count} messages")
        return self.got

    def fails(self) -> None:
        def failed() -> bool:
            self.turn()
            return self.errors > 0

        wait_until(failed, "the connection breaks")


@pytest.fixture
def reader(connect: Connect, wire: CuttingProxy, queue: str) -> Iterator[Reader]:
    reader = Reader(wire, queue)
    yield reader
    with suppress(*BROKEN):
        reader.connection.close()


def unacked(server: RedisServer) -> list[Any]:
    with server.client() as client:
        return [field for key in client.keys("*unacked:*") for field in client.zrange(key, 0, -1)]


@pytest.mark.parametrize("on", ["the same channel", "a new connection"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fetch_whose_answer_is_lost(
    connect: Connect, redis_server: RedisServer, wire: CuttingProxy, reader: Reader, queue: str, when: str, on: str
) -> None:
    """The script has run, and the process does not know what it was given: it comes again, in order, at once."""
    put(connect(), queue, 0)
    reader.reads(1)
    wire.about, wire.plan = load("fetch").sha.encode(), [when]
    put(connect(), queue, 1, 2, 3)
    reader.fails()
    if on == "a new connection":
        reader.connection.close()
        reader.open()
    expected = [0, 1, 2, 3] if on == "the same channel" else [0, 0, 1, 2, 3]
    assert bodies(reader.reads(len(expected))) == expected
    for message in reader.got[-4:]:
        message.ack()
    again = [bool(message.headers.get("redelivered")) for message in reader.got[-3:]]
    assert again == [when == "after", False, False]  # a fetch without an event loop brings one
    wait_until(lambda: not unacked(redis_server), "all is acknowledged")


def test_a_get_whose_answer_is_lost(
    connect: Connect, redis_server: RedisServer, wire: CuttingProxy, reader: Reader, queue: str
) -> None:
    put(connect(), queue, 1)
    with reader.connection.channel() as channel:
        assert channel.basic_get("other") is None
        wire.about, wire.plan = load("fetch").sha.encode(), ["after"]
        with pytest.raises(BROKEN):
            channel.basic_get(queue)
    assert bodies(reader.reads(1)) == [1]
    reader.got[0].ack()
    wait_until(lambda: not unacked(redis_server), "all is acknowledged")


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_acknowledgement_that_went_with_a_lost_fetch(
    connect: Connect, redis_server: RedisServer, wire: CuttingProxy, reader: Reader, queue: str, when: str
) -> None:
    put(connect(), queue, 0)
    reader.acks_with_the_next_fetch()
    reader.reads(1)
    wire.about, wire.plan = load("fetch").sha.encode(), [when]
    reader.got[0].ack()
    reader.fails()
    reader.connection.close()
    wait_until(lambda: not unacked(redis_server), "it is acknowledged")
    with connect("redis").channel() as channel:
        assert channel.basic_get(queue) is None


def test_redis_is_away_when_the_channel_closes(
    connect: Connect, redis_server: RedisServer, wire: CuttingProxy, reader: Reader, queue: str
) -> None:
    """What was acknowledged does not come again, the others do; though no channel is opened to pay for it."""
    put(connect(), queue, *range(4))
    reader.reads(4)
    reader.acks_with_the_next_fetch()
    wire.shut()
    reader.got[1].ack()
    reader.connection.close()
    wire.reopen()
    wait_until(lambda: not unacked(redis_server), "all is given back")
    with connect("redis").channel() as channel:
        found = [channel.basic_get(queue, no_ack=True) for _ in range(4)]
    assert [message and message.payload for message in found] == [0, 2, 3, None]


def test_what_still_runs_is_acknowledged_on_its_closed_channel(
    connect: Connect, redis_server: RedisServer, wire: CuttingProxy, reader: Reader, queue: str
) -> None:
    put(connect(), queue, 0, 1)
    reader.reads(2)
    running = reader.got[0]
    reader.channel.still_running = lambda: {running.delivery_tag}
    wire.cut_all()
    reader.connection.close()
    wait_until(lambda: len(unacked(redis_server)) == 1, "only what runs is kept")
    running.ack()
    wait_until(lambda: not unacked(redis_server), "it is acknowledged")
    with connect("redis").channel() as channel:
        assert channel.basic_get(queue, no_ack=True).payload == 1
        assert channel.basic_get(queue) is None


@pytest.mark.parametrize("then", ["it goes on", "it leaves"])
def test_redis_is_away_when_what_still_ran_is_acknowledged(
    connect: Connect, redis_server: RedisServer, wire: CuttingProxy, reader: Reader, queue: str, then: str
) -> None:
    """It is told when Redis is back, whether its consumer goes on or is about to leave; and does not come again."""
    put(connect(), queue, 0)
    [running] = reader.reads(1)
    [member] = membership._members.values()
    reader.channel.still_running = lambda: {running.delivery_tag}
    wire.shut()
    reader.connection.close()
    running.ack()
    wire.reopen()
    if then == "it leaves":
        member.lease.stop()
    wait_until(lambda: not unacked(redis_server), "it is acknowledged")
    with connect("redis").channel() as channel:
        assert channel.basic_get(queue) is None


def test_a_broadcast_is_not_taken_for_the_last_message(
    connect: Connect, redis_server: RedisServer, reader: Reader, queue: str
) -> None:
    """It is acknowledged by its own number: on the same channel a task may still run."""
    exchange = Exchange(f"{queue}.x", type="fanout")
    put(connect(), queue, "task")
    reader.reads(1)
    with Consumer(reader.channel, Queue(f"{queue}.all", exchange), on_message=reader.got.append):
        reader.turn()
        with connect().channel() as channel:
            Producer(channel, exchange).publish("to all", declare=[exchange])
        task, broadcast = reader.reads(2)
    assert broadcast.payload == "to all"
    broadcast.ack()
    assert len(unacked(redis_server)) == 1
    task.ack()
    wait_until(lambda: not unacked(redis_server), "all is acknowledged")


@pytest.mark.long
def test_who_was_taken_for_dead_starts_over(
    connect: Connect, redis_server: RedisServer, reader: Reader, queue: str
) -> None:
    """Others have what it had fetched, so whoever consumes is told as if the connection had been lost."""
    put(connect(), queue, 1)
    reader.reads(1)
    [member] = membership._members.values()
    assert member.lease._store.leave(member.worker).more == 0
    reader.fails()
    assert bodies(reader.reads(2)) == [1, 1]
    reader.got[0].ack()
    assert len(unacked(redis_server)) == 1
    reader.got[1].ack()
    wait_until(lambda: not unacked(redis_server), "all is acknowledged")


def test_a_key_that_is_no_list_costs_the_other_queues_nothing(
    connect: Connect, redis_server: RedisServer, queue: str
) -> None:
    with redis_server.client() as client:
        client.set(f"{queue}.bad", "no list")
    put(connect(), queue, 1, 2)
    got: list[Any] = []
    connection = connect()
    queues = [Queue(name, Exchange(""), routing_key=name) for name in (queue, f"{queue}.bad")]
    with Consumer(connection.channel(), queues, on_message=got.append, auto_declare=False):

        def enough() -> bool:
            with suppress(*BROKEN):
                connection.drain_events(timeout=0.2)
            return len(got) == 2

        wait_until(enough, "both messages")
    assert bodies(got) == [1, 2]
