"""A primary, a replica and a sentinel that watches them, on ports that the system has chosen."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import redis

from tests.redis_server import RedisServer
from tests.waiting import wait_until

__all__ = ["NAME", "Watched"]

NAME = "shop"
PATIENCE = 60.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Watched:
    """Usable as a context manager. `fail_over` kills the primary and returns when the replica has taken over."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.port = _free_port()

    def __enter__(self) -> Watched:
        try:
            first, second = _free_port(), _free_port()
            self.primary = self._stack.enter_context(RedisServer(port=first, bind="127.0.0.1"))
            self.replica = self._stack.enter_context(
                RedisServer(port=second, bind="127.0.0.1", replicaof=f"127.0.0.1 {first}")
            )
            self._watch(first)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _watch(self, port: int) -> None:
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="limits-")))
        (directory / "sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {port} 1\n"
            f"sentinel down-after-milliseconds {NAME} 1000\nsentinel failover-timeout {NAME} 4000\n"
        )
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [self.primary.binary, str(directory / "sentinel.conf"), "--sentinel"], stdout=log, stderr=log
            )
        self._stack.callback(_end, process)
        self._client: Any = redis.Redis(port=self.port, decode_responses=True)
        self._stack.callback(self._client.close)
        wait_until(self._knows_the_replica, "the sentinel knows the replica", within=PATIENCE)

    def _knows_the_replica(self) -> bool:
        with suppress(redis.RedisError):
            found = self._client.execute_command("SENTINEL", "MASTER", NAME)
            master = found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
            return int(master["num-slaves"]) == 1
        return False

    def fail_over(self) -> None:
        """Nothing that was written before is lost: the replica has it."""
        with self.primary.client() as client:
            wait_until(lambda: client.wait(1, 1000) == 1, "the replica is up to date", within=PATIENCE)
        self.primary.kill()
        wait_until(self._is_taken_over, "the replica takes over", within=PATIENCE)

    def _is_taken_over(self) -> bool:
        with suppress(redis.ConnectionError), self.replica.client() as client:
            return bool(client.info("replication")["role"] == "master")
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()
