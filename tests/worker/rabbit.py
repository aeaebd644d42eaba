"""What the RabbitMQ tests have in common: queues of both kinds, pairs of workers on them, and a look at the broker.

`Pair` keeps two workers for many tests, `Rabbit` sees queues from outside, `Holder` takes a key without any worker.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from kombu import Connection

from celery_limits.declare.chain import ConcurrencyLink
from celery_limits.message.envelope import unpack
from celery_limits.store.outcomes import Admitted, Claimed, Released
from tests.rabbit_node import RabbitNode
from tests.redis_server import RedisServer
from tests.waiting import DEADLINE, wait_until
from tests.worker.harness import Scene, Worker

__all__ = ["EXCHANGES", "KINDS", "Holder", "Pair", "Rabbit", "conf_of", "own_queue"]

KINDS = {"classic": {"x-max-priority": 10}, "quorum": {"x-queue-type": "quorum"}}
EXCHANGES = ("topic", "fanout")


def queues_of(kind: str) -> dict[str, Any]:
    """The queue of a kind, and two for each exchange that copies into both. Workers consume those on the left."""
    found: dict[str, Any] = {kind: {"exchange": kind, "binding_key": kind, "queue_arguments": KINDS[kind]}}
    for exchange in EXCHANGES:
        for side in ("left", "right"):
            how = {"exchange": f"{kind}-{exchange}", "exchange_type": exchange, "binding_key": "go.#"}
            found[f"{kind}-{exchange}-{side}"] = {**how, "queue_arguments": KINDS[kind]}
    return found


def conf_of(kind: str, node: RabbitNode, store: RedisServer) -> dict[str, Any]:
    return {
        "broker_url": node.url,
        "limits_store_url": store.url,
        "limits_namespace": kind,
        "limits_place_ttl": 1.0,
        "limits_revoke_ttl": 1.5,
        "limits_lease": 30.0,
        "limits_grant_timeout": 30.0,
        "task_queues": queues_of(kind),
        "task_default_queue": kind,
        "broker_connection_max_retries": None,
    }


class Pair:
    """Two workers on the queues of one kind, for as many tests as leave them alive."""

    def __init__(self, conf: dict[str, Any], directory: Path) -> None:
        self.conf, self._directory = conf, directory
        self._workers: list[Worker] = []
        self._count = 0

    def start(self) -> list[Worker]:
        """Both, ready; they may have served other tests before."""
        if not self._workers:
            self._workers = [self._launch(), self._launch()]
        return [worker.wait_ready() for worker in self._workers]

    def _launch(self) -> Worker:
        self._count += 1
        name = f"{self.conf['task_default_queue']}{self._count}"
        consumed = ",".join(queue for queue in self.conf["task_queues"] if not queue.endswith("-right"))
        return Worker(self.conf, self._directory, name, "-P", "prefork", "-c", "2", "-Q", consumed)

    def stand_still(self) -> None:
        """Until `go_on` nothing of the two happens; when this returns, every thread of theirs has stopped."""
        for worker in self._workers:
            worker.signal(signal.SIGSTOP)
            os.waitid(os.P_PID, worker.pid, os.WSTOPPED)

    def go_on(self) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGCONT)

    def tell_to_stop(self) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGCONT)
            worker.signal(signal.SIGTERM)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    @property
    def logs(self) -> str:
        return "\n".join(f"-- {worker.name}\n{worker.log[-6000:]}" for worker in self._workers)


class Rabbit:
    """One test's view of the broker: its queues, looked at from outside."""

    def __init__(self, node: RabbitNode, pair: Pair, scene: Scene) -> None:
        self.node, self.pair, self._scene = node, pair, scene

    def consume(self, queue: str) -> None:
        """Both workers consume it when this returns."""
        self._tell("add_consumer", queue, consumers=len(self.pair.start()))

    def leave_alone(self, queue: str) -> None:
        """Nobody consumes it any more when this returns."""
        self._tell("cancel_consumer", queue, consumers=0)

    def _tell(self, what: str, queue: str, consumers: int) -> None:
        """A worker replies before it does it, in the next turn of its event loop: the broker knows when it is done."""
        names = [worker.name for worker in self.pair.start()]
        command = getattr(self._scene.app.control, what)
        assert len(command(queue, destination=names, reply=True, timeout=DEADLINE)) == len(names)
        wait_until(lambda: self._declared(queue).consumer_count == consumers, f"{consumers} consume {queue!r}")

    def wait_for(self, count: int, queue: str) -> None:
        """Until so many messages wait there. One that was looked at and put back takes its time in a quorum queue."""
        wait_until(lambda: self._waiting_in(queue) == count, f"{count} messages are in {queue!r}")

    def _waiting_in(self, queue: str) -> int:
        return int(self._declared(queue).message_count)

    def _declared(self, queue: str) -> Any:
        """What the broker says of a queue: `message_count`, `consumer_count`."""
        with Connection(self.node.url) as connection:
            return connection.default_channel.queue_declare(queue, passive=True)

    def purge(self, queue: str) -> int:
        with Connection(self.node.url) as connection:
            return int(connection.default_channel.queue_purge(queue))

    def look(self, queue: str) -> Any:
        """The next message of a queue that no worker consumes, as it is on the wire. It goes back afterwards."""
        with Connection(self.node.url) as connection:
            return wait_until(lambda: connection.default_channel.basic_get(queue), f"a message is in {queue!r}")

    def publish(self, entry: Claimed) -> None:
        """What the claimer of an outbox entry does with it, before it settles."""
        envelope = unpack(entry.message)
        with Connection(self.node.url, transport_options={"confirm_publish": True}) as connection:
            connection.Producer().publish(
                envelope.body,
                routing_key=envelope.queue,
                headers=envelope.headers,
                content_type=envelope.content_type,
                content_encoding=envelope.content_encoding,
                **envelope.properties,
            )


def own_queue(scene: Scene, rabbit: Rabbit) -> dict[str, Any]:
    """Configuration for workers of one test alone, with a queue and a namespace that are called like it."""
    conf = {name: value for name, value in rabbit.pair.conf.items() if name != "limits_lease"}
    queue = {"exchange": scene.key, "binding_key": scene.key, "queue_arguments": KINDS[scene.queue]}
    return {**conf, "task_queues": {scene.key: queue}, "limits_namespace": scene.key}


class Holder:
    """Holds the key of a scene from the test itself, without a body or a worker."""

    def __init__(self, scene: Scene) -> None:
        self.store, self.name = scene.limits.store, f"holder-{scene.key}"
        self.store.beat(self.name)
        chain = (ConcurrencyLink(key=scene.key, limit=1),)
        outcome = self.store.admit(f"{self.name}.1", chain, self.name, delivery="1")
        assert isinstance(outcome, Admitted), outcome
        self._fence = outcome.fence

    def let_go(self) -> None:
        """The next one in line is granted; its message is in the outbox until somebody works that off."""
        assert isinstance(self.store.release(f"{self.name}.1", self.name, self._fence), Released)
        self.store.leave(self.name)
