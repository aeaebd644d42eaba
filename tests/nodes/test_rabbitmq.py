"""The same on a RabbitMQ node, with the limits in a Redis node that is neither the broker nor the ledger."""

from __future__ import annotations

from typing import Any

import pytest
from celery import group
from pytest_celery import CeleryBrokerCluster, CeleryWorkerContainer, RabbitMQTestBroker, RedisTestBroker

from tests.nodes.conftest import OPTIONS
from tests.nodes.play import WITHIN, Play
from tests.nodes.processes import ProcessClient
from tests.nodes.tasks import three
from tests.rabbit_node import must_run, why_not

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def _needs_rabbitmq(docker_client: Any) -> None:
    if isinstance(docker_client, ProcessClient) and (reason := why_not()):
        (pytest.fail if must_run() else pytest.skip)(reason)


@pytest.fixture
def celery_broker_cluster(celery_rabbitmq_broker: RabbitMQTestBroker) -> CeleryBrokerCluster:
    return CeleryBrokerCluster(celery_rabbitmq_broker)


@pytest.fixture
def default_worker_command(
    default_worker_container_cls: type[CeleryWorkerContainer], celery_redis_broker: RedisTestBroker
) -> list[str]:
    store = celery_redis_broker.config()["url"]
    command: list[str] = default_worker_container_cls.command("--limits-store", store, *OPTIONS)
    return command


@pytest.fixture
def default_worker_app(default_worker_app: Any, celery_redis_broker: RedisTestBroker) -> Any:
    default_worker_app.conf.limits_store_url = celery_redis_broker.config()["host_url"]
    return default_worker_app


def test_never_over_and_exactly_full_across_nodes(play: Play) -> None:
    result = group(three.si("k", "go") for _ in range(9)).apply_async()
    started = play.wait_started("k", 3)
    play.wait_parked("k", 4)
    assert len({entry.hostname for entry in started}) == 2

    play.open("go")
    assert result.get(timeout=WITHIN) == ["go"] * 9
    assert play.peaks() == {"k": 3}
    play.wait_quiet()
