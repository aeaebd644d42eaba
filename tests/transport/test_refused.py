"""What is in a queue and is no message: it is set aside whole, whoever reads it, and the next one comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Queue

from celery_limits.transport.refused import MOST_COUNTED, TRIES, _Counts, name_of
from tests.redis_server import RedisServer
from tests.transport.conftest import Connect
from tests.transport.test_channel import bodies, put, take
from tests.waiting import wait_until

WHOLE = {
    "body": "e30=",
    "content-type": "application/json",
    "content-encoding": "utf-8",
    "headers": {},
    "properties": {"delivery_tag": "a", "delivery_info": {}, "body_encoding": "base64"},
}
NO_MESSAGES = {
    "not-json": b"{not json",
    "not-utf-8": b"\xff\xfe",
    "nested": b"[" * 100_000,
    "typed": b'{"__type__": "datetime", "__value__": 5}',
    "number": b"5",
    "null": b"null",
    "list": b"[1]",
    "empty": b"{}",
    "without-tag": json.dumps({**WHOLE, "properties": {}}).encode(),
    "properties": json.dumps({**WHOLE, "properties": 5}).encode(),
    "delivery-info": json.dumps({**WHOLE, "properties": {"delivery_tag": "a", "delivery_info": [1]}}).encode(),
    "headers": json.dumps({**WHOLE, "headers": ["x"]}).encode(),
    "encoding": json.dumps({**WHOLE, "properties": {"delivery_tag": "a", "body_encoding": "rot13"}}).encode(),
    "base64": json.dumps({**WHOLE, "body": "abc"}).encode(),
}


@pytest.fixture(params=NO_MESSAGES)
def payload(request: pytest.FixtureRequest) -> bytes:
    return NO_MESSAGES[request.param]


def aside(server: RedisServer) -> list[tuple[str, bytes]]:
    """Queue and message of each."""
    with server.client() as client:
        entries = [json.loads(entry) for entry in client.hvals("limits:{celery}:aside")]
    return [(entry["queue"], entry["message"].encode("utf-8", "surrogateescape")) for entry in entries]


def put_raw(server: RedisServer, queue: str, payload: bytes) -> None:
    with server.client() as client:
        client.lpush(queue, payload)


def unacked(server: RedisServer) -> list[bytes]:
    with server.client() as client:
        return list(client.keys("limits:{celery}:unacked:*"))


def test_a_consumer_gets_the_next_one(connect: Connect, redis_server: RedisServer, queue: str, payload: bytes) -> None:
    put_raw(redis_server, queue, payload)
    put(connect(), queue, 1)
    got = take(connect(), queue, 1)
    assert bodies(got) == [1]
    got[0].ack()
    assert aside(redis_server) == [(queue, payload)]
    wait_until(lambda: not unacked(redis_server), "nothing is unacknowledged")


@pytest.mark.parametrize("no_ack", [True, False])
def test_a_get_brings_the_next_one(
    connect: Connect, redis_server: RedisServer, queue: str, payload: bytes, no_ack: bool
) -> None:
    put_raw(redis_server, queue, payload)
    put(connect(), queue, 1)
    channel = connect().channel()
    message = channel.basic_get(queue, no_ack=no_ack)
    assert message.payload == 1
    if not no_ack:
        message.ack()
    assert aside(redis_server) == [(queue, payload)]
    assert unacked(redis_server) == []


def test_a_broadcast_that_is_no_message_is_dropped(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    got: list[Any] = []
    ours: Connection = connect()
    channel = ours.channel()
    fanout = Exchange(f"{queue}.all", type="fanout")
    with Consumer(channel, Queue(queue, fanout), on_message=got.append, no_ack=True), redis_server.client() as client:

        def published(text: str) -> bool:
            _drained(ours)
            return bool(client.publish(f"/0.{queue}.all", text))

        wait_until(lambda: published("5"), "it listens")
        _drained(ours)
        ours.Producer().publish(1, exchange=fanout)
        wait_until(lambda: _drained(ours) or got, "the next one")
    assert bodies(got) == [1]


def _drained(connection: Any) -> bool:
    try:
        connection.drain_events(timeout=0.2)
    except TimeoutError:
        return False
    return True


def test_an_error_of_who_consumes_is_his_own(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    """Only a Celery worker says that what it raises is the message's."""
    put(connect(), queue, 1)
    ours = connect()

    def fail(message: Any) -> None:
        raise ValueError("as told")

    with (
        Consumer(ours.channel(), Queue(queue, Exchange(""), routing_key=queue), on_message=fail, auto_declare=False),
        pytest.raises(ValueError, match="as told"),
    ):
        wait_until(lambda: _drained(ours), "it comes")
    assert aside(redis_server) == []


def test_each_delivery_of_a_message_has_one_name() -> None:
    again = json.loads(json.dumps(WHOLE))
    again["headers"]["redelivered"] = again["properties"]["delivery_info"]["redelivered"] = True
    again["headers"]["limits"] = {"fence": 7}
    assert name_of(WHOLE, "q") == name_of(again, "q")
    assert name_of(WHOLE, "q") != name_of(WHOLE, "other")
    assert name_of(WHOLE, "q") != name_of({**WHOLE, "body": "e31="}, "q")


def test_counts_are_bounded_and_begin_anew() -> None:
    counts = _Counts()
    assert [counts.add("a") for _ in range(TRIES + 1)] == [*range(1, TRIES + 1), 1]
    for i in range(2 * MOST_COUNTED):
        counts.add(str(i))
    assert len(counts._counts) == MOST_COUNTED
    assert counts.add("a") == 1
