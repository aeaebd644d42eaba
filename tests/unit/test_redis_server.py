"""The servers that other tests stand on do what they are told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import redis

from tests.redis_server import RedisServer, find_servers


def test_every_server_is_found_once_by_its_version() -> None:
    servers = find_servers()
    assert servers
    for binary in servers.values():
        assert os.access(binary, os.X_OK)


def test_a_server_does_not_hide_others_further_down_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, says in {
        "a": "Redis server v=98.1.0",
        "b": "Redis server v=99.2.0",
        "c": "Redis server v=5.0.1",
    }.items():
        program = tmp_path / place / "redis-server"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{says} sha=0'\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / place) for place in "abc"))
    servers = find_servers()
    assert servers["98.1.0"] == str(tmp_path / "a" / "redis-server")
    assert servers["99.2.0"] == str(tmp_path / "b" / "redis-server")
    assert "5.0.1" not in servers  # too old


def test_the_session_has_a_server_of_each_version(redis_server: RedisServer, request: pytest.FixtureRequest) -> None:
    with redis_server.client(decode_responses=True) as client:
        said = client.info("server")  # where a Valkey also tells a Redis that it is as good as
        assert said.get("valkey_version", said["redis_version"]) in request.node.callspec.id
        assert client.config_get("port") == {"port": "0"}


def test_options_and_data_survive_a_kill() -> None:
    with RedisServer(appendonly="yes", appendfsync="always") as server, server.client() as client:
        client.set("kept", "yes")
        server.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.restart()
        assert client.get("kept") == b"yes"


def test_a_paused_server_is_silent_until_it_is_resumed() -> None:
    with RedisServer() as server, server.client(socket_timeout=0.1, retry=None) as client:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert client.ping()


def test_a_paused_server_can_be_stopped() -> None:
    with RedisServer() as server:
        pid = server.pid
        server.pause()
        server.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_nothing_is_left_of_a_closed_server() -> None:
    with RedisServer() as server:
        pid = server.pid
    assert not server.directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(AssertionError, match="no-such-option"), RedisServer(no_such_option=1):
        pass
