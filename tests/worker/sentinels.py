"""A primary, a replica and a sentinel that watches them, on ports that the system has chosen.

There is one primary at any time, so that nothing is lost which is not ours to lose. The sentinel is told when to fail
over: one that finds out by itself may take a busy primary for a dead one, and make a second beside it. And a primary
that was killed comes back as a replica: it would come back empty, and whoever had asked the sentinel a moment too early
would write to it.
"""

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

DOWN_AFTER = 600_000
"""Milliseconds of silence after which the sentinel would find out by itself: never, in a test."""

HUSH = 60_000
"""Milliseconds for which a primary that is about to be killed has writes wait, scripts among them."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Watched:
    """Usable as a context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.port = _free_port()

    def __enter__(self) -> Watched:
        try:
            self.primary = self._stack.enter_context(RedisServer(port=_free_port(), bind="127.0.0.1"))
            self.replica = self._stack.enter_context(
                RedisServer(port=_free_port(), bind="127.0.0.1", replicaof=_address_of(self.primary))
            )
            self._watch()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _watch(self) -> None:
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="limits-")))
        (directory / "sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor {NAME} {_address_of(self.primary)} 1\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER}\nsentinel failover-timeout {NAME} 4000\n"
        )
        self._log = directory / "log"
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [self.primary.binary, str(directory / "sentinel.conf"), "--sentinel"], stdout=log, stderr=log
            )
        self._stack.callback(_end, process)
        self._client: Any = redis.Redis(port=self.port, decode_responses=True)
        self._stack.callback(self._client.close)
        wait_until(self._knows_the_replica, "the sentinel knows the replica", within=PATIENCE)

    def _knows_the_replica(self) -> bool:
        with suppress(redis.RedisError):
            return int(self._announced()["num-slaves"]) == 1
        return False

    def _announced(self) -> dict[str, str]:
        """As redis-py asks. (`GET-MASTER-ADDR-BY-NAME` names the next one while this still names the last.)"""
        found = self._client.execute_command("SENTINEL", "MASTER", NAME)
        return found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))

    @property
    def logs(self) -> dict[str, Path]:
        """By name, what sentinel and servers have said; a server keeps its name through all failovers."""
        servers = {f"redis-{each.options['port']}": each.directory / "log.txt" for each in (self.primary, self.replica)}
        return {"sentinel": self._log, **servers}

    # -- failing over ----------------------------------------------------------------------------------------------

    def fail_over(self) -> None:
        """The primary is killed and its replica takes over, with all that was ever acknowledged. Until `bring_back`
        there is no other replica."""
        with self.primary.client() as client:
            client.client_pause(HUSH, all=False)
            said = client.info("replication")
        assert said["role"] == "master", f"the sentinel made another one primary: {self._log.read_text()[-3000:]}"
        wait_until(lambda: self._has_heard(said["master_repl_offset"]), "the replica has all of it", within=PATIENCE)
        self.primary.kill()
        wait_until(self._fails_over, "the sentinel fails over", within=PATIENCE)
        self.primary, self.replica = self.replica, self.primary
        wait_until(self._is_announced, "the sentinel says that the replica has taken over", within=PATIENCE)

    def bring_back(self) -> None:
        """The one that was killed is the replica of the other, and has all that it has."""
        self.replica.options["replicaof"] = _address_of(self.primary)
        self.replica.start(within=PATIENCE)
        wait_until(self._is_replicated, "the old primary is a replica", within=PATIENCE)

    def _has_heard(self, offset: int) -> bool:
        """Asked of the replica itself: `WAIT` knows only of what its own connection wrote."""
        with self.replica.client() as client:
            return bool(client.info("replication")["slave_repl_offset"] >= offset)

    def _fails_over(self) -> bool:
        """It refuses while it has not heard of the replica for a while, or is still busy with the last time."""
        with suppress(redis.ResponseError):
            return bool(self._client.execute_command("SENTINEL", "FAILOVER", NAME))
        return False

    def _is_announced(self) -> bool:
        announced = self._announced()
        return f"{announced['ip']} {announced['port']}" == _address_of(self.primary)

    def _is_replicated(self) -> bool:
        """The sentinel ends every connection to it if it tells it whose replica it is."""
        with suppress(redis.ConnectionError), self.replica.client() as client:
            found = client.info("replication")
            return bool(found["role"] == "slave" and found["master_link_status"] == "up")
        return False


def _address_of(server: RedisServer) -> str:
    return f"127.0.0.1 {server.options['port']}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()
