"""Consumers that are made to be killed: plain kombu programs that write down, outside of every Redis, what they did.

A line of the ledger is one append. `took` comes before the work on a message, `done` when its acknowledgement was
answered. A victim may be told to end itself by SIGKILL at the n-th moment of its exchanges with Redis: before a command
is sent, before its answer is read, or after.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any, NamedTuple

from kombu import Connection, Consumer, Exchange, Queue
from redis.connection import AbstractConnection

import celery_limits  # noqa: F401  (registers the transport)
from celery_limits.transport import member as membership

__all__ = ["CUT_OFF", "DONE", "TOOK", "Entry", "Ledger", "consume", "nursery"]

TOOK, DONE, CUT_OFF = "took", "done", "cut off"


class Entry(NamedTuple):
    what: str
    message: int
    pid: int


class Ledger:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def note(self, what: str, message: int = -1, pid: int = 0) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, (json.dumps([what, message, pid or os.getpid()]) + "\n").encode())
        finally:
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        if not self.path.exists():
            return []
        return [Entry(*json.loads(line)) for line in self.path.read_text().splitlines()]

    def taken(self) -> set[int]:
        return {entry.message for entry in self.entries() if entry.what == TOOK}


def nursery() -> Any:
    """Makes processes quickly: they are forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def consume(url: str, queues: list[str], ledger: str, prefetch: int, die_at: int | None, lease: float) -> None:
    """Consumes until it is killed, or told to end by SIGTERM."""
    notes, stopped = Ledger(ledger), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    if die_at is not None:
        _die_at_exchange(die_at)

    def on_message(message: Any) -> None:
        notes.note(TOOK, message.payload)
        message.ack()
        notes.note(DONE, message.payload)

    with Connection(url, transport_options={"limits_lease": lease}) as connection:
        channel = connection.channel()
        channel.basic_qos(0, prefetch, False)
        bound = [Queue(name, Exchange(""), routing_key=name) for name in queues]
        with Consumer(channel, bound, on_message=on_message, auto_declare=False):
            name = ""
            while not stopped.is_set():
                _turn(connection)
                for member in list(membership._members.values()):
                    if name and member.worker != name:  # a machine that is too busy: others have what this one had
                        notes.note(CUT_OFF)
                    name = member.worker


def _turn(connection: Any) -> None:
    try:
        connection.drain_events(timeout=0.1)
    except TimeoutError:
        pass
    except connection.connection_errors:
        pass


def _die_at_exchange(number: int) -> None:
    """Counts the moments of the consuming thread's script calls: before sending, before the answer is read, after."""
    thread, moments, calls = threading.get_ident(), itertools.count(1), set[int]()
    vars_of: Any = AbstractConnection
    send, read = vars_of.send_packed_command, vars_of.read_response

    def moment() -> None:
        if threading.get_ident() == thread and next(moments) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def send_packed_command(self: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
        if b"EVAL" in bytes(command[0][:50]):
            calls.add(id(self))
            moment()
        return send(self, command, *args, **kwargs)

    def read_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in calls:
            return read(self, *args, **kwargs)
        calls.discard(id(self))
        moment()
        answer = read(self, *args, **kwargs)
        moment()
        return answer

    vars_of.send_packed_command, vars_of.read_response = send_packed_command, read_response
