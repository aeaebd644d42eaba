"""Where a chaos run takes place: one Redis for everything, RabbitMQ beside it, or a Redis behind a sentinel.

A site knows its servers, how publisher and workers reach them, and what is left in its broker. How often what is broken
there is for the plan to say.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.rabbit_node import RabbitNode
from tests.redis_server import RedisServer
from tests.server_clock import SetClockServer, is_possible
from tests.store.cutting_proxy import CuttingProxy
from tests.worker.sentinels import NAME, Watched

__all__ = ["SITES", "OnRabbit", "OnRedis", "OnSentinel"]

LASTING = ("limits:", "_kombu.binding", "unacked_mutex")
"""What is bound to which exchange stays; a lock of kombu's whose owner was killed goes by itself in five minutes."""


PATIENT = {"connect_retries_timeout": 120.0}
"""Seconds for which a publisher that has no connection waits for one, a body that retries among them. By itself kombu
waits for `broker_connection_timeout`, four of them, whatever the retry policy says; and Celery drops a task that can't
publish its retry."""


class OnRedis:
    """Broker and store in one, append-only, each write synced. Every worker reaches it through a wire of its own."""

    def __init__(self) -> None:
        server = SetClockServer if is_possible() else RedisServer
        self.redis = server(appendonly="yes", appendfsync="always")

    def start(self) -> None:
        self.redis.start()

    def close(self) -> None:
        self.redis.close()

    def wire(self, path: Path) -> CuttingProxy | None:
        return CuttingProxy(self.redis.socket, str(path))

    def conf(self, wire: CuttingProxy | None = None) -> dict[str, Any]:
        url = f"limits+redis+socket://{wire.path if wire else self.redis.socket}"
        return {"broker_url": url, "broker_transport_options": PATIENT}

    def left(self) -> list[str]:
        with self.redis.client() as client:
            names = [name.decode() for name in client.scan_iter(count=1000)]
        return [f"broker: {name}" for name in names if not name.startswith(LASTING)]

    @property
    def logs(self) -> dict[str, Path]:
        """By name, what its servers have said."""
        return {"redis": self.redis.directory / "log.txt"}

    def mend(self) -> None:
        self.redis.resume()


class OnRabbit(OnRedis):
    """RabbitMQ is the broker; the wires are to the store."""

    def __init__(self) -> None:
        super().__init__()
        self.rabbit = RabbitNode()

    def start(self) -> None:
        super().start()
        self.rabbit.start(within=120)

    def close(self) -> None:
        self.rabbit.close()
        super().close()

    def conf(self, wire: CuttingProxy | None = None) -> dict[str, Any]:
        """A publisher that is not told that the broker has stored a message can't know whether it survives."""
        store = f"unix://{wire.path if wire else self.redis.socket}"
        options = {"confirm_publish": True, **PATIENT}
        return {"broker_url": self.rabbit.url, "limits_store_url": store, "broker_transport_options": options}

    @property
    def logs(self) -> dict[str, Path]:
        return {**super().logs, "rabbit": self.rabbit.directory / "log.txt"}

    def left(self) -> list[str]:
        """Of the queue of the tasks; others are of workers, and go with them."""
        found = [line.split() for line in self.rabbit.control("list_queues", "name", "messages").splitlines()]
        return [f"broker: {row[1]} in {row[0]}" for row in found if row[:1] == ["chaos"] and row[1] != "0"]


class OnSentinel:
    """Two servers and a sentinel. What a primary takes with it that its replica had not got is Redis's own loss, and so
    is what is written to a second primary: there is neither."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.watched = Watched()

    def start(self) -> None:
        self._stack.enter_context(self.watched)

    def close(self) -> None:
        self._stack.close()

    def wire(self, path: Path) -> CuttingProxy | None:
        return None

    def conf(self, wire: CuttingProxy | None = None) -> dict[str, Any]:
        url = f"limits+sentinel://127.0.0.1:{self.watched.port}"
        return {"broker_url": url, "broker_transport_options": {"master_name": NAME, **PATIENT}}

    def left(self) -> list[str]:
        with self.watched.primary.client() as client:
            names = [name.decode() for name in client.scan_iter(count=1000)]
        return [f"broker: {name}" for name in names if not name.startswith(LASTING)]

    @property
    def logs(self) -> dict[str, Path]:
        return self.watched.logs

    def mend(self) -> None:
        """Nothing is ever left broken."""


SITES: dict[str, type[OnRedis] | type[OnSentinel]] = {
    "redis": OnRedis,
    "rabbitmq": OnRabbit,
    "sentinel": OnSentinel,
}
