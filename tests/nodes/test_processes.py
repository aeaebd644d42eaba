"""The client whose containers are processes: what tests on nodes rely on, without any Celery."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from docker.errors import APIError, ImageNotFound

from tests.nodes.containers import Container
from tests.nodes.processes import ProcessClient
from tests.waiting import wait_until

pytestmark = pytest.mark.long


@pytest.fixture
def client(tmp_path: Path) -> Iterator[ProcessClient]:
    client = ProcessClient(tmp_path)
    yield client
    client.close()


def _redis_at(container: Container) -> redis.Redis:
    return redis.Redis.from_url(f"redis://{container.attrs['Config']['Hostname']}/0")


def _archive(name: str, content: bytes) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        about = tarfile.TarInfo(name)
        about.size = len(content)
        archive.addfile(about, io.BytesIO(content))
    packed.seek(0)
    return packed


def test_server_lives_as_a_container_does(client: ProcessClient) -> None:
    node = client.containers.run("redis:latest", ["redis-server", "--save", ""], ports={"6379/tcp": None})
    assert node.status == "running"
    wait_until(lambda: b"Ready to accept connections" in node.logs(), "the log says so")
    # Redis's own port number is what a container would show, whatever the port is here.
    assert f":{6379:04X} ".encode() in node.exec_run("cat /proc/net/tcp /proc/net/tcp6").output
    address = node.attrs["Config"]["Hostname"]
    node.restart()
    assert node.attrs["Config"]["Hostname"] == address
    with _redis_at(node) as server:
        assert server.ping()
        node.kill("SIGKILL")
        node.reload()
        assert node.status == "exited"
        assert node.exec_run("cat /proc/net/tcp /proc/net/tcp6").output == b""
        with pytest.raises(redis.ConnectionError):
            server.ping()
    with pytest.raises(APIError, match="not running"):
        node.kill()


def test_running_container_is_removed_by_force_alone(client: ProcessClient) -> None:
    node = client.containers.run("redis", ["redis-server"], ports={"6379/tcp": None})
    with pytest.raises(APIError, match="force=True"):
        node.remove()
    node.remove(force=True)
    with _redis_at(node) as gone, pytest.raises(redis.ConnectionError):
        gone.ping()


def test_program_finds_its_volume_environment_and_name(client: ProcessClient) -> None:
    image, _ = client.images.build(path=".")
    volume = client.volumes.create("code")
    seeded = client.containers.create(image.id, volumes={volume.name: {"bind": "/data"}})
    program = b"import os, sys; print(os.environ['WHAT'], sys.argv[1])"
    seeded.put_archive("/data", _archive("package/said.py", program))

    node = client.containers.run(
        image.id,
        ["python", "-m", "package.said", "me@%h"],
        environment={"PYTHONPATH": "/app", "WHAT": "hello"},
        volumes={volume.name: {"bind": "/app", "mode": "rw"}},
    )
    node.wait()
    assert node.logs().decode().split() == ["hello", f"me@{node.id[:12]}"]
    assert node.exec_run("python -m package.said there") == (0, b"hello there\n")
    assert node.exec_run("python -c 'raise SystemExit(3)'").exit_code == 3


def test_image_that_no_program_stands_for_is_named(client: ProcessClient) -> None:
    with pytest.raises(ImageNotFound, match="'memcached:latest'"):
        client.containers.run("memcached:latest")
