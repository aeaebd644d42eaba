"""A queue is declared once for each connection, and again by the next, however it is published to."""

from __future__ import annotations

from typing import Any

from kombu import Producer, Queue
from kombu.abstract import MaybeChannelBound

from tests.redis_server import RedisServer
from tests.transport.conftest import Connect


def bindings(redis_server: RedisServer, name: str) -> int:
    with redis_server.client() as client:
        return int(client.scard(f"_kombu.binding.{name}"))


def publish(connection: Any, queue: Queue, times: int = 1) -> None:
    with connection.channel() as channel:
        for _ in range(times):
            Producer(channel, exchange=queue.exchange, routing_key=queue.name).publish(
                "it", declare=[queue], retry=True
            )


def test_it_is_bound_the_first_time_and_by_every_connection(
    connect: Connect, redis_server: RedisServer, queue: str
) -> None:
    declared = Queue(queue, exchange=queue, routing_key=queue)
    publish(connect("limits+redis"), declared, times=3)
    assert bindings(redis_server, queue) == 1
    with redis_server.client() as client:
        assert client.llen(queue) == 3
        client.delete(f"_kombu.binding.{queue}")
    publish(connect("limits+redis"), declared)
    assert bindings(redis_server, queue) == 1


def test_nothing_is_copied_for_what_is_declared_already(connect: Connect, queue: str) -> None:
    connection = connect("limits+redis")
    copies = []

    class Counted(Queue):  # type: ignore[misc]
        def bind(self, channel: Any) -> Any:
            copies.append(channel)
            return MaybeChannelBound.bind(self, channel)

    counted = Counted(queue, routing_key=queue)
    publish(connection, counted, times=5)
    assert len(copies) == 1
