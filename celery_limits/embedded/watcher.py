"""The watcher: a small process beside each embedded Redis that ends it when its last user is gone.

It promises that the server never outlives its users by more than a clean shutdown, however they ended, and
that no two servers ever have one directory's data open. It runs as a script, on the standard library alone,
so that it is small and starts fast; when one is needed is left to `celery_limits.embedded`.

    python -I -S watcher.py DIRECTORY SOCKET BINARY [REDIS OPTION ...]

Its standard output is a pipe to whoever started it, held open for as long as it lives: an end of file there
means that it is gone, and what came before says why (`BUSY`, or how the server ended). Its standard error is
the log, which it shares with the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import threading
import time

# In the directory. Each user holds the first one shared. The second is held by the watcher and, inherited, by
# the server itself: whoever finds it free may open the data, even after a watcher was killed.
USERS = "users.lock"
DATA = "data.lock"
LOG = "redis.log"
OLD_LOG = "redis.log.1"
BUSY = "busy"

# Seconds that a server may take to write its data out before it is killed.
_GRACE = 20.0
_PR_SET_PDEATHSIG = 1


def main(directory: str, socket: str, binary: str, *options: str) -> str:
    """Run the server until the last user is gone or it ends by itself; returns the reason to report."""
    os.umask(0o077)
    os.chdir(directory)
    users = open_private(USERS)
    data = open_private(DATA)
    try:
        fcntl.flock(data, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return BUSY
    server = _start(binary, options, data)
    signal.signal(signal.SIGTERM, lambda *_: _signal(server, signal.SIGTERM))
    threading.Thread(target=_stop_when_unused, args=(server, users), daemon=True).start()
    _, status = os.waitpid(server, 0)
    with contextlib.suppress(OSError):
        os.unlink(socket)
    return f"its server ended with status {os.waitstatus_to_exitcode(status)}"


def open_private(path: str, flags: int = os.O_RDWR) -> int:
    """Opens a file of ours, or makes it; never what a symbolic link leads to."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _start(binary: str, options: tuple[str, ...], data: int) -> int:
    watcher = os.getpid()
    server = os.fork()
    if server:
        return server
    try:
        _die_with(watcher)
        os.dup2(2, 1)
        os.set_inheritable(data, True)
        os.execv(binary, [binary, *options])
    except BaseException as error:
        os.write(2, f"could not run {binary}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _die_with(parent: int) -> None:
    """Ask Linux to end this process, cleanly, when its parent is killed; elsewhere there is no such thing."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # killed before we asked
        os._exit(0)


def _stop_when_unused(server: int, users: int) -> None:
    """Block until nobody shares the users' lock, then end the server. The kernel does the waiting.

    The lock is then held until this process ends, and a newcomer waits for it: it meets no server or a new
    one, never this one on its way out.
    """
    fcntl.flock(users, fcntl.LOCK_EX)
    _signal(server, signal.SIGTERM)
    _signal(server, signal.SIGCONT)  # a paused server could not hear the first
    time.sleep(_GRACE)
    _signal(server, signal.SIGKILL)


def _signal(server: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, number)


if __name__ == "__main__":
    # Nobody's child: whoever started the server must neither wait for its watcher nor leave it a zombie.
    if os.fork():
        os._exit(0)
    try:
        reason = main(*sys.argv[1:])
    except OSError as error:
        reason = str(error)
    with contextlib.suppress(OSError):  # whoever started it no longer listens
        os.write(1, reason.encode())
