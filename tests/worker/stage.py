"""Where the bodies of a test act: a ledger that they write and latches that they wait at, in a directory of the test's.

Both are plain files, apart from every Redis, so they can be believed when the store is wrong, paused or gone.
A line of the ledger is one append, so the order of its lines is the order in which things happened, across processes.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import struct
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

__all__ = ["Entry", "Stage", "is_alive", "unread"]

PATIENCE = 90.0
"""Seconds that a body waits at a latch: longer than any test waits for anything."""


@dataclass(frozen=True)
class Entry:
    """One line: `what` happened to the body called `name` of a test, when, and in which process."""

    what: str
    name: str
    key: str
    at: float
    pid: int
    task_id: str
    more: dict[str, Any] = field(default_factory=dict)


def is_alive(pid: int) -> bool:
    """Whether anything of the process can still act; one that only waits to be reaped can't."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def unread(child: int) -> bool:
    """Whether a process of the pool has been sent something that it has not read."""
    for found in Path(f"/proc/{child}/fd").iterdir():
        if stat.S_ISFIFO(found.stat().st_mode):
            pipe = os.open(found, os.O_RDONLY | os.O_NONBLOCK)
            try:
                if struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]:
                    return True
            finally:
                os.close(pipe)
    return False


class Stage:
    """The ledger and the latches in one directory. The same class serves the test and the bodies."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._ledger = self.directory / "ledger"

    # -- the ledger ------------------------------------------------------------------------------------------

    def note(self, what: str, name: str, key: str = "", task_id: str = "", **more: Any) -> None:
        line = json.dumps([what, name, key, time.monotonic(), os.getpid(), task_id, more]) + "\n"
        descriptor = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        try:
            text = self._ledger.read_text()
        except FileNotFoundError:
            return []
        return [Entry(*json.loads(line)) for line in text.splitlines()]

    def starts(self, name: str = "") -> list[Entry]:
        """The starts of one body, or of all, in their order."""
        return [entry for entry in self.entries() if entry.what == "start" and name in ("", entry.name)]

    def ends(self, name: str = "") -> list[Entry]:
        return [entry for entry in self.entries() if entry.what == "end" and name in ("", entry.name)]

    def running(self, key: str) -> list[Entry]:
        """Bodies of a key that have started, not ended, and whose process lives."""
        opened: dict[str, Entry] = {}  # names and ids may be anything that a forger has sent
        for entry in self.entries():
            if entry.key == key and entry.what == "start":
                opened[repr((entry.name, entry.task_id, entry.pid))] = entry
            elif entry.key == key and entry.what == "end":
                opened.pop(repr((entry.name, entry.task_id, entry.pid)), None)
        return [entry for entry in opened.values() if is_alive(entry.pid)]

    def peaks(self) -> dict[str, int]:
        """The most bodies of each key that ran at once, as they saw it themselves."""
        found: dict[str, int] = {}
        for entry in self.entries():
            if entry.what == "beside":
                found[entry.key] = max(found.get(entry.key, 0), entry.more["bodies"])
        return found

    def enter(self, name: str, key: str, task_id: str, **more: Any) -> None:
        """A body starts. It says so before it looks who else runs: of two that overlap, one sees the other."""
        self.note("start", name, key, task_id, **more)
        self.note("beside", name, key, task_id, bodies=len(self.running(key)))

    # -- latches ---------------------------------------------------------------------------------------------

    def open(self, *names: str) -> None:
        for name in names:
            self._latch(name).touch()

    def close(self, *names: str) -> None:
        for name in names:
            self._latch(name).unlink()

    def open_all(self) -> None:
        self.open("*")

    def pass_through(self, name: str, sleep: Callable[[float], Any] = time.sleep) -> None:
        """What a body does: waits until the test has opened the latch of this name, or all."""
        latches = (self._latch(name), self._latch("*"))
        opened = f"the latch {name!r} opens"
        wait_until(lambda: any(latch.exists() for latch in latches), opened, within=PATIENCE, sleep=sleep)

    def _latch(self, name: str) -> Path:
        return self.directory / f"latch-{'all' if name == '*' else name}"

    def names(self) -> Iterator[str]:
        """Who started, in order."""
        return (entry.name for entry in self.starts())
