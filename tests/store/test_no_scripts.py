"""A server on which scripts are disabled is called that, and not too old: by the store, a producer and the commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from kombu import Connection

from celery_limits.store import Store, StoreNoScripts
from tests.redis_server import RedisServer

APP = """
import celery_limits
from celery import Celery
app = Celery("none", broker={url!r})

@app.task(limits=[celery_limits.Concurrency("k", 1)])
def limited(): ...
"""


class Hardened(RedisServer):
    """A server whose configuration renames commands, which no command line can."""

    def __init__(self, binary: str, *disabled: str) -> None:
        super().__init__(binary)
        self.disabled = disabled

    def _launch(self) -> subprocess.Popen[bytes]:
        conf = self.directory / "redis.conf"
        lines = [f'rename-command {name} ""' for name in self.disabled]
        conf.write_text(
            "\n".join([*lines, "port 0", f"unixsocket {self.socket}", f"dir {self.directory}", 'save ""', ""])
        )
        return self._popen(self.binary, str(conf))


@pytest.fixture(params=["EVAL", "EVALSHA", "both"])
def server(redis_server: RedisServer, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    disabled = ("EVAL", "EVALSHA") if request.param == "both" else (request.param,)
    with Hardened(redis_server.binary, *disabled) as server:
        yield server


def test_the_store_says_what_it_is(server: RedisServer) -> None:
    with server.client() as client, pytest.raises(StoreNoScripts, match="Lua scripts are disabled") as caught:
        Store(client).beat("w")
    assert "rename-command" in str(caught.value)
    assert "Upgrade" not in str(caught.value)


def test_a_producer_is_told(server: RedisServer) -> None:
    with (
        Connection(f"limits+redis+socket://{server.socket}") as connection,
        pytest.raises(redis.ResponseError, match="Lua scripts are disabled"),
    ):
        connection.SimpleQueue("q").put("message", retry=False)


@pytest.mark.parametrize("command", [["worker", "-P", "solo"], ["limits", "check"]], ids=["worker", "check"])
def test_a_command_ends_and_says_what_to_do(server: RedisServer, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "none.py").write_text(APP.format(url=f"limits+redis+socket://{server.socket}"))
    celery = [sys.executable, "-m", "celery", "-A", "none", *command]
    done = subprocess.run(celery, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Lua scripts are disabled on this server" in done.stdout + done.stderr
