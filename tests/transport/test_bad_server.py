"""A Redis that is full, denies us, is a replica, or restarts: it is said what to do about it, what passes by itself is
waited out, and what is held is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kombu import Connection
from redis import exceptions as redis_errors

from celery_limits.store import Policy, Store
from tests.redis_server import RedisServer
from tests.transport.conftest import Connect
from tests.transport.test_channel import bodies, put, take
from tests.waiting import wait_until

BROKEN = (redis_errors.RedisError, OSError)


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """One of our own, to mistreat."""
    with RedisServer(redis_server.binary, appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def mine(server: RedisServer, connect: Connect) -> Iterator[Connect]:
    made: list[Any] = []

    def mine(**options: Any) -> Any:
        made.append(Connection(f"limits+redis+socket://{server.socket}", transport_options=options))
        return made[-1]

    yield mine
    for connection in made:
        with suppress(*BROKEN):
            connection.close()


def test_a_full_redis_renews_leases_and_hands_out_what_it_has(server: RedisServer, mine: Connect, queue: str) -> None:
    """Nobody is taken for dead because Redis can't take more; what is fetched and acknowledged frees memory."""
    put(mine(), queue, 1, 2)
    watcher = Store(server.client(), policy=Policy(lease=1.0))
    with server.client() as client:
        ours = mine(limits_lease=1.0)
        held = take(ours, queue, 1, prefetch=1)
        client.config_set("maxmemory", 1)
        with pytest.raises(redis_errors.OutOfMemoryError, match="Raise maxmemory"):
            put(mine(), queue, 3)
        lapses = _lapses(client)
        wait_until(lambda: not watcher.sweep().dead and _lapses(client) > lapses + 3e6, "three leases pass")
        held[0].ack()
        wait_until(lambda: _drained(ours, held, 2), "the next one comes")
        held[1].ack()
        client.config_set("maxmemory", 0)
        put(mine(), queue, 3)
        wait_until(lambda: _drained(ours, held, 3), "it goes on when there is memory")
    assert bodies(held) == [1, 2, 3]
    assert not held[1].headers.get("redelivered")


def _lapses(client: Any) -> float:
    [(_, score)] = client.zrange("limits:{celery}:leases", 0, -1, withscores=True)
    return float(score)


def _drained(connection: Any, got: list[Any], count: int) -> bool:
    if len(got) < count:
        with suppress(*BROKEN):
            connection.drain_events(timeout=0.2)
    return len(got) >= count


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_redis_restarts_under_a_consumer(server: RedisServer, mine: Connect, queue: str, how: str) -> None:
    """Its scripts are unknown then, its deliveries still its own, and what it acknowledges meanwhile counts."""
    put(mine(), queue, *range(4))
    ours = mine()
    got = take(ours, queue, 2, prefetch=2)
    server.kill() if how == "killed" else server.stop()
    with suppress(*BROKEN):
        got[0].ack()
    server.start()
    wait_until(lambda: _drained(ours, got, 3), "the next one comes")
    for message in got[1:]:
        message.ack()
    wait_until(lambda: _drained(ours, got, 4), "and the last")
    got[3].ack()
    assert bodies(got) == [0, 1, 2, 3]
    with server.client() as client:
        wait_until(lambda: not client.keys("*unacked:*"), "all is acknowledged")


def test_no_right_to_run_scripts(server: RedisServer, queue: str) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", ">secret", "~*", "&*", "+@all", "-@scripting")
    url = f"limits+redis+socket://poor:secret@{server.socket}"
    with Connection(url) as connection, pytest.raises(redis_errors.NoPermissionError, match="no right to run scripts"):
        put(connection, queue, 1)


def test_a_replica_refuses_and_is_used_when_it_is_none_any_more(server: RedisServer, mine: Connect, queue: str) -> None:
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(redis_errors.ConnectionError, match="Point the URL at the primary"):
            put(mine(), queue, 1)
        client.execute_command("REPLICAOF", "NO", "ONE")
    put(mine(), queue, 1)
    got = take(mine(), queue, 1)
    got[0].ack()
