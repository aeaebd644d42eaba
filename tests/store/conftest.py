"""A store on a real Redis, with a clock that the test owns, and a check that nothing is left after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from celery_limits.store import Policy, Store
from tests.redis_server import RedisServer
from tests.store.actors import Clock, drain_time, leftovers


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[Redis]:
    client = redis_server.client()
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def policy() -> Policy:
    return Policy(lease=10, grant_timeout=5, place_ttl=600, revoke_ttl=3600, refresh_timeout=20)


@pytest.fixture
def store(redis: Redis, clock: Clock, policy: Policy, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Unless a test is marked `leaves_traces`, all must be gone at its end, once time has passed."""
    store = Store(redis, "test", policy, clock)
    yield store
    if not request.node.get_closest_marker("leaves_traces"):
        drain_time(store, clock)
        assert leftovers(store) == []
    store.close()
