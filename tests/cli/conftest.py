"""What command line tests ask for: the shop on a Redis of its own, an empty store for each test, and the command."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_limits import Limits
from tests.cli.command import Command
from tests.cli.counter import Counter
from tests.cli.shop import build
from tests.redis_server import RedisServer

_namespaces = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file share what they start, so they stay in one process where tests run in several."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(f"cli-{item.path.stem}"))


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def conf(server: RedisServer) -> dict[str, Any]:
    namespace = f"cli.{next(_namespaces)}"
    broker = f"redis+socket://{server.socket}"
    return {"broker_url": broker, "limits_namespace": namespace, "limits_lease": 600.0, "limits_grant_timeout": 600.0}


@pytest.fixture
def limits(conf: dict[str, Any]) -> Limits:
    return Limits(build(conf))


@pytest.fixture
def counter(limits: Limits) -> Counter:
    return Counter(limits)


@pytest.fixture
def command(limits: Limits, conf: dict[str, Any]) -> Command:
    """`celery -A tests.cli.shop …`"""
    return Command(limits.app, conf)
