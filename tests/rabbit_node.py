"""A real RabbitMQ for tests: a private node of Debian's `rabbitmq-server`, apart from any other on the machine.

Node name, ports, cookie and data are its own, its epmd is started here, and all is ended by process id; the default
node of the package is never used. What is in the broker is left to the tests.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType

import psutil
from kombu import Connection
from kombu.exceptions import OperationalError

from tests.waiting import wait_until

__all__ = ["RabbitNode", "must_run", "why_not"]

START_SECONDS = 60.0
STOP_SECONDS = 15.0
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


class RabbitNode:
    """One private node, usable as a context manager. Its data outlive `stop` and `kill`, and go with `close`."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="limits-", dir="/tmp"))  # short, as for a unix socket
        self.port, self._distribution, self._epmd_port = _free_ports(3)
        self.name = f"limits{self.port}@localhost"
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        (self.directory / "plugins").write_text("[].")
        self._node: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._family: set[psutil.Process] = set()

    def __repr__(self) -> str:
        return f"<RabbitNode {self.name} pid={self._node and self._node.pid} in {self.directory}>"

    def __enter__(self) -> RabbitNode:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        return self._node is not None and self._node.poll() is None

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

    def _launch(self, *command: str) -> subprocess.Popen[bytes]:
        with open(self.directory / "output", "ab") as output:
            return subprocess.Popen(
                command,
                env=self._environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C is for the tests
            )

    def start(self, *, within: float = START_SECONDS) -> RabbitNode:
        """Starts it and waits until it takes connections."""
        assert self._node is None, f"{self!r} is running already"
        if self._epmd is None:
            # In the foreground and before the node, which would else leave one behind as a daemon.
            self._epmd = self._launch("epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1")
            wait_until(lambda: self._listens(self._epmd_port), f"the epmd of {self!r} listens")
        self._node = self._launch(f"{_programs()}/rabbitmq-server")
        wait_until(self._answers, f"{self!r} answers", within=within)
        self._note_family()
        return self

    @staticmethod
    def _listens(port: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    def _answers(self) -> bool:
        assert self._node is not None
        if self._node.poll() is not None:
            raise AssertionError(f"{self!r} ended by itself:\n{self.output()[-3000:]}")
        try:
            with Connection(self.url, connect_timeout=2) as connection:
                connection.connect()
        except (OSError, OperationalError):
            return False
        return True

    def output(self) -> str:
        return (self.directory / "output").read_text(errors="replace")

    def _note_family(self) -> None:
        """The server is a shell that waits for an Erlang machine, which has helpers of its own."""
        if self._node is not None and self._node.poll() is None:
            parent = psutil.Process(self._node.pid)
            self._family |= {parent, *parent.children(recursive=True)}

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

    def stop(self) -> None:
        """Ends it as an operator would; kills it if that does not help. No-op when it is not running."""
        if (node := self._node) is None:
            return
        self._note_family()
        node.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            node.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of the node: nothing flushed, nothing said."""
        if self._node is None:
            return
        self._note_family()
        for process in self._family:
            with suppress(psutil.NoSuchProcess):
                process.kill()  # psutil knows when the id belongs to another by now
        self._node.wait()
        wait_until(lambda: not any(map(_acts, self._family)), f"{self!r} is gone")
        self._family.clear()
        self._node = None

    def restart(self) -> RabbitNode:
        """The same name, ports and data, whether it was stopped, killed or is still running."""
        self.stop()
        return self.start()

    def close(self) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None
        shutil.rmtree(self.directory, ignore_errors=True)


def _acts(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
