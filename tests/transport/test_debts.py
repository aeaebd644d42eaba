"""What a process owes its Redis, in the life in which it owes it."""

from __future__ import annotations

from celery_limits.transport.queue_scripts import QueueScripts
from celery_limits.transport.unconfirmed import Unconfirmed
from tests.redis_server import RedisServer

PREFIX = "{limits:debts}:"
DELIVERY = "7.mark\nowed\nowed\n\n{}"
"""Queue, list, no ticket, and the message."""


def test_what_a_call_of_an_earlier_life_brings_up_is_void_and_takes_nothing_else_along(
    redis_server: RedisServer,
) -> None:
    """A fetch is not answered. Then the answer to a release comes that was asked for before the lease was lost. The
    fetch is carried out all the same, and what it has brought must go back."""
    name = "w/1"
    debts = Unconfirmed(lambda: name)
    with redis_server.client() as client:
        courier = QueueScripts(client, PREFIX)
        name = "w/2"
        debts.lose_sight(courier, "w/2", "mark", (), 0)
        debts.lose_sight(courier, "w/1", "other", (), 0)
        debts.acknowledge(courier, "w/1", ["1.other"])
        client.zadd(f"{PREFIX}unacked:w/2", {DELIVERY: 7})
        debts.confirm("w/2")
        assert client.rpop("owed") == b"{}"


def test_what_was_owed_before_the_lease_was_lost_is_void(redis_server: RedisServer) -> None:
    name = "w/1"
    debts = Unconfirmed(lambda: name)
    with redis_server.client() as client:
        courier = QueueScripts(client, PREFIX)
        debts.give_back(courier, "w/1", ["7.mark"], "front")
        name = "w/2"
        client.zadd(f"{PREFIX}unacked:w/2", {DELIVERY: 7})
        debts.confirm("w/2")
        assert not debts
        assert client.zrem(f"{PREFIX}unacked:w/2", DELIVERY) == 1
