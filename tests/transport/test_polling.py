"""What a channel does before the event loop sleeps: all that must be done, and nothing that can wait for a busy one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Consumer, Exchange, Queue
from kombu.asynchronous.hub import Hub

from celery_limits.transport.polling import MOST_WAITS
from tests.redis_server import RedisServer
from tests.transport.conftest import Connect
from tests.transport.test_channel import put
from tests.waiting import wait_until

PREFETCH = 4


class Scene:
    """A consumer in an event loop, with all that it may prefetch in hand and one message more in its queue."""

    def __init__(self, connection: Any, queue: str) -> None:
        self.hub, self.got = Hub(), list[Any]()
        put(connection, queue, *range(PREFETCH + 1))
        channel = connection.channel()
        channel.basic_qos(0, PREFETCH, False)
        queues = [Queue(queue, Exchange(""), routing_key=queue)]
        Consumer(channel, queues, on_message=self.got.append, auto_declare=False).consume()
        connection.register_with_event_loop(self.hub)
        self.channel = channel
        self._reads, self._writes = os.pipe()
        wait_until(lambda: self.turn() and len(self.got) == PREFETCH, "all that may be prefetched")

    def turn(self) -> bool:
        """Of the loop, which always has something to do besides once it is `busy`."""
        self.hub.call_later(0.05, lambda: None)  # so that it does not sleep for long
        self.hub.run_once()
        return True

    def be_busy(self) -> None:
        os.write(self._writes, b"x")
        self.hub.add_reader(self._reads, lambda: None)

    def be_idle(self) -> None:
        self.hub.remove_reader(self._reads)

    def close(self) -> None:
        self.hub.close()
        for end in (self._reads, self._writes):
            os.close(end)


@pytest.fixture
def scene(connect: Connect, queue: str) -> Iterator[Scene]:
    scene = Scene(connect(), queue)
    yield scene
    scene.close()


def unacked(server: RedisServer) -> int:
    with server.client() as client:
        return sum(int(client.zcard(name)) for name in client.keys("*unacked:*"))


def test_an_idle_loop_acknowledges_before_it_sleeps(scene: Scene, redis_server: RedisServer) -> None:
    scene.got[0].ack()
    scene.turn()
    wait_until(lambda: scene.turn() and len(scene.got) == PREFETCH + 1, "the room that it makes is used")
    assert unacked(redis_server) == PREFETCH


def test_a_busy_loop_lets_it_wait_but_not_for_long(scene: Scene, redis_server: RedisServer) -> None:
    scene.be_busy()
    scene.turn()
    scene.got[0].ack()
    for _ in range(MOST_WAITS):
        assert len(scene.got) == PREFETCH
        assert unacked(redis_server) == PREFETCH
        scene.turn()
    wait_until(lambda: scene.turn() and len(scene.got) == PREFETCH + 1, "though the loop is still busy")
    assert unacked(redis_server) == PREFETCH


def test_what_waits_is_done_when_the_loop_has_time(scene: Scene, redis_server: RedisServer) -> None:
    scene.be_busy()
    scene.turn()
    scene.got[0].ack()
    scene.turn()
    scene.be_idle()
    scene.turn()
    wait_until(lambda: scene.turn() and len(scene.got) == PREFETCH + 1, "the room that it makes is used")


def test_half_of_the_room_is_fetched_for_at_once(scene: Scene, redis_server: RedisServer) -> None:
    scene.be_busy()
    scene.turn()
    for message in scene.got[: PREFETCH // 2]:
        message.ack()
    scene.turn()
    assert scene.channel.is_settled or len(scene.got) > PREFETCH, "it is under way, or has come"
    wait_until(lambda: scene.turn() and len(scene.got) == PREFETCH + 1, "the room is used")
    assert unacked(redis_server) == PREFETCH // 2 + 1


def test_a_channel_is_listened_to_again_when_there_is_room(scene: Scene, connect: Connect, queue: str) -> None:
    """It waits for Redis when its prefetch count is lowered, so what Redis answers is not read; then that is raised."""
    for message in scene.got[1:]:
        message.ack()
    wait_until(lambda: scene.turn() and scene.channel._asleep and bool(scene.channel._in_poll), "it sleeps")
    rest = [message for message in scene.got if not message.acknowledged]
    scene.channel.basic_qos(0, len(rest), False)
    put(connect(), queue, "one more")
    for _ in range(3):
        scene.turn()
    scene.channel.basic_qos(0, PREFETCH, False)
    wait_until(lambda: scene.turn() and scene.got[-1].payload == "one more", "it is heard")


def test_a_channel_that_waits_for_redis_is_left_alone(scene: Scene) -> None:
    for message in scene.got:
        message.ack()
    wait_until(lambda: scene.turn() and scene.channel.is_settled and scene.channel._asleep, "it sleeps")
    added = list[Any]()
    scene.hub.poller.register, register = lambda *args: added.append(args), scene.hub.poller.register
    scene.turn()
    scene.hub.poller.register = register
    assert added == []
