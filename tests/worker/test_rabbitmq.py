"""On RabbitMQ, with the store in a Redis: parked messages go back through the outbox, published with confirm.

Two workers serve the tests of a kind of queue, classic or quorum; a test that ends workers has its own. The bodies'
ledger says what ran. After each test the store is empty, the audit finds nothing, and no message is in any queue.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import states
from kombu import Connection
from kombu.message import Message

from celery_limits import Concurrency, RateLimit
from celery_limits.declare.chain import ConcurrencyLink
from celery_limits.message.envelope import pack
from celery_limits.message.header import Header
from celery_limits.store.outcomes import Claimed, Parked
from tests.rabbit_node import RabbitNode
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import Scene
from tests.worker.lines import Line
from tests.worker.rabbit import EXCHANGES, KINDS, Holder, Pair, Rabbit, conf_of, own_queue

pytestmark = pytest.mark.own_broker

LEASE = 4.0
RECONNECTED = 30.0
RESTARTED = 40.0
CLAIM = 0.2
"""Seconds that a claim lasts whose claimer dies."""
CONNECTED = "Connected to amqp"


@pytest.fixture(scope="module")
def pairs(node: RabbitNode, app_and_conf: tuple[Any, dict[str, Any]], broker: RedisServer, stages: Path) -> Any:
    found = {kind: Pair({**app_and_conf[1], **conf_of(kind, node, broker)}, stages) for kind in KINDS}
    yield found
    for pair in found.values():
        pair.tell_to_stop()
    for pair in found.values():
        pair.stop()


@pytest.fixture(params=KINDS)
def rabbit(request: pytest.FixtureRequest, scene: Scene, node: RabbitNode, pairs: dict[str, Pair]) -> Iterator[Rabbit]:
    """Turns `scene` to RabbitMQ, with the two workers of a kind."""
    pair = pairs[request.param]
    scene.configure(**pair.conf)
    scene.queue = request.param
    rabbit = Rabbit(node, pair, scene)
    with Connection(node.url) as connection:
        for queue in scene.app.amqp.queues.values():
            queue(connection.default_channel).declare()
            queue(connection.default_channel).purge()
    pair.start()
    yield rabbit
    if getattr(request.node, "worker_test_failed", False):
        scene.stage.open_all()
        print(pair.logs)
        pair.tell_to_stop()
        pair.stop()
        return
    scene.wait_quiet()
    for name in pair.conf["task_queues"]:
        rabbit.wait_for(0, name)


@pytest.fixture(params=["early", "late"])
def acks(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- the flow ----------------------------------------------------------------------------------------------------


def test_a_chain_runs_everything_once_and_never_over(scene: Scene, rabbit: Rabbit, acks: str) -> None:
    scene.sizes[scene.key] = 2
    limits = [Concurrency(f"{scene.key}:first", 3), RateLimit(f"{scene.key}:rate", "50/s"), Concurrency(scene.key, 2)]
    sent = [scene.send(f"{acks}.quick", f"n{i}", limits=limits) for i in range(24)]
    for call in sent:
        call.get()
    assert sorted(scene.stage.names()) == sorted(f"n{i}" for i in range(24))


def test_in_turn_and_by_priority(scene: Scene, rabbit: Rabbit, acks: str) -> None:
    line = Line(scene, acks)
    urgent = scene.send(acks, "urgent", priority=9)
    scene.wait_parked(3)
    scene.stage.open("first")
    scene.wait_started("urgent")
    scene.stage.open_all()
    for call in (line.first, urgent, line.second, line.third):
        call.get()
    assert list(scene.stage.names()) == ["first", "urgent", "second", "third"]


@pytest.mark.parametrize("rabbit", ["classic"], indirect=True)
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_in_other_pools(scene: Scene, rabbit: Rabbit, pool: str) -> None:
    """There the body, the lease's thread and the event loop all may work off the outbox, over one connection."""
    scene.configure(**own_queue(scene, rabbit))
    scene.queue = scene.key
    scene.start(pool)
    line = Line(scene, "late")
    scene.stage.open("first")
    line.one_goes_on()
    sent = [scene.send("late.quick", f"n{i}") for i in range(16)]
    for call in sent:
        call.get()
    assert len(scene.stage.starts()) == 19


# -- what goes back, and where to --------------------------------------------------------------------------------

WIRE: dict[str, Any] = {
    "priority": 7,
    "reply_to": "answers",
    "correlation_id": "the-tenth-of-its-kind",
    "message_id": "m-1",
    "app_id": "shop",
    "type": "order",
    "user_id": "guest",
    "timestamp": 1_700_000_000,
    "expiration": 90.001,
    "headers": {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
        "baggage": "tenant=42;ttl=9, note=%C3%A9t%C3%A9",
        "custom": {"nested": [1, 2.5, None, True, -(2**40)], "text": "za\u017c\u00f3\u0142\u0107"},
        "when": datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        "blob": b"\x00\xff\xfe",
    },
}


@pytest.mark.parametrize(("exchange", "compression"), list(zip(EXCHANGES, (None, "zlib"), strict=True)))
def test_it_goes_back_unchanged_to_the_one_queue_it_came_from(
    scene: Scene, rabbit: Rabbit, exchange: str, compression: str | None
) -> None:
    """The exchange has put a copy into a second queue, which nobody consumes: that one is what it looked like."""
    left, right = (f"{scene.queue}-{exchange}-{side}" for side in ("left", "right"))
    holder = Holder(scene)
    through: dict[str, Any] = {
        "queue": None,
        "exchange": f"{scene.queue}-{exchange}",
        "routing_key": "go.on",
        "compression": compression,
    }
    sent = scene.send("early.quick", "it", "\u017c\u00f3\u0142\u0107", **through, **WIRE)
    scene.wait_parked()
    rabbit.leave_alone(left)
    holder.let_go()

    back, original = rabbit.look(left), rabbit.look(right)
    assert back.body == original.body
    theirs, ours = (dict(message.properties.pop("application_headers")) for message in (original, back))
    assert back.properties == original.properties
    walked, before = ours.pop("limits"), theirs.pop("limits")
    assert ours == theirs
    assert (walked["ticket"], walked["links"]) == (before["ticket"], before["links"])
    assert (walked["at"], walked["held"]) == (1, [scene.key])
    rabbit.wait_for(1, right)

    rabbit.consume(left)
    assert sent.get() == "\u017c\u00f3\u0142\u0107"
    assert len(scene.stage.starts()) == 1
    assert rabbit.purge(right) == 1


@pytest.mark.parametrize("rabbit", ["classic"], indirect=True)
def test_each_copy_of_a_fanout_runs_as_it_would_without_limits(scene: Scene, rabbit: Rabbit) -> None:
    right = f"{scene.queue}-fanout-right"
    rabbit.consume(right)
    try:
        scene.send("early", "it", queue=None, exchange=f"{scene.queue}-fanout", routing_key="go.on")
        scene.wait_started("it")
        scene.send("plain", "a task that passes behind both copies").get()
        scene.stage.open_all()
        scene.wait_started("it", times=2)
    finally:
        rabbit.leave_alone(right)


def test_a_queue_that_is_gone_loses_nothing(scene: Scene, node: RabbitNode, pairs: dict[str, Pair]) -> None:
    """The broker would confirm a message that it can't route; it stays in the outbox until there is such a queue."""
    scene.configure(**{**pairs["classic"].conf, "limits_namespace": scene.key, "task_queues": None})
    holder, queue, links = Holder(scene), f"{scene.key}-gone", (ConcurrencyLink(key=scene.key, limit=1),)
    header = Header(ticket="it.1", links=links)
    message = Message(body=b"[[], {}, {}]", content_type="application/json", content_encoding="utf-8")
    packed, cut = pack(message, queue, header)
    store, outbox = scene.limits.store, scene.limits.outbox
    assert isinstance(store.admit("it.1", links, holder.name, delivery="2", message=packed, cut=cut), Parked)
    holder.let_go()
    claimed = store.claim()
    assert outbox._finish_all(claimed) == ([], [])
    with Connection(node.url) as connection:
        connection.default_channel.queue_declare(queue)
        assert outbox._finish_all(claimed) == (list(claimed), [])
        assert connection.default_channel.queue_delete(queue) == 1
    store.settle(claimed)
    store.settle(store.cancel("it").ended)
    store.listen(1)  # there is no worker to hear the bell


# -- a crash at every step of the outbox -------------------------------------------------------------------------

BOTH = pytest.mark.parametrize(("rabbit", "acks"), [("classic", "early"), ("quorum", "late")], indirect=True)


class Crash:
    """A task parked behind a holder, workers that stand still, and a test that works off the outbox and dies."""

    def __init__(self, scene: Scene, rabbit: Rabbit, task: str) -> None:
        self.scene, self.rabbit = scene, rabbit
        holder = Holder(scene)
        self.sent = scene.send(task, "it")
        scene.wait_parked()
        rabbit.pair.stand_still()
        holder.let_go()

    def claim(self) -> Claimed:
        store = self.scene.limits.store
        (entry,) = wait_until(lambda: store.claim(settle_within=CLAIM), "the entry can be claimed")
        return entry

    def others_go_on(self) -> None:
        self.rabbit.pair.go_on()

    def ran_once(self) -> None:
        scene = self.scene
        self.sent.get()
        scene.send("plain", "a task that passes after it").get()
        scene.wait_quiet()
        assert len(scene.stage.starts("it")) == 1


def test_a_forked_child_does_not_wait_for_its_parent(scene: Scene) -> None:
    """A pool forks whenever a child must be replaced, also while the parent's thread works off the outbox."""
    lock = scene.limits.outbox._lock
    with lock:
        if (child := os.fork()) == 0:
            os._exit(0 if scene.limits.outbox._lock.acquire(timeout=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@BOTH
def test_claimed_and_died(scene: Scene, rabbit: Rabbit, acks: str) -> None:
    crash = Crash(scene, rabbit, f"{acks}.quick")
    crash.claim()
    crash.others_go_on()
    crash.ran_once()


@BOTH
def test_published_and_died_before_it_settled(scene: Scene, rabbit: Rabbit, acks: str) -> None:
    """Both copies are in the queue when the first is picked up; while it runs, the second must not."""
    crash = Crash(scene, rabbit, acks)
    rabbit.publish(crash.claim())
    rabbit.publish(crash.claim())
    crash.others_go_on()
    scene.wait_started("it")
    scene.send("plain", "a task that passes behind both copies").get()
    rabbit.wait_for(0, scene.queue)
    scene.stage.open("it")
    crash.ran_once()


@BOTH
def test_published_again_when_it_has_run(scene: Scene, rabbit: Rabbit, acks: str) -> None:
    """The claimer was only slow: its copy, and its settling, come when all is over."""
    crash = Crash(scene, rabbit, f"{acks}.quick")
    slow = crash.claim()
    rabbit.publish(crash.claim())
    crash.others_go_on()
    scene.wait_ended("it")
    rabbit.publish(slow)
    scene.limits.store.settle([slow])
    crash.ran_once()


# -- ended while it waits ----------------------------------------------------------------------------------------


def test_revoked_while_parked(scene: Scene, rabbit: Rabbit, acks: str) -> None:
    line = Line(scene, acks)
    scene.app.control.revoke(line.second.id)
    line.second.wait(states.REVOKED)
    scene.stage.open_all()
    line.third.get()
    line.first.get()
    assert list(scene.stage.names()) == ["first", "third"]


def test_revoked_between_outbox_and_queue(scene: Scene, rabbit: Rabbit) -> None:
    """The message is published already, but not picked up: the copy that comes is refused."""
    crash = Crash(scene, rabbit, "late.quick")
    rabbit.publish(crash.claim())
    scene.app.control.revoke(crash.sent.id)
    crash.others_go_on()
    crash.sent.wait(states.REVOKED)
    scene.send("plain", "a task that passes after it").get()
    assert not scene.stage.starts("it")


def test_expired_while_parked(scene: Scene, rabbit: Rabbit, acks: str) -> None:
    first = scene.send(acks, "first")
    scene.wait_started("first")
    second = scene.send(acks, "second", expires=0.5)
    scene.wait_parked()
    second.wait(states.REVOKED)
    third = scene.send(acks, "third")
    scene.stage.open_all()
    third.get()
    first.get()
    assert list(scene.stage.names()) == ["first", "third"]


# -- the broker, or the worker, goes -----------------------------------------------------------------------------


def test_connections_lost_while_a_body_runs(scene: Scene, rabbit: Rabbit, acks: str) -> None:
    """What the broker delivers again is the spare of the one that runs, and is dropped when that ends."""
    line = Line(scene, acks)
    workers = rabbit.pair.start()
    before = [worker.log.count(CONNECTED) for worker in workers]
    rabbit.node.close_connections()
    for worker, times in zip(workers, before, strict=True):  # or it comes when the store has forgotten that it ran
        worker.wait_for_log(CONNECTED, times + 1)
    if acks == "late":
        wait_until(lambda: has_spare(scene, line.first.id), "the message that came again is kept as a spare")
    scene.stage.open("first")
    line.first.get()
    line.one_goes_on(within=RECONNECTED)
    assert sorted(scene.stage.names()) == ["first", "second", "third"]


@pytest.mark.parametrize("rabbit", ["classic"], indirect=True)
def test_the_prefetch_count_is_restored_by_who_reads_from_the_connection(scene: Scene, rabbit: Rabbit) -> None:
    """Celery lowers it when a connection is lost, and raises it with what is acknowledged then, in whichever thread of
    the pool that is. The broker answers that; and if the event loop reads the answer, that thread waits for ever."""
    scene.configure(**own_queue(scene, rabbit), worker_log_format="%(threadName)s: %(message)s")
    scene.queue = scene.key
    worker = scene.start("threads", "-l", "debug")
    first = scene.send("early", "first", key="1")
    scene.wait_started("first")
    connected, asked = worker.log.count(CONNECTED), "MainThread: basic.qos: prefetch_count"
    rabbit.node.close_connections()
    worker.wait_for_log(CONNECTED, connected + 1)
    before = worker.log.count(asked)
    second = scene.send("early", "second", key="2")
    scene.stage.open_all()
    second.get()
    worker.wait_for_log("Prefetch count has been restored")
    first.get()
    assert worker.log.count("basic.qos: prefetch_count") == worker.log.count(asked) > before


def has_spare(scene: Scene, task_id: str) -> bool:
    return any(found == task_id for found, _ in scene.limits.store.messages())


@pytest.mark.long
@pytest.mark.parametrize("rabbit", ["classic"], indirect=True)
def test_the_broker_restarts_while_bodies_run(scene: Scene, rabbit: Rabbit) -> None:
    """Those in line are in the store. What must go back to the broker waits in the outbox until it is up again."""
    line = Line(scene, "early")
    rabbit.node.stop()
    scene.stage.open("first")
    scene.wait_ended("first")
    rabbit.node.start()
    line.first.get()
    line.one_goes_on(within=RESTARTED)
    assert sorted(scene.stage.names()) == ["first", "second", "third"]


@pytest.mark.parametrize("rabbit", ["quorum"], indirect=True)
def test_a_killed_worker_s_task_runs_elsewhere_under_the_limit(scene: Scene, rabbit: Rabbit) -> None:
    """The broker delivers it again at once, when the store does not know yet that its worker is dead."""
    scene.configure(**own_queue(scene, rabbit), limits_lease=LEASE)
    scene.queue = scene.key
    goes, stays = scene.launch("prefork"), scene.launch("prefork")
    goes.wait_ready()
    stays.wait_ready()
    line = Line(scene, "late")
    (victim,) = [worker for worker in (goes, stays) if worker.name == scene.stage.starts("first")[0].more["worker"]]
    victim.signal(signal.SIGKILL)
    victim.wait_gone()
    scene.wait_started("first", times=2, within=RECONNECTED)
    scene.stage.open_all()
    for call in (line.first, line.second, line.third):
        call.get()
    assert sorted(scene.stage.names()) == ["first", "first", "second", "third"]
