"""Containers that are processes of this machine, with the part of Docker's API that pytest-celery uses.

Inside and outside are one network here: a server listens on a port that the system has chosen, and its host name, as
the other nodes see it, includes that port. What a container would find in its image is what is installed here.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from docker.errors import APIError
from docker.models.containers import ExecResult

from tests.rabbit_node import RabbitNode
from tests.redis_server import find_servers
from tests.waiting import wait_until
from tests.worker.stage import is_alive

__all__ = ["Container", "Options", "RabbitContainer", "RedisContainer"]

HOST = "127.0.0.1"
STOP_SECONDS = 20.0
PORT_TRIES = 5
# What `pytest_docker_tools` runs in a container to learn who listens there.
_LISTENERS = "cat /proc/net/tcp /proc/net/tcp6"
_PROGRAMS = {"celery": [sys.executable, "-m", "celery"], "python": [sys.executable]}


@dataclass
class Options:
    """What a container was asked to be: the arguments of Docker's `create` that matter to a process."""

    image: str
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    ports: dict[str, Any] = field(default_factory=dict)
    network: str = "none"
    labels: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, Path] = field(default_factory=dict)
    """Where volumes are, by the path that the container knows them under."""


class Container:
    """A process, with everything it starts. As with Docker, `status` and `attrs` are as of the last `reload`."""

    def __init__(self, options: Options, directory: Path) -> None:
        self.id = uuid.uuid4().hex * 2
        self.name = f"node-{self.id[:12]}"
        self.options = options
        self.status = "created"
        self.attrs: dict[str, Any] = {}
        self.directory = directory / self.name
        self.directory.mkdir(parents=True)
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self.options.image}, {self.status}>"

    # -- what differs between programs -------------------------------------------------------------------------

    def _argv(self) -> list[str]:
        command = [part.replace("%h", self.id[:12]) for part in self.options.command]
        if not command:
            raise APIError(f"{self!r} was given no command, and there is no Dockerfile to look one up in")
        return _local(command)

    def _start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._argv(),
                cwd=self._home(),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a group of its own, so that all of it can be killed at once
            )

    def _is_running(self) -> bool:
        """Without reaping it: while its id can't be another's, its group can be killed safely."""
        if self._process is None:
            return False
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def _signal(self, number: signal.Signals) -> None:
        """To the first process, as in a container; but SIGKILL ends all of it, and returns when it has."""
        assert self._process is not None
        if number is signal.SIGKILL:
            self._end()
        else:
            os.kill(self._process.pid, number)

    def _end(self) -> None:
        if (process := self._process) is None:
            return
        family = {process.pid}
        with suppress(psutil.NoSuchProcess):
            family |= {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
        os.killpg(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, family)), f"{self!r} is gone")
        process.wait()
        self._process = None

    def _output(self) -> bytes:
        return (self.directory / "log").read_bytes()

    # -- the world as the process sees it ------------------------------------------------------------------------

    def _home(self) -> Path:
        return self.options.mounts.get("/app", self.directory)

    def _environment(self) -> dict[str, str]:
        """This machine's, without what steers Python and Celery here; paths of volumes are where these are."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CELERY_", "PYTHON"))}
        given = {key: str(self.options.mounts.get(value, value)) for key, value in self.options.environment.items()}
        return {**kept, **given}

    def _listens(self) -> bool:
        try:
            socket.create_connection((HOST, self._port), timeout=1).close()
        except OSError:
            return False
        return True

    # -- Docker's API ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._start()
        self.reload()

    def reload(self) -> None:
        self.status = "running" if self._is_running() else "exited"
        options = self.options
        name = f"{HOST}:{self._port}" if self._port else self.id[:12]
        listeners = [{"HostIp": HOST, "HostPort": str(self._port)}] if self._port else []
        self.attrs = {
            "Config": {
                "Hostname": name,
                "Env": [f"{key}={value}" for key, value in options.environment.items()],
                "Labels": options.labels,
            },
            "HostConfig": {"PortBindings": options.ports},
            "NetworkSettings": {
                "Networks": {options.network: {"IPAddress": HOST}},
                "Ports": dict.fromkeys(options.ports, listeners),
            },
        }

    def logs(self) -> bytes:
        return self._output()

    def kill(self, signal: str | int | None = None) -> None:
        if not self._is_running():
            raise APIError(f"{self!r} is not running")
        self._signal(_signal_of(signal or "SIGKILL"))

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        if self._is_running():
            self._signal(signal.SIGTERM)
            with suppress(AssertionError):
                wait_until(lambda: not self._is_running(), f"{self!r} stops", within=timeout)
        self._end()

    def restart(self, timeout: float = STOP_SECONDS) -> None:
        self.stop(timeout)
        self.start()

    def wait(self, timeout: float = STOP_SECONDS) -> None:
        wait_until(lambda: not self._is_running(), f"{self!r} ends", within=timeout)

    def remove(self, force: bool = False, **_: Any) -> None:
        if self._is_running() and not force:
            raise APIError(f"{self!r} is running: stop it first, or remove it with force=True")
        self._end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def exec_run(self, command: str | list[str], **_: Any) -> ExecResult:
        if command == _LISTENERS:
            return ExecResult(0, self._listeners().encode())
        parts = shlex.split(command) if isinstance(command, str) else command
        done = subprocess.run(
            _local(parts),
            cwd=self._home(),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return ExecResult(done.returncode, done.stdout)

    def _listeners(self) -> str:
        """In the form of /proc/net/tcp, under the port numbers that a container would have."""
        if not (self._port and self._listens()):
            return ""
        inside = [int(port.split("/")[0]) for port in self.options.ports]
        return "\n".join(f"0: 00000000:{port:04X} 00000000:0000 0A" for port in inside)

    def put_archive(self, path: str, data: io.BytesIO) -> None:
        with tarfile.open(fileobj=data) as archive:
            for member in archive:
                target = self.options.mounts[path] / member.name
                if (content := archive.extractfile(member)) is None:
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content.read())


class RedisContainer(Container):
    """A local `redis-server`, on the same port for as long as it is not removed."""

    def _argv(self) -> list[str]:
        binary = next(iter(find_servers().values()))
        place = ["--port", str(self._port), "--bind", HOST, "--dir", str(self.directory)]
        return [binary, *self.options.command[1:], *place]

    def _start(self) -> None:
        """Another may take the port between its choice and its use: then another port, if none was published yet."""
        tries = 1 if self._port else PORT_TRIES
        for _ in range(tries):
            self._port = self._port or _free_port()
            super()._start()
            wait_until(lambda: self._listens() or not self._is_running(), f"{self!r} listens")
            if self._is_running():
                return
            if tries > 1:
                self._end()
                self._port = 0
        raise APIError(f"no Redis started:\n{self._output().decode()[-2000:]}")


class RabbitContainer(Container):
    """A private RabbitMQ node, with the ports and data of its own that `RabbitNode` gives it."""

    _node: RabbitNode | None = None

    def _start(self) -> None:
        if self._node is None:
            self._node = RabbitNode()
        self._port = self._node.port
        self._node.start()

    def _is_running(self) -> bool:
        return self._node is not None and self._node.is_running

    def _signal(self, number: signal.Signals) -> None:
        assert self._node is not None
        if number is signal.SIGKILL:
            self._node.kill()
        elif number is signal.SIGTERM:
            self._node.stop()
        else:
            raise APIError(f"{self!r} takes SIGTERM and SIGKILL, not {number.name}")

    def _end(self) -> None:
        if self._node is not None:
            self._node.kill()

    def _output(self) -> bytes:
        if self._node is None:
            return b""
        return b"".join(path.read_bytes() for path in (self._node.directory / "log").glob("*.log"))

    def remove(self, force: bool = False, **options: Any) -> None:
        super().remove(force, **options)
        if self._node is not None:
            self._node.close()
            self._node = None


def _local(command: list[str]) -> list[str]:
    return [*_PROGRAMS.get(command[0], command[:1]), *command[1:]]


def _signal_of(name: str | int) -> signal.Signals:
    return signal.Signals[name] if isinstance(name, str) else signal.Signals(name)


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as found:
        return int(found.getsockname()[1])
