"""A real RabbitMQ for tests: a private node of Debian's `rabbitmq-server`, apart from any other on the machine.

Node name, ports, cookie and data are its own, its epmd is started here, and all is ended by process id; the default
node of the package is never used. What is in the broker is left to the tests.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from kombu import Connection
from kombu.exceptions import OperationalError

from tests.private_server import PrivateServer
from tests.waiting import wait_until

__all__ = ["RabbitNode", "must_run", "why_not"]

# Debian's `rabbitmq-server` on PATH changes to the user `rabbitmq` and its home; this is what that one calls.
_HOMES = ("/usr/lib/rabbitmq/bin", "/usr/local/sbin", "/opt/rabbitmq/sbin", "/usr/local/opt/rabbitmq/sbin")


@lru_cache(maxsize=1)
def _programs() -> str | None:
    """The directory of RabbitMQ's programs."""
    return next((home for home in _HOMES if os.access(f"{home}/rabbitmq-server", os.X_OK)), None)


def why_not() -> str | None:
    """Why no node can be started on this machine; None when one can."""
    if _programs() is None:
        return f"no rabbitmq-server in {', '.join(_HOMES)}: apt-get install rabbitmq-server"
    if shutil.which("epmd") is None:
        return "rabbitmq-server is here, but Erlang's epmd is not on PATH"
    return None


def must_run() -> bool:
    """In CI a test without its broker fails; elsewhere it is skipped."""
    return os.environ.get("CI") == "true" or os.environ.get("LIMITS_REQUIRE_RABBITMQ") == "1"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [found.getsockname()[1] for found in sockets]
    finally:
        for found in sockets:
            found.close()


class RabbitNode(PrivateServer):
    """One private node, with an epmd of its own."""

    start_seconds = 60.0
    stop_seconds = 15.0

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="limits-", dir="/tmp")))  # short, as for a unix socket
        self.port, self._distribution, self._epmd_port = _free_ports(3)
        self.name = f"limits{self.port}@localhost"
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        (self.directory / "plugins").write_text("[].")
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def _environment(self) -> dict[str, str]:
        """Whatever RABBITMQ_* and ERL_* the machine has set up is left out."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        return {
            **kept,
            "HOME": str(self.directory),  # where the cookie is
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "none"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            # Nothing here is in a hurry, and two busy-waiting schedulers are all that the machine has.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def _launch(self) -> subprocess.Popen[bytes]:
        if self._epmd is None:
            # In the foreground and before the node, which would else leave one behind as a daemon.
            command = ("epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1")
            self._epmd = self._popen(*command, env=self._environment)
            wait_until(lambda: self._listens(self._epmd_port), f"the epmd of {self!r} listens")
        return self._popen(f"{_programs()}/rabbitmq-server", env=self._environment)

    @staticmethod
    def _listens(port: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    def _answers(self) -> bool:
        try:
            with Connection(self.url, connect_timeout=2) as connection:
                connection.connect()
        except (OSError, OperationalError):
            return False
        return True

    def control(self, *command: str) -> str:
        """`rabbitmqctl`, which takes a second to start."""
        done = subprocess.run(
            [f"{_programs()}/rabbitmqctl", "-q", *command],
            env=self._environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close_connections(self) -> None:
        """Every connection is closed by the node, which hands out again what was not acknowledged on it."""
        self.control("close_all_connections", "a test wants it")

    def close(self) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None
        super().close()
