"""Whether a place is this user's alone: the directory of an embedded Redis, its socket, and who answers there.

Anyone who owns the directory, may write to it, or has put a socket there could read and change every message. Whoever
finds such a place gets an `EmbeddedError` that says what to do, before a byte is sent. The directories above it are
left to their owner.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from celery_limits.errors import LimitError

from . import watcher

__all__ = ["EmbeddedError", "check_directory", "check_peer", "check_socket", "find_socket"]

# Bytes. Linux allows 107 and macOS 103; Redis cuts a longer name without a word.
MAX_SOCKET = 100
SOCKET = "redis.sock"
# In a directory whose own name is too long for a socket: where the socket is, and the lock of whoever decides that.
ELSEWHERE = "socket.path"
ELSEWHERE_LOCK = "socket.lock"
# Seconds that a server on its way out may take to close its files.
_ENDING = 1.0


class EmbeddedError(LimitError):
    """An embedded Redis that can't be started or reached. The message says what to do; data is kept."""


def _whose(uid: int) -> str:
    return f"belongs to uid {uid}, and this process runs as uid {os.geteuid()}"


def check_directory(directory: Path) -> None:
    """Raises unless only this user may create files in it, and none of those that we open is a symbolic link."""
    found = os.stat(directory)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{directory} is not a directory")
    if found.st_uid != os.geteuid():
        raise EmbeddedError(
            f"can't keep an embedded Redis in {directory}: it {_whose(found.st_uid)}, so its owner could read and "
            "change every message. Run as that user, or name a directory of your own."
        )
    if found.st_mode & 0o022:
        raise EmbeddedError(
            f"can't keep an embedded Redis in {directory}: other users may write to it (mode "
            f"{stat.S_IMODE(found.st_mode):04o}) and put their own server there. Run: chmod 700 {directory}"
        )
    for name in (watcher.USERS, watcher.DATA, watcher.LOG, watcher.OLD_LOG, ELSEWHERE, ELSEWHERE_LOCK):
        if (directory / name).is_symlink():
            raise EmbeddedError(
                f"{directory / name} is a symbolic link, and an embedded Redis would write where it leads. Remove it."
            )


def check_socket(address: Path) -> bool:
    """Whether there is a socket, which may be stale; raises unless it is this user's."""
    try:
        found = os.lstat(address)
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(found.st_mode):
        raise EmbeddedError(f"{address} is not a socket, so no embedded Redis can be reached there. Remove it.")
    if found.st_uid != os.geteuid():
        raise EmbeddedError(f"the socket {address} {_whose(found.st_uid)}. Remove it, if nobody needs that server.")
    return True


def check_peer(connection: socket.socket, address: Path) -> None:
    """Raises unless the process that answers runs as this user, where the system tells, and others can't reach it."""
    uid = _peer_uid(connection)
    if uid is not None and uid != os.geteuid():
        raise EmbeddedError(
            f"the server at {address} runs as uid {uid}, and this process as uid {os.geteuid()}: it is not this user's "
            "embedded Redis. End that server, or name another directory."
        )
    mode = stat.S_IMODE(os.lstat(address).st_mode)
    if mode & 0o077:
        raise EmbeddedError(f"the socket {address} is open to other users (mode {mode:04o}). Run: chmod 700 {address}")


def _peer_uid(connection: socket.socket) -> int | None:
    """Of the process that has called `listen`; None where this can't be asked."""
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return int(uid)
    with suppress(AttributeError, OSError):  # macOS and the BSDs
        uid_found, gid_found = ctypes.c_uint32(), ctypes.c_uint32()
        if not ctypes.CDLL(None).getpeereid(connection.fileno(), ctypes.byref(uid_found), ctypes.byref(gid_found)):
            return int(uid_found.value)
    return None


# -- where the socket is ---------------------------------------------------------------------------------------------


def find_socket(directory: Path) -> Path:
    """In the directory; where its name is too long for that, in a private one of a random name, which is noted there.

    A name in `/tmp` that others could guess, they could take first. Decided by one process at a time.
    """
    inside = directory / SOCKET
    if len(os.fsencode(inside)) <= MAX_SOCKET:
        return inside
    with _locked(directory / ELSEWHERE_LOCK):
        noted = _noted(directory)
        if noted is not None and noted.parent.exists():
            _check_private(noted.parent, directory)
            return noted
        if noted is not None and _is_held(directory / watcher.DATA):
            raise EmbeddedError(
                f"the embedded Redis in {directory} has its socket in {noted.parent}, which is gone, or which this "
                "process can't see (a container, a private /tmp). End its users, or name a directory of less than "
                f"{MAX_SOCKET - len(SOCKET) - 1} bytes."
            )
        return _note_new(directory)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = watcher.open_private(str(path))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _is_held(path: Path) -> bool:
    """Whether it stays held: a process that is ending closes one file after the other."""
    lock = watcher.open_private(str(path))
    deadline = time.monotonic() + _ENDING
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return True
                time.sleep(0.01)
            else:
                return False
    finally:
        os.close(lock)


def _noted(directory: Path) -> Path | None:
    try:
        file = os.open(directory / ELSEWHERE, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with open(file, "rb") as noted:
        name = os.fsdecode(noted.read(4096))
    return Path(name) if name.startswith("/") else None


def _note_new(directory: Path) -> Path:
    # Not in $TMPDIR, which may differ between processes that must find each other, and may be long itself.
    address = Path(tempfile.mkdtemp(prefix="celery-limits-", dir="/tmp"), SOCKET)
    draft = f"{directory / ELSEWHERE}.new"
    with open(watcher.open_private(draft), "wb") as file:
        file.truncate()
        file.write(os.fsencode(address))
    os.replace(draft, directory / ELSEWHERE)
    return address


def _check_private(place: Path, directory: Path) -> None:
    found = os.lstat(place)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise EmbeddedError(
            f"the embedded Redis in {directory} has its socket in {place}, which is not a directory of this user's "
            f"alone. End its users, then remove {directory / ELSEWHERE}."
        )
