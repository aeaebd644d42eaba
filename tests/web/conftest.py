"""What the tests of the page ask for: the shop of the command line tests on a Redis of its own, and its page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from celery_limits import Limits
from celery_limits.web import asgi
from tests.cli.command import Command
from tests.cli.counter import Counter
from tests.cli.shop import build
from tests.redis_server import RedisServer

_namespaces = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file share what they start, so they stay in one process where tests run in several."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(f"web-{item.path.stem}"))


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def conf(server: RedisServer) -> dict[str, Any]:
    broker = f"limits+redis+socket://{server.socket}"
    namespace = f"web.{next(_namespaces)}"
    return {"broker_url": broker, "limits_namespace": namespace, "limits_lease": 600.0, "limits_grant_timeout": 600.0}


@pytest.fixture
def limits(conf: dict[str, Any]) -> Limits:
    return Limits(build(conf))


@pytest.fixture
def counter(limits: Limits) -> Counter:
    return Counter(limits)


@pytest.fixture
def command(limits: Limits, conf: dict[str, Any]) -> Command:
    return Command(limits.app, conf)


@pytest.fixture
def page(limits: Limits) -> TestClient:
    """For one who may operate."""
    return TestClient(asgi(limits.app, access=lambda _: ("operate", "ann")))


@pytest.fixture
def busy(counter: Counter) -> Counter:
    """Two pack, of which one waits; four ship for tenant 42: two run, one waits for the warehouse, one for its
    tenant."""
    for i in range(2):
        counter.bring("shop.pack", tenant=1, task_id=f"pack-{i}")
    for i in range(4):
        counter.bring("shop.ship", tenant=42, task_id=f"ship-{i}")
    return counter
