"""Connections to one Redis: ours, and kombu's own beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection

from celery_limits.transport import member as membership
from tests.redis_server import RedisServer

_names = itertools.count(1)
Connect = Callable[..., Any]


@pytest.fixture
def queue() -> str:
    return f"q{next(_names)}"


@pytest.fixture
def connect(redis_server: RedisServer) -> Iterator[Connect]:
    """`connect()` is one of ours, `connect("redis")` one of kombu's; options are the transport's."""
    made: list[Any] = []

    def connect(scheme: str = "limits+redis", **options: Any) -> Any:
        made.append(Connection(f"{scheme}+socket://{redis_server.socket}", transport_options=options))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()
    for member in list(membership._members.values()):
        member.lease.stop()
        membership.disown(member.lease)
    with redis_server.client() as client:
        client.flushall()
