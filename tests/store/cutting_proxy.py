"""A proxy before a Redis server that cuts connections where a test says: before a request goes on, or after its answer.

The second is the case that matters: the script has run, and its caller can't know. Everything else passes untouched.
A test may also hold an answer back for a while, cut every connection at once, or keep all out until it says otherwise.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["CuttingProxy", "cutting_proxy"]

_CHUNK = 1 << 16
# The first bytes of a script call. What a client says when it connects is no request of ours.
_SCRIPT_CALL = re.compile(rb"\*\d+\r\n\$\d+\r\nEVAL")


class CuttingProxy:
    """`plan` is worked off call by call: "before", "after", "hold" (the answer, until `hand_on`) or "pass"; when it is
    empty all calls pass.

    `about`, where it is set, is in those calls that the plan is for; such as the name of one script.
    """

    def __init__(self, server_socket: str, path: str) -> None:
        self.path = path
        self.plan: list[str] = []
        self.about = b""
        self.cuts = 0
        self._shut = False
        self._flows = threading.Event()
        self._flows.set()
        self._held = threading.Event()
        self._open: list[_Connection] = []
        self._lock = threading.Lock()
        self._server_socket = server_socket
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    connection = None if self._shut else self._connect(client)
                    if connection is None:
                        client.close()
                        continue
                    self._open = [each for each in self._open if not each.ended]
                    self._open.append(connection)
                connection.start()

    def _connect(self, client: socket.socket) -> _Connection | None:
        """None while there is no server: then there is nothing behind this proxy either."""
        with suppress(OSError):
            return _Connection(self, client, self._server_socket)
        return None

    def wait_to_flow(self) -> None:
        self._flows.wait()

    def wait_to_hand_on(self) -> None:
        self._held.wait()

    def hand_on(self) -> None:
        """The answers that are held back."""
        self._held.set()

    def next_step(self) -> str:
        return self.plan.pop(0) if self.plan else "pass"

    def cut_all(self) -> None:
        """Ends every connection there is; new ones may be made at once."""
        with self._lock:
            for connection in self._open:
                connection.end()
            self._open.clear()

    def shut(self, *, silently: bool = False) -> None:
        """Ends every connection, and every new one too, until `reopen`; or, silently, lets nothing through any more."""
        if silently:
            self._flows.clear()
            return
        self._shut = True
        self.cut_all()

    def reopen(self) -> None:
        self._shut = False
        self._flows.set()

    def close(self) -> None:
        self._flows.set()
        self._held.set()
        self._listener.close()


class _Connection:
    """Two threads, one for each direction, so that long requests and answers flow."""

    def __init__(self, proxy: CuttingProxy, client: socket.socket, server_socket: str) -> None:
        self._proxy, self._client = proxy, client
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(server_socket)
        self._step = "pass"
        self.ended = False

    def start(self) -> None:
        for pump in (self._requests, self._answers):
            threading.Thread(target=pump, daemon=True).start()

    def _requests(self) -> None:
        with suppress(OSError):
            while chunk := self._client.recv(_CHUNK):
                self._proxy.wait_to_flow()
                if _SCRIPT_CALL.match(chunk) and self._proxy.about in chunk:
                    self._step = self._proxy.next_step()
                if self._step == "before":
                    return self._cut()
                self._server.sendall(chunk)
        return self.end()

    def _answers(self) -> None:
        with suppress(OSError):
            while chunk := self._server.recv(_CHUNK):
                if self._step == "after":
                    return self._cut()
                if self._step == "hold":
                    self._proxy.wait_to_hand_on()
                self._client.sendall(chunk)
        return self.end()

    def _cut(self) -> None:
        self._proxy.cuts += 1
        self.end()

    def end(self) -> None:
        self.ended = True
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting_proxy(server_socket: str) -> Iterator[CuttingProxy]:
    directory = tempfile.mkdtemp(prefix="limits-", dir="/tmp")
    proxy = CuttingProxy(server_socket, os.path.join(directory, "proxy.sock"))
    try:
        yield proxy
    finally:
        proxy.close()
        shutil.rmtree(directory)
