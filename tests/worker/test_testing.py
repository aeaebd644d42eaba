"""`celery_limits.testing`, used as its docstring says, with Celery's own in-process worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu.exceptions import OperationalError

from celery_limits import Concurrency, FloatingConcurrency, Limits, RateLimit
from tests.waiting import wait_until

pytest_plugins = ["celery_limits.testing"]
InStore = Callable[[Any], AbstractContextManager[Limits]]


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", broker="memory://", backend="cache+memory://")

    @app.task(shared=False, name="ship", limits=[Concurrency("tenant:{tenant}", 1)])
    def ship(tenant: int) -> int:
        return tenant

    floating = FloatingConcurrency("docks", default=1, refresh="tests.cli.shop:slots", every=60)

    @app.task(shared=False, name="pack", limits=[floating, RateLimit("carrier-api", "1/m")])
    def pack() -> str:
        return "packed"

    return app


def test_a_limited_task_runs_and_leaves_nothing(app: Celery, limited_app: InStore) -> None:
    with limited_app(app) as limits, start_worker(app, pool="solo", perform_ping_check=False):
        assert app.tasks["ship"].delay(42).get(timeout=20) == 42
        assert limits.status("tenant:42").running == 0


def test_what_a_floating_limit_and_a_rate_remember_is_not_left_over(app: Celery, limited_app: InStore) -> None:
    with limited_app(app) as limits, start_worker(app, pool="solo", perform_ping_check=False):
        assert app.tasks["pack"].delay().get(timeout=20) == "packed"
        wait_until(lambda: limits.status("docks").floating == 4, "the limit is refreshed")


def test_what_is_left_fails_the_test(app: Celery, limited_app: InStore) -> None:
    with pytest.raises(AssertionError, match="left in the limit store"), limited_app(app) as limits:
        limits.store.beat("a worker that never leaves")


PRODUCTION = ["redis://127.0.0.1:1/0", "limits+redis://127.0.0.1:1/0", "amqp://127.0.0.1:1//"]


@pytest.mark.parametrize("broker", PRODUCTION)
def test_nothing_reaches_the_broker_of_production(app: Celery, limited_app: InStore, broker: str) -> None:
    """Which would answer that nobody is there; or, worse, take the task."""
    app.conf.broker_url = app.conf.broker_write_url = broker
    app.conf.limits_store_url = "redis://127.0.0.1:1/0" if broker.startswith("amqp") else None
    for _ in range(2):
        with limited_app(app) as limits, start_worker(app, pool="solo", perform_ping_check=False):
            assert limits.on_broker == broker.startswith("limits+")
            assert app.tasks["ship"].delay(42).get(timeout=20) == 42
    assert (app.conf.broker_url, app.conf.broker_write_url, app.conf.broker_transport_options) == (broker, broker, {})
    with pytest.raises(OperationalError), app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1)


def test_what_one_test_leaves_in_a_queue_is_not_the_next_ones(app: Celery, limited_app: InStore) -> None:
    app.conf.broker_url = PRODUCTION[1]
    for _ in range(2):
        with limited_app(app), app.connection_for_read() as connection:
            channel: Any = connection.default_channel
            assert channel._size("celery") == 0
            app.send_task("nobody.runs.it")
            assert channel._size("celery") == 1


def test_the_apps_own_configuration_is_back_afterwards(app: Celery, limited_app: InStore) -> None:
    with limited_app(app) as limits:
        assert limits.settings.namespace.startswith("test.")
    assert limits.settings.namespace == "celery"
    assert limits.settings.store_url is None
