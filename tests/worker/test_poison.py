"""Messages that can't be read: each fails its own task, or is set aside, and no worker ends for it.

What Celery itself can't process is Celery's own affair on other brokers; our transport sets it aside.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import chord, group, states
from kombu import Connection

from celery_limits.transport.refused import TRIES
from tests.rabbit_node import RabbitNode
from tests.redis_server import RedisServer
from tests.waiting import wait_until
from tests.worker.harness import Scene, Sent, Worker
from tests.worker.raw import envelope, protocol_1, protocol_2, send_raw

SITES = ("limits+redis", "redis", "rabbitmq")
POOLS = ("prefork", "threads", "gevent")
Make = Callable[[Scene], dict[str, Any]]


def call(scene: Scene, name: str) -> dict[str, str]:
    return {"key": scene.key, "name": name}


def priority(value: Any) -> Make:
    return lambda scene: protocol_2(
        scene.queue, "early.quick", [], call(scene, "poison"), properties={"priority": value}
    )


def header(**headers: Any) -> Make:
    return lambda scene: protocol_2(scene.queue, "early.quick", [], call(scene, "poison"), headers=headers)


def body(*parts: Any) -> Make:
    return lambda scene: protocol_2(scene.queue, "early.quick", *parts)


def old(args: Any, kwargs: Any, **fields: Any) -> Make:
    return lambda scene: protocol_1(scene.queue, "early.quick", args, kwargs, fields=fields)


ON_REDIS: dict[str, Make] = {
    "priority-text": priority("high"),
    "priority-object": priority({}),
    "priority-list": priority([]),
    "priority-nan": priority(float("nan")),
    "priority-infinity": priority(float("inf")),
}
ANYWHERE: dict[str, Make] = {
    "args-number": body(5, {}, {}),
    "kwargs-number": body([], 5, {}),
    "args-object": body({"key": 1}, {}, {}),
    "embed-number": lambda scene: protocol_2(scene.queue, "early.quick", [], call(scene, "poison"), 5),
    "chord-number": lambda scene: protocol_2(
        scene.queue, "early.quick", 5, {}, {"chord": 5, "errbacks": 7, "chain": [3]}
    ),
    "timelimit-number": header(timelimit=5),
    "timelimit-text": header(timelimit=["a", "b"]),
    "timelimit-object": header(timelimit={"a": 1, "b": 2}),
    "shadow-list": header(shadow=["x"]),
    "stamps-number": header(stamped_headers=5),
    "id-number": header(id=5),
    "limits-number": header(limits=5),
    "old-args-number": old(5, {}),
    "old-args-object": old({"key": 1}, {}),
    "old-timelimit": old([], {}, timelimit=7),
}


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, scene: Scene, broker: RedisServer) -> Scene:
    """A broker, with the limits in the Redis of the session; the queue is called like the test."""
    if request.param == "rabbitmq":
        node: RabbitNode = request.getfixturevalue("node")
        scene.configure(broker_url=node.url, limits_store_url=broker.url)
    else:
        url = f"{request.param}+socket://{broker.socket}"
        store = {} if request.param.startswith("limits") else {"limits_store_url": broker.url}
        scene.configure(broker_url=url, **store)
    return scene


@pytest.mark.own_broker
@pytest.mark.parametrize("pool", POOLS)
def test_a_message_that_cannot_be_read_fails_its_own_task_alone(site: Scene, pool: str) -> None:
    worker = site.start(pool, concurrency=2)
    made = {**ANYWHERE, **({} if "amqp" in site.conf["broker_url"] else ON_REDIS)}
    poison = {name: make(site) for name, make in made.items()}
    before = site.send("early.quick", "before")
    send_raw(site, *poison.values())
    after = site.send("early.quick", "after")
    before.get()
    after.get()
    for name, message in poison.items():
        _failed(site, worker, name, message)
    assert worker.is_running
    assert {*site.stage.names()} == {"before", "after"}
    left_unacknowledged(site)


def _failed(site: Scene, worker: Worker, name: str, message: dict[str, Any]) -> None:
    task_id = message["headers"].get("id") or json.loads(_text(message))["id"]
    worker.wait_for_log(f"[{task_id}] can't run: ")
    assert worker.log.count(f"[{task_id}] can't run: ") == 1, name
    if isinstance(task_id, str):
        Sent(site.app, task_id).wait(states.FAILURE)


def _text(message: dict[str, Any]) -> bytes:
    return base64.b64decode(message["body"])


def left_unacknowledged(site: Scene) -> None:
    """The scene itself looks into Redis. RabbitMQ says how many it has handed out."""
    if "amqp" in site.conf["broker_url"]:
        with Connection(site.conf["broker_url"]) as connection:
            declared = connection.default_channel.queue_declare(site.queue, passive=True)
            assert declared.message_count == 0
    site.wait_quiet()


def test_a_chord_hears_of_a_part_that_cannot_be_read(scene: Scene, broker: RedisServer) -> None:
    """As of any part that fails: its body does not run, and its result is a failure."""
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}")
    early, plain = scene.app.tasks["early.quick"], scene.app.tasks["plain"]
    header = group(early.si(**call(scene, "good")), early.si(**call(scene, "bad")).set(priority="high"))
    result = chord(header.set(queue=scene.queue))(plain.si(**call(scene, "body")).set(queue=scene.queue))
    scene.start("prefork")
    Sent(scene.app, result.id).wait(states.FAILURE)
    assert "body" not in scene.stage.names()


@pytest.mark.own_broker
def test_callbacks_that_are_none_are_not_called(scene: Scene) -> None:
    """Celery would call each character of a text."""
    worker = scene.start("prefork")
    message = protocol_2(scene.queue, "early.quick", [], call(scene, "poison"), {"errbacks": "plain"})
    send_raw(scene, message)
    Sent(scene.app, message["headers"]["id"]).wait(states.FAILURE)
    scene.send("early.quick", "after").get()
    assert "unregistered" not in worker.log


@pytest.mark.own_broker
def test_a_body_must_not_say_what_its_task_holds(scene: Scene) -> None:
    """Celery merges the third part of the body into the request by which the body's process releases."""
    worker = scene.start("prefork")
    holder = scene.send("early", "holder")
    scene.wait_started("holder")
    (entry,) = scene.limits.status(scene.key).holders
    fence = scene.limits.store.held_by(entry.worker)[entry.ticket]
    forged = {"limits": {"ticket": entry.ticket, "fence": fence}, "limits_worker": entry.worker}
    message = protocol_2(scene.queue, "plain", [], call(scene, "forged"), forged)
    send_raw(scene, message)
    worker.wait_for_log("which only the worker may")
    assert [one.ticket for one in scene.limits.status(scene.key).holders] == [entry.ticket]
    scene.stage.open_all()
    holder.get()
    scene.send("early.quick", "next").get()


# -- what Celery can't process -----------------------------------------------------------------------------------------


def plain(scene: Scene, **headers: Any) -> dict[str, Any]:
    return protocol_2(scene.queue, "plain", [], call(scene, "poison"), headers=headers)


CELERYS: dict[str, Callable[[Scene], Any]] = {
    "timelimit-number": lambda scene: plain(scene, timelimit=5),
    "timelimit-text": lambda scene: plain(scene, timelimit=["a", "b"]),
    "id-list": lambda scene: plain(scene, id=[]),
    "task-list": lambda scene: plain(scene, task=[]),
    "shadow-list": lambda scene: plain(scene, shadow=["x"]),
    "stamps-number": lambda scene: plain(scene, stamped_headers=5),
    "embed-number": lambda scene: protocol_2(scene.queue, "plain", [], call(scene, "poison"), 5),
    "body-number": lambda scene: envelope(scene.queue, {"id": "b", "task": "plain"}, 5),
    "body-pair": lambda scene: envelope(scene.queue, {"id": "b", "task": "plain"}, [[], {}]),
    "old-without-id": lambda scene: envelope(scene.queue, {}, {"task": "plain", "args": [], "kwargs": {}}),
}
NO_MESSAGES: dict[str, Callable[[Scene], Any]] = {
    "not-json": lambda _: b"{not json",
    "not-utf-8": lambda _: b"\xff\xfe",
    "nested": lambda _: b"[" * 100_000,
    "number": lambda _: 5,
    "list": lambda _: [1, 2],
    "null": lambda _: None,
    "empty": lambda _: {},
    "no-delivery-tag": lambda scene: {**plain(scene), "properties": {}},
    "properties-list": lambda scene: {**plain(scene), "properties": []},
    "delivery-info-list": lambda scene: envelope(scene.queue, {}, [], {"delivery_info": ["x"]}),
    "headers-list": lambda scene: envelope(scene.queue, ["x"], []),
    "unknown-encoding": lambda scene: envelope(scene.queue, {}, [], {"body_encoding": "rot13"}),
    "broken-base64": lambda scene: {**plain(scene), "body": "abc"},
    "typed-value": lambda _: b'{"__type__": "datetime", "__value__": 5}',
}


def aside(scene: Scene) -> dict[str, Any]:
    client: Any = scene.limits.store.client
    found = client.hgetall(f"{scene.limits.store.prefix}aside")
    return {name.decode(): json.loads(entry) for name, entry in found.items()}


def drop_aside(scene: Scene) -> None:
    client: Any = scene.limits.store.client
    client.delete(f"{scene.limits.store.prefix}aside")


@pytest.fixture
def ours(scene: Scene, broker: RedisServer) -> Scene:
    scene.configure(broker_url=f"limits+redis+socket://{broker.socket}")
    return scene


@pytest.mark.own_broker
@pytest.mark.parametrize("pool", POOLS)
def test_what_celery_cannot_process_is_set_aside(ours: Scene, pool: str) -> None:
    worker = ours.start(pool, concurrency=1)
    made = {name: make(ours) for name, make in {**CELERYS, **NO_MESSAGES}.items()}
    ours.send("plain", "before").get()
    send_raw(ours, *made.values())
    wait_until(lambda: len(aside(ours)) == len(made), f"{len(made)} are set aside, not {sorted(aside(ours))}")
    assert ours.send("plain", "after").get() == "after"
    assert worker.is_running
    assert worker.log.count("is set aside") == len(made)
    assert worker.log.count("failed, requeued") == len(CELERYS) * (TRIES - 1)
    kept = [entry["message"].encode("utf-8", "surrogateescape") for entry in aside(ours).values()]
    for name, message in made.items():
        if name in CELERYS:
            assert message["properties"]["delivery_tag"].encode() in b"".join(kept), name
        else:
            assert (message if isinstance(message, bytes) else json.dumps(message).encode()) in kept, name
    drop_aside(ours)
    ours.wait_quiet()


def test_one_that_celery_cannot_start_later_is_set_aside_too(ours: Scene) -> None:
    """It waits for a place of the pool, or for its time: then no delivery is under way when it fails."""
    worker = ours.start("prefork", concurrency=1)
    holder = ours.send("free", "holder")
    ours.wait_started("holder")
    send_raw(ours, plain(ours, timelimit=5))
    worker.wait_for_log("received", times=2)
    soon = plain(ours, timelimit=6, eta="2020-01-01T00:00:00+00:00")
    send_raw(ours, soon)
    ours.stage.open_all()
    holder.get()
    wait_until(lambda: len(aside(ours)) == 2, "both are set aside")
    assert ours.send("plain", "after").get() == "after"
    assert worker.is_running
    drop_aside(ours)


def test_one_whose_workers_are_killed_is_not_set_aside(ours: Scene) -> None:
    """Deliveries count only when their processing fails here."""
    ours.configure(broker_url=ours.conf["broker_url"], limits_lease=2.0)
    sent = ours.send("free.late", "victim")
    for times in range(1, TRIES + 2):
        worker = ours.start("prefork", concurrency=1)
        ours.wait_started("victim", times=times, within=30.0)
        worker.kill()
    ours.start("prefork", concurrency=1)
    ours.stage.open_all()
    sent.wait(states.SUCCESS, within=30.0)
    assert aside(ours) == {}
