"""An app on `limits+redis://` without a worker, and a store in the time of the test."""

from __future__ import annotations

import itertools
import json
from typing import Any

from celery import Celery

from celery_limits import Limits
from celery_limits.store import Store
from celery_limits.store.record import chain_fields, record_rest
from celery_limits.store.scripts import load
from tests.redis_server import RedisServer
from tests.store.actors import SECOND, Clock

__all__ = ["WORKER", "World", "ids"]

_names = itertools.count(1)
WORKER = "tester@host"


class World:
    """An app on `limits+redis://`, a store whose time the test owns, and no worker: all is the scripts' doing."""

    def __init__(self, server: RedisServer, **conf: Any) -> None:
        self.name = f"later{next(_names)}"
        self.app: Any = Celery(self.name, set_as_current=False)
        self.app.conf.update(
            broker_url=f"limits+redis+socket://{server.socket}",
            result_backend="cache+memory://",
            task_default_queue=self.name,
            limits_namespace=self.name,
            **conf,
        )
        self.limits, self.clock = Limits(self.app), Clock()
        self.client: Any = server.client()
        self.clock.now = int(self.client.time()[0]) * SECOND
        self.store = Store(self.client, self.name, clock=self.clock)
        self.plain_url = f"redis+socket://{server.socket}"

    def join(self) -> None:
        self.limits.store.beat(WORKER)

    def task(self, *limits: Any, **options: Any) -> Any:
        def body(*args: Any, **kwargs: Any) -> None: ...

        name = f"{self.name}.{next(_names)}"
        return self.app.task(body, name=name, limits=list(limits) or None, shared=False, **options)

    def queued(self, queue: str = "") -> list[Any]:
        """Its messages, those that come first, first."""
        return [json.loads(text) for text in reversed(self.client.lrange(queue or self.name, 0, -1))]

    def delayed(self) -> int:
        return int(self.client.zcard(f"{self.store.prefix}later"))

    def due(self) -> list[int]:
        """When the delayed ones are due, in the order in which they enter their queues."""
        return [int(due) for _, due in self.client.zrange(f"{self.store.prefix}later", 0, -1, withscores=True)]

    def server_time(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds) * SECOND + int(micros)

    def delay(self, task_id: str, *, due: int, now: int) -> None:
        """A message without limits, whose text is its task id, in the test's time; due and now by its sender."""
        with self.app.connection_for_write() as connection:
            scripts = connection.default_channel.scripts
            rest = record_rest(
                chain_fields(()).record, rank=0, delivery="", queue=self.name, until="", since=now, late=False, cut=None
            )
            ticket = (task_id, "n", rest)
            scripts._ask(
                load("delay"), self.clock(), due, now, self.name, self.name, task_id, "", "", *ticket, attempts=1
            )

    def sweep(self, seconds: float = 0.0) -> int:
        """How many sweeps it took."""
        self.clock.pass_(seconds)
        count = 1
        while self.store.sweep().after.more:
            count += 1
        return count

    def wind_up(self) -> None:
        self.limits.store.leave(WORKER)

    def close(self) -> None:
        """Nothing is left on the server, and no connection to it."""
        self.client.flushall()
        self.app.pool.force_close_all()
        clients: tuple[Any, ...] = (self.client, self.limits.store.client)
        for client in clients:
            client.close()
            client.connection_pool.disconnect()


def ids(messages: list[Any]) -> list[str]:
    return [message["headers"]["id"] for message in messages]
