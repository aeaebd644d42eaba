"""A transport connects by the parameters of the plain URL, and other threads do not notice."""

from __future__ import annotations

import threading

import pytest
from kombu import Connection

import celery_limits  # noqa: F401  (registers the transports)


@pytest.mark.parametrize("url", ["limits+redis://localhost:1/0", "limits+amqp://localhost:1//"])
def test_a_thread_that_connects_does_not_change_the_connection_of_others(url: str) -> None:
    connection = Connection(url)
    transport = connection.transport
    inside, seen = threading.Event(), threading.Event()

    def connect() -> None:
        with transport.plainly():
            with transport.plainly():
                pass
            assert transport.client is not connection
            inside.set()
            assert seen.wait(20)

    thread = threading.Thread(target=connect)
    thread.start()
    assert inside.wait(20)
    others = transport.client
    seen.set()
    thread.join()
    assert others is connection
    assert transport.client is connection
