"""Behind a sentinel: every connection goes to whoever is primary when it is made, not to whoever was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection

from celery_limits.store import StoreUnavailable
from celery_limits.store.bell import Bell
from celery_limits.transport.transports import client_of
from tests.waiting import DEADLINE
from tests.worker.sentinels import NAME, Watched


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Watched() as watched:
        yield watched


@pytest.fixture
def connection(watched: Watched) -> Iterator[Any]:
    url = f"limits+sentinel://127.0.0.1:{watched.port}"
    with Connection(url, transport_options={"master_name": NAME}) as connection:
        yield connection


def test_a_connection_asks_again_when_it_was_lost(watched: Watched, connection: Any) -> None:
    """redis-py goes back to the address it had, where the old primary may be by then, with other data or none."""
    client: Any = client_of(connection, DEADLINE)
    pool = client.connection_pool
    lost = pool.connection_class(**pool.connection_kwargs)
    lost.connect()
    assert lost.port == watched.primary.options["port"]
    watched.fail_over()
    watched.bring_back()
    lost.disconnect()
    lost.send_command("ROLE")
    assert lost.read_response()[0] == b"master"
    assert lost.port == watched.primary.options["port"]
    lost.disconnect()


def test_the_bell_is_heard(watched: Watched, connection: Any) -> None:
    """It is the primary's: redis-py would listen at localhost:6379."""
    client: Any = client_of(connection, DEADLINE)
    listener = Bell(client, "bell")
    client.rpush("bell", "1")
    listener.wait(DEADLINE)
    assert client.llen("bell") == 0
    watched.fail_over()
    with pytest.raises(StoreUnavailable):
        listener.wait(DEADLINE)  # the primary that it listened to is gone
    client.rpush("bell", "1")
    listener.wait(DEADLINE)
    assert client.llen("bell") == 0
    listener.close()
    watched.bring_back()
