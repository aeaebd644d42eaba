"""pytest-celery's components, as processes where no Docker engine is reachable, and two workers in each test.

Only `docker_client` knows which of the two it is. The other fixtures choose, in the ways that pytest-celery has for it,
what every user of it chooses: the broker and the backend, the image, the tasks and the number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import docker
import pytest
from celery import _state
from docker.errors import DockerException
from pytest_celery import (
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    DEFAULT_WORKER_VOLUME,
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
    CeleryWorkerContainer,
    RedisTestBackend,
    RedisTestBroker,
)
from pytest_docker_tools import build, container, fxtr

from tests.nodes import tasks
from tests.nodes.play import Play
from tests.nodes.processes import ProcessClient

ROOT = Path(__file__).parents[2]
OPTIONS = ("-c", "2", "--without-mingle", "--without-gossip")


def _engine() -> Any:
    """A client of the Docker engine, or None where none answers or `LIMITS_NODES=processes` asks for none."""
    wanted = os.environ.get("LIMITS_NODES", "")
    if wanted not in ("", "processes", "containers"):
        pytest.fail(f"LIMITS_NODES={wanted}: say processes, or containers, or leave it out", pytrace=False)
    if wanted == "processes":
        return None
    try:
        docker.from_env(timeout=10).close()
        return docker.from_env()
    except DockerException:
        if wanted == "containers":
            raise
        return None


@pytest.fixture(scope="session")
def docker_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    engine = _engine()
    if engine is not None:
        yield engine
        engine.close()
        return
    client = ProcessClient(tmp_path_factory.mktemp("nodes"))
    with pytest.MonkeyPatch.context() as patch:
        # Whether the tests are in a container themselves is no matter: the nodes are where the tests are.
        patch.setattr("pytest_docker_tools.wrappers.container.tests_inside_container", lambda: False)
        yield client
    client.close()


celery_base_worker_image = build(path=str(ROOT), dockerfile="tests/nodes/Dockerfile", tag="celery-limits/tests/worker")

second_worker_container = container(
    image="{celery_base_worker_image.id}",
    ports=fxtr("default_worker_ports"),
    environment=fxtr("default_worker_env"),
    network="{default_pytest_celery_network.name}",
    volumes={"{default_worker_volume.name}": DEFAULT_WORKER_VOLUME},
    wrapper_class=CeleryWorkerContainer,
    timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
    command=fxtr("default_worker_command"),
)


@pytest.fixture(autouse=True)
def _current_app() -> Iterator[None]:
    """pytest-celery makes each test's app the current one; tests elsewhere get back the one that was."""
    before = _state._tls.current_app
    yield
    _state._tls.current_app = before


@pytest.fixture
def celery_broker_cluster(celery_redis_broker: RedisTestBroker) -> CeleryBrokerCluster:
    return CeleryBrokerCluster(celery_redis_broker)


@pytest.fixture
def celery_backend_cluster(celery_redis_backend: RedisTestBackend) -> CeleryBackendCluster:
    return CeleryBackendCluster(celery_redis_backend)


@pytest.fixture
def celery_worker_cluster(
    celery_setup_worker: CeleryTestWorker, second_worker_container: CeleryWorkerContainer, default_worker_app: Any
) -> CeleryWorkerCluster:
    return CeleryWorkerCluster(celery_setup_worker, CeleryTestWorker(second_worker_container, default_worker_app))


@pytest.fixture
def default_worker_tasks() -> set[ModuleType]:
    return {tasks}


@pytest.fixture
def default_worker_command(default_worker_container_cls: type[CeleryWorkerContainer]) -> list[str]:
    command: list[str] = default_worker_container_cls.command(*OPTIONS)
    return command


@pytest.fixture
def lease() -> float:
    """Long, so that no node is taken for dead on a busy machine; a test that kills one says another."""
    return 30.0


@pytest.fixture
def default_worker_app(default_worker_app: Any, lease: float) -> Any:
    default_worker_app.conf.update(
        worker_prefetch_multiplier=1, limits_lease=lease, limits_place_ttl=2.0, limits_revoke_ttl=2.0
    )
    return default_worker_app


@pytest.fixture
def play(celery_setup: CeleryTestSetup) -> Iterator[Play]:
    """The test's nodes, ready."""
    play = Play(celery_setup)
    yield play
    play.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Five nodes start in turn before a test begins, which takes its time on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(240))
