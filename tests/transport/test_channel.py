"""Ours and kombu's own on the same queues: the same order, the same envelope, and nothing of one taken by the other."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.transport import redis

from celery_limits.store import Policy, Store
from celery_limits.transport import member as membership
from tests.redis_server import RedisServer
from tests.transport.conftest import Connect
from tests.waiting import wait_until


def put(connection: Any, queue: str, *bodies: Any, **options: Any) -> None:
    with connection.channel() as channel:
        producer = Producer(channel, routing_key=queue, serializer="json")
        for body in bodies:
            producer.publish(body, **options)


def take(connection: Any, queue: str | list[str], count: int, **options: Any) -> list[Any]:
    """So many messages, not acknowledged; the channel stays open."""
    names = [queue] if isinstance(queue, str) else queue
    got: list[Any] = []
    channel = connection.channel()
    if "prefetch" in options:
        channel.basic_qos(0, options.pop("prefetch"), False)
    queues = [Queue(name, Exchange(""), routing_key=name) for name in names]
    consumer = Consumer(channel, queues, on_message=got.append, auto_declare=False, **options)
    consumer.consume()
    wait_until(lambda: _drain(connection, lambda: len(got) >= count), f"{count} messages, got {len(got)}")
    return got


def _drain(connection: Any, enough: Any) -> bool:
    if not enough():
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
    return bool(enough())


def bodies(messages: list[Any]) -> list[Any]:
    return [message.payload for message in messages]


@pytest.mark.parametrize(("by", "to"), [("limits+redis", "redis"), ("redis", "limits+redis"), ("limits+redis",) * 2])
def test_side_by_side_with_kombu(connect: Connect, queue: str, by: str, to: str) -> None:
    put(connect(by), queue, *range(20))
    got = take(connect(to), queue, 20)
    assert bodies(got) == list(range(20))
    for message in got:
        message.ack()


def test_the_envelope_is_kombus(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    with redis_server.client() as client:
        texts = []
        for scheme in ("redis", "limits+redis"):
            put(connect(scheme), queue, {"a": [1, None]}, headers={"x": "ü"}, priority=4)
            texts.append(json.loads(client.rpop(f"{queue}\x06\x163")))
    for text in texts:
        text["properties"].pop("delivery_tag")
    assert texts[0] == texts[1]


@pytest.mark.parametrize("prefetch", [1, 3, 0])
def test_by_priority_then_around_the_queues(connect: Connect, queue: str, prefetch: int) -> None:
    names = [f"{queue}.{i}" for i in "ab"]

    def order(scheme: str) -> list[Any]:
        plain = connect("redis")
        for name in names:
            for priority in (9, 0, 5, 0):
                put(plain, name, [name, priority], priority=priority)
        connection, got = connect(scheme), []
        with connection.channel() as channel:
            channel.basic_qos(0, prefetch, False)

            def on_message(message: Any) -> None:
                got.append(message.payload)
                message.ack()

            queues = [Queue(name, Exchange(""), routing_key=name) for name in names]
            with Consumer(channel, queues, on_message=on_message, auto_declare=False):
                wait_until(lambda: _drain(connection, lambda: len(got) == 8), "all come")
        return got

    theirs = order("redis")
    assert order("limits+redis") == theirs
    assert [priority for _, priority in theirs] == sorted(priority for _, priority in theirs)


def test_prefetch_is_kept(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    put(connect(), queue, *range(10))
    ours = connect()
    got = take(ours, queue, 3, prefetch=3)
    with redis_server.client() as client:
        assert client.llen(queue) == 7
    got[0].ack()
    wait_until(lambda: _drain(ours, lambda: len(got) == 4), "room for one more")
    assert bodies(got) == [0, 1, 2, 3]


def test_a_closed_channel_gives_back_in_order_and_says_so(connect: Connect, queue: str) -> None:
    put(connect(), queue, *range(5))
    ours = connect()
    take(ours, queue, 3, prefetch=3)
    ours.close()
    got = take(connect("redis"), queue, 5)
    assert bodies(got) == list(range(5))
    assert [bool(message.headers.get("redelivered")) for message in got] == [True] * 3 + [False] * 2
    assert [bool(message.delivery_info.get("redelivered")) for message in got] == [True] * 3 + [False] * 2


def test_what_a_closing_channel_still_fetched_does_not_begin_there(connect: Connect, queue: str) -> None:
    """The fetch is under way when it is closed: what that brings goes back, and to nobody's callback."""
    put(connect(), queue, 1, 2)
    got: list[Any] = []
    ours = connect()
    channel = ours.channel()
    queues = [Queue(queue, Exchange(""), routing_key=queue)]
    Consumer(channel, queues, on_message=got.append, auto_declare=False).consume()
    ours.transport.cycle.on_poll_start()
    channel.close()
    assert got == []
    assert take_all(connect(), queue) == [1, 2]


def test_a_thread_that_publishes_on_a_channel_which_is_closed_is_told_so(connect: Connect, queue: str) -> None:
    """By an error that kombu knows: it publishes again on another channel."""
    ours = connect()
    channel = ours.channel()
    message = channel.prepare_message("1", content_type="text/plain", content_encoding="utf-8", properties={})
    message["properties"]["delivery_info"] = {"exchange": "", "routing_key": queue}
    message["properties"]["delivery_tag"] = "1"
    channel.close()
    with pytest.raises(ours.connection_errors):
        channel._put(queue, message)


def test_rejected_and_requeued_comes_again_behind_the_others(connect: Connect, queue: str) -> None:
    put(connect(), queue, 1, 2)
    ours = connect()
    got = take(ours, queue, 1, prefetch=1)
    got[0].reject(requeue=True)
    wait_until(lambda: _drain(ours, lambda: len(got) == 2), "the other one")
    got[1].ack()
    wait_until(lambda: _drain(ours, lambda: len(got) == 3), "again")
    assert bodies(got) == [1, 2, 1]
    got[2].reject()
    assert take_all(connect(), queue) == []


def take_all(connection: Any, queue: str) -> list[Any]:
    """What is in the queue now, read without consuming."""
    with connection.channel() as channel:
        found = []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message.payload)
        return found


def test_what_ours_hold_a_stock_consumer_never_touches(connect: Connect, queue: str) -> None:
    put(connect(), queue, 1)
    held = take(connect(), queue, 1)
    stock = connect("redis", visibility_timeout=0)
    with stock.channel() as channel:
        channel.qos.restore_visible(num=100, interval=1)
        assert channel.basic_get(queue) is None
    held[0].ack()


def test_what_a_stock_consumer_left_is_restored_by_the_stock_rule(connect: Connect, queue: str) -> None:
    put(connect("redis"), queue, 1)
    stock = connect("redis")
    take(stock, queue, 1)
    stock.default_channel.qos.restore_at_shutdown = False
    for channel in list(stock.transport.channels):
        channel.do_restore = False
    ours = connect(visibility_timeout=0)
    with ours.channel() as channel:
        channel.qos.restore_visible(num=100, interval=1)
        message = channel.basic_get(queue)
        assert message.payload == 1
        assert message.headers["redelivered"]
        message.ack()


def test_a_worker_whose_lease_lapsed_gives_back(connect: Connect, queue: str) -> None:
    """What it had fetched comes to another within the lease and two seconds, with no visibility timeout."""
    put(connect(), queue, 1, 2)
    ours = connect(limits_lease=1.0)
    take(ours, queue, 2)
    [dead] = membership._members.values()
    heartbeat = dead.lease._heartbeat
    assert heartbeat is not None
    heartbeat.stop()
    dead.lease.stopped.set()
    dead.lease._thread.join()
    membership._members.clear()
    got = take(connect(limits_lease=1.0), queue, 2)
    assert bodies(got) == [1, 2]
    assert got[0].headers["redelivered"]
    for message in got:
        message.ack()


def test_a_live_worker_keeps_what_it_fetched(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    put(connect(), queue, 1)
    ours, other = connect(limits_lease=0.3), connect(limits_lease=0.3)
    held = take(ours, queue, 1)
    [member] = membership._members.values()
    until = member.lease._good_until
    wait_until(lambda: member.lease._good_until > until + 1.0, "several leases pass")
    assert take_all(other, queue) == []
    held[0].ack()
    with redis_server.client() as client:
        assert not client.keys("*unacked*")


def test_one_without_a_configuration_leaves_that_of_the_workers(
    connect: Connect, redis_server: RedisServer, queue: str
) -> None:
    with redis_server.client() as client:
        worker = Store(client, policy=Policy(grant_timeout=7.0))
        worker.beat("w")
        put(connect(), queue, 1)
        take(connect(), queue, 1)[0].ack()
        assert client.hget(f"{worker.prefix}config", "grant") == b"7000000"


def test_without_acknowledgement_nothing_is_recorded(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    put(connect(), queue, 1, 2)
    got = take(connect(), queue, 2, no_ack=True)
    assert bodies(got) == [1, 2]
    assert not membership._members
    with redis_server.client() as client:
        assert not client.keys("*unacked*")


def test_get_one(connect: Connect, queue: str) -> None:
    put(connect(), queue, 1)
    with connect().channel() as channel:
        message = channel.basic_get(queue)
        assert message.payload == 1
        message.ack()
        assert channel.basic_get(queue) is None


def test_fanout(connect: Connect, queue: str) -> None:
    exchange = Exchange(f"{queue}.x", type="fanout")
    sender, receiver = connect(), connect("redis")
    got: list[Any] = []
    with receiver.channel() as channel, Consumer(channel, Queue(queue, exchange), on_message=got.append, no_ack=True):
        _drain(receiver, lambda: False)
        with sender.channel() as other:
            Producer(other, exchange).publish(1, declare=[exchange])
        wait_until(lambda: _drain(receiver, lambda: bool(got)), "the broadcast")
    assert bodies(got) == [1]


def test_global_keyprefix(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    ours, plain = connect(global_keyprefix="app."), connect("redis", global_keyprefix="app.")
    put(plain, queue, 1)
    put(ours, queue, 2)
    got = take(ours, queue, 2)
    assert bodies(got) == [1, 2]
    with redis_server.client() as client:
        assert all(name.startswith(b"app.") for name in client.keys("*"))
    for message in got:
        message.ack()


def test_size_purge_and_delete(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    put(connect(), queue, 1, 2, priority=0)
    put(connect(), queue, 3, priority=9)
    with connect().channel() as channel:
        assert channel.queue_declare(queue, passive=True).message_count == 3
        assert channel.queue_purge(queue) == 3
        assert channel.queue_declare(queue).message_count == 0


def test_a_message_that_is_no_json_does_not_stop_the_others(
    connect: Connect, redis_server: RedisServer, queue: str
) -> None:
    with redis_server.client() as client:
        client.lpush(queue, "{not json")
    put(connect(), queue, 1)
    got = take(connect(), queue, 1)
    assert bodies(got) == [1]
    got[0].ack()


def test_a_callback_that_fails_costs_the_others_nothing(connect: Connect, queue: str) -> None:
    put(connect(), queue, *range(4))
    got: list[Any] = []
    ours = connect()
    channel = ours.channel()

    def on_message(message: Any) -> None:
        got.append(message)
        if len(got) == 1:
            raise RuntimeError("as told")

    with Consumer(channel, Queue(queue, Exchange(""), routing_key=queue), on_message=on_message, auto_declare=False):
        with pytest.raises(RuntimeError, match="as told"):
            wait_until(lambda: _drain(ours, lambda: bool(got)), "the first")
        wait_until(lambda: _drain(ours, lambda: len(got) == 4), "the others")
    assert bodies(got) == [0, 1, 2, 3]


def test_own_producers_are_heard_at_once_and_plain_ones_within_a_second(
    connect: Connect, redis_server: RedisServer, queue: str
) -> None:
    """An idle consumer sleeps on its bell: with a timeout of a minute only the bell can wake it in time."""
    ours = connect()
    ours.transport.brpop_timeout = 60
    take_nothing = take(ours, queue, 0)
    _drain(ours, lambda: False)  # a fetch, and then to sleep
    put(connect(), queue, 1)
    wait_until(lambda: _drain(ours, lambda: bool(take_nothing)), "woken by the bell")


@pytest.mark.skipif("x-expires" not in (redis.__doc__ or ""), reason="queues expire since kombu 5.7")
def test_queue_with_a_time_to_live(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    ours = connect()
    with ours.channel() as channel:
        channel.queue_declare(queue, arguments={"x-expires": 60_000})
        Producer(channel, routing_key=queue).publish(1)
        with redis_server.client() as client:
            assert 0 < client.pttl(queue) <= 60_000
        assert channel.basic_get(queue, no_ack=True).payload == 1


def test_embedded(tmp_path: Any, queue: str) -> None:
    with Connection(f"limits+embedded://{tmp_path}") as connection:
        put(connection, queue, 1)
        assert take_all(connection, queue) == [1]
