"""What worker tests ask for: a private Redis for the session, workers that outlive tests, and one scene per test.

After each test the store is empty but for settings, the audit finds nothing, and no limit was exceeded in the ledger.
A test that fails leaves a mess: the shared workers end with it, and the next test starts on a clean Redis.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rabbit_node import RabbitNode, must_run, why_not
from tests.redis_server import RedisServer
from tests.worker.harness import Scene, Workers, app_on

_tags = itertools.count(1)
_SCENE: pytest.StashKey[Scene] = pytest.StashKey()
_WORKERS: pytest.StashKey[Workers] = pytest.StashKey()
LOG_TAIL = 6000


@pytest.fixture(scope="session")
def broker() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    """A private RabbitMQ for the tests of one file."""
    if reason := why_not():
        (pytest.fail if must_run() else pytest.skip)(reason)
    with RabbitNode() as node:
        yield node


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="session")
def app_and_conf(broker: RedisServer, stages: Path) -> tuple[Any, dict[str, Any]]:
    return app_on(broker, stages)


@pytest.fixture(scope="session")
def all_workers(app_and_conf: tuple[Any, dict[str, Any]], stages: Path) -> Iterator[Workers]:
    workers = Workers(app_and_conf[1], stages)
    yield workers
    workers.stop()


@pytest.fixture
def workers(all_workers: Workers, request: pytest.FixtureRequest) -> Workers:
    request.node.stash[_WORKERS] = all_workers
    return all_workers


@pytest.fixture
def scene(
    app_and_conf: tuple[Any, dict[str, Any]],
    stages: Path,
    workers: Workers,
    broker: RedisServer,
    request: pytest.FixtureRequest,
) -> Iterator[Scene]:
    """A key allows one body at once unless the test says another number in `scene.sizes`."""
    workers.forget()
    scene = Scene(app_and_conf[0], workers, stages, f"t{next(_tags)}")
    request.node.stash[_SCENE] = scene
    yield scene
    if _failed(request):
        _clean_up(scene, workers, broker)
        return
    try:
        over = {key: peak for key, peak in scene.stage.peaks().items() if peak > scene.sizes.get(key, 1)}
        assert over == {}, "more bodies at once than the limit allows"
        scene.wait_quiet()
        workers.stop_own()
    except BaseException:
        _clean_up(scene, workers, broker)
        raise


def _failed(request: pytest.FixtureRequest) -> bool:
    return bool(getattr(request.node, "worker_test_failed", False))


def _clean_up(scene: Scene, workers: Workers, broker: RedisServer) -> None:
    scene.stage.open_all()
    workers.stop()
    with broker.client() as client:
        client.flushall()


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file share their workers, so they stay in one process where tests run in several."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Shows, where a test has failed, what its workers said and what its bodies did."""
    report: Any = yield
    if report.failed:
        item.worker_test_failed = True  # type: ignore[attr-defined]
        workers, scene = item.stash.get(_WORKERS, None), item.stash.get(_SCENE, None)
        for worker in workers.seen() if workers else ():
            report.sections.append((f"log of {worker.name}", worker.log[-LOG_TAIL:]))
        if scene is not None:
            report.sections.append(("ledger", "\n".join(map(str, scene.stage.entries()))))
    return report  # type: ignore[no-any-return]
