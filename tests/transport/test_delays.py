"""A message whose eta is far away waits in the store, and enters its queue when it is due."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from freezegun import freeze_time
from kombu import Connection
from redis import Redis

from celery_limits import Concurrency
from celery_limits.message.header import queue_mark
from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.transport.delays import delay_of
from tests.redis_server import RedisServer
from tests.store.actors import SECOND, leftovers
from tests.transport.quiet_world import World, ids

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def world(redis_server: RedisServer) -> Iterator[World]:
    world = World(redis_server)
    world.join()
    yield world
    assert audit(world.store) == []
    world.wind_up()
    assert [name for name in leftovers(world.store) if not name.startswith(("cancelled", "remembered"))] == []
    world.close()


ONE = Concurrency("{key}", 1)


@pytest.mark.parametrize("limited", [False, True])
def test_waits_in_the_store_until_it_is_due(world: World, limited: bool) -> None:
    task = world.task(*([Concurrency("k", 1)] if limited else []))
    sent = task.apply_async(countdown=60, task_id="t1")
    assert (world.queued(), world.delayed()) == ([], 1)
    world.sweep(58.5)
    assert world.delayed() == 1
    world.sweep(3)
    [message] = world.queued()
    assert (world.delayed(), ids([message])) == (0, [sent.id])
    due = datetime.fromisoformat(message["headers"]["eta"])
    assert abs(due.timestamp() * SECOND - world.clock.now) < 4 * SECOND  # it is what the publisher wrote
    world.client.delete(world.name)


@pytest.mark.parametrize("seconds", [0.0, 0.9, -5.0])
def test_what_is_due_soon_goes_through_its_queue(world: World, seconds: float) -> None:
    world.task().apply_async(eta=datetime.now(timezone.utc) + timedelta(seconds=seconds))
    assert (len(world.queued()), world.delayed()) == (1, 0)


def test_in_order_of_due_time_then_of_publishing(world: World) -> None:
    task, at = world.task(), datetime.fromtimestamp(world.clock.now / SECOND + 100, timezone.utc)
    names = [f"{second}-{n:03}" for n in range(30) for second in (3, 1, 2)]
    for name in names:
        task.apply_async(eta=at + timedelta(seconds=int(name[0])), task_id=name)
    assert world.sweep(110) >= 1
    assert ids(world.queued()) == sorted(names)


def test_many_at_once_are_spread_over_sweeps(world: World) -> None:
    task, at = world.task(), datetime.fromtimestamp(world.clock.now / SECOND + 100, timezone.utc)
    for n in range(1000):
        task.apply_async(eta=at, task_id=f"{n:04}")
    world.clock.pass_(101)
    outcome = world.store.sweep()
    assert outcome.after.more
    moved = len(world.queued())
    assert 10 <= moved <= 100
    assert world.sweep() >= 9
    assert ids(world.queued()) == [f"{n:04}" for n in range(1000)]


def test_the_next_sweep_is_when_the_first_is_due(world: World) -> None:
    world.task().apply_async(countdown=20)
    after = world.store.sweep().after
    assert [after.next_alarm] == world.due()
    world.sweep(21)


def test_priorities_are_kept(world: World) -> None:
    world.task().apply_async(countdown=60, priority=6)
    world.sweep(62)
    assert len(world.queued(f"{world.name}\x06\x166")) == 1


def test_a_plain_consumer_gets_what_is_due(world: World) -> None:
    world.task().apply_async(countdown=60, task_id="t1")
    world.sweep(62)
    with Connection(world.plain_url) as connection:
        message = connection.default_channel.basic_get(world.name)
        assert message is not None
        assert message.headers["id"] == "t1"
        message.ack()


def test_a_limited_one_gets_its_arrival_when_it_is_due(world: World) -> None:
    task = world.task(ONE)
    task.apply_async(kwargs={"key": "k"}, countdown=60, task_id="delayed")
    task.apply_async(kwargs={"key": "k"}, task_id="now")
    world.sweep(62)
    arrivals = {m["headers"]["id"]: m["headers"]["limits"]["arrival"] for m in world.queued()}
    assert int(arrivals["now"].partition("-")[0]) < int(arrivals["delayed"].partition("-")[0])


# -- who looks after them ----------------------------------------------------------------------------------------


def test_without_a_worker_it_goes_celerys_way(redis_server: RedisServer) -> None:
    world = World(redis_server)
    world.task().apply_async(countdown=60)
    assert (len(world.queued()), world.delayed()) == (1, 0)
    world.close()


def test_it_can_be_turned_off(redis_server: RedisServer) -> None:
    world = World(redis_server, limits_delay_in_store=False)
    world.join()
    world.task().apply_async(countdown=60)
    assert (len(world.queued()), world.delayed()) == (1, 0)
    world.close()


def test_a_worker_puts_what_it_has_fetched_into_the_store(world: World) -> None:
    """A plain producer has put it into the queue."""
    plain: Any = Celery("plain", broker=world.plain_url, set_as_current=False)
    plain.send_task("some.task", countdown=60, task_id="t1", queue=world.name)
    with world.app.connection_for_read() as connection:
        channel = connection.default_channel
        world.limits.store.beat("fetcher@host")
        [field, _, text] = channel.scripts.fetch_now("fetcher@host", "1", 1, channel._lists([world.name], set()))
        delay = delay_of(json.loads(text), world.name)
        assert delay is not None
        delays = [channel.scripts.delay_fetched(delay, world.name, "fetcher@host", field.decode()) for _ in range(2)]
    assert (delays, world.delayed(), world.queued()) == ([True, False], 1, [])
    assert not world.client.exists(f"{world.store.prefix}unacked:fetcher@host")
    world.limits.store.leave("fetcher@host")
    world.sweep(62)
    assert ids(world.queued()) == ["t1"]


# -- ending before it is due -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [(), (ONE,)])
def test_revoked_at_once(world: World, limits: Any) -> None:
    sent = world.task(*limits).apply_async(kwargs={"key": "k"}, countdown=60)
    assert "due" in str(world.limits.explain(sent.id))
    world.limits.cancel(sent.id)
    assert (world.delayed(), sent.state) == (0, "REVOKED")
    world.sweep(62)
    assert world.queued() == []


def test_revoked_before_it_is_published(world: World) -> None:
    """As a retry of a task that was revoked while it ran."""
    world.limits.cancel("t1")
    sent = world.task().apply_async(countdown=60, task_id="t1")
    assert world.delayed() == 0
    world.limits.outbox.work_off()
    assert sent.state == "REVOKED"


def test_purged_with_its_queue(world: World) -> None:
    task = world.task()
    sent, other = task.apply_async(countdown=60), task.apply_async(countdown=60, queue="other")
    assert world.limits.purge([world.name]) == 1
    assert (sent.state, other.state, world.delayed()) == ("REVOKED", "PENDING", 1)
    world.limits.cancel(other.id)


def test_stamped_ones_are_found(world: World) -> None:
    sent = world.task().s().apply_async(countdown=60, headers={"stamps": {"user": ["7"]}, "stamped_headers": ["user"]})
    assert world.limits.waiting_with_stamps({"user": "7"}) == [sent.id]
    world.limits.cancel(sent.id)


def test_published_again_by_a_publisher_that_heard_no_answer(world: World) -> None:
    """A limited message is known by its ticket."""
    task = world.task(ONE)
    with world.app.connection_for_write() as connection:
        channel = connection.default_channel
        task.apply_async(kwargs={"key": "k"}, countdown=60, task_id="t1")
        text = world.client.hgetall(f"{world.store.prefix}task:t1")
        [raw] = [json.loads(value) for name, value in text.items() if name.endswith(b":m")]
        channel._put(world.name, raw)
    assert (world.delayed(), world.queued()) == (1, [])
    world.sweep(62)
    assert len(world.queued()) == 1


# -- what can't be delayed ---------------------------------------------------------------------------------------


def raw(eta: Any, **more: Any) -> dict[str, Any]:
    headers = {"task": "some.task", "id": "t1", "eta": eta, **more}
    return {"body": "", "headers": headers, "properties": {}, "content-type": "application/json"}


@pytest.mark.parametrize(
    "message",
    [
        raw("tomorrow"),
        raw(12),
        raw("2100-01-01T00:00:00", id=None),
        raw("2100-01-01T00:00:00", id="a\nb"),
        raw("2100-01-01T00:00:00", id="x" * 300),
        raw("2100-01-01T00:00:00", limits={"v": 9}),
        raw("2100-01-01T00:00:00") | {"properties": {"priority": "high"}},
        raw(None),
        {"headers": {}, "properties": {}},
        {"headers": {"eta": "2100-01-01T00:00:00"}, "properties": {}},
        {"headers": None},
        [],
    ],
)
def test_an_unreadable_eta_is_left_to_the_worker(message: Any) -> None:
    assert delay_of(message, "q") is None


@pytest.mark.parametrize("eta", ["2100-01-01T00:00:00", "2100-01-01T00:00:00Z", "2100-01-01T02:00:00+02:00"])
def test_an_eta_without_a_zone_is_utc(eta: str) -> None:
    delay = delay_of(raw(eta), "q")
    assert delay is not None
    assert delay.due == (datetime(2100, 1, 1, tzinfo=timezone.utc) - EPOCH) // timedelta(microseconds=1)
    assert str(delay.ticket[1]).endswith(queue_mark("q"))


def test_protocol_1_has_it_in_the_body() -> None:
    body = json.dumps({"task": "some.task", "id": "t1", "eta": "2100-01-01T00:00:00", "args": []}).encode()
    message = {
        "body": base64.b64encode(body).decode(),
        "headers": {},
        "properties": {"body_encoding": "base64"},
        "content-type": "application/json",
    }
    delay = delay_of(message, "q")
    assert delay is not None
    assert delay.ticket[0] == "t1"


def test_by_the_publishers_clock(world: World) -> None:
    """The due time is the publisher's now and its countdown, exactly, where its clock and the server's agree."""
    eta = datetime.now(timezone.utc) + timedelta(seconds=90, microseconds=7)
    world.task().apply_async(eta=eta, task_id="t1")
    assert world.due() == [(eta - EPOCH) // timedelta(microseconds=1)]
    world.limits.cancel("t1")


@pytest.mark.parametrize("date", ["2099-05-05 10:00:00", "2001-05-05 10:00:00"])
def test_a_countdown_of_a_publisher_whose_clock_is_wrong(world: World, date: str) -> None:
    """It counts down from now. Those with one eta keep the order in which they were published."""
    before = world.server_time()
    with freeze_time(date):
        for task_id in ("t1", "t2"):
            world.task().apply_async(countdown=90, task_id=task_id)
    first, second = world.due()
    assert before + 88 * SECOND < first <= second <= world.server_time() + 90 * SECOND
    for task_id in ("t1", "t2"):
        world.limits.cancel(task_id)


@pytest.mark.parametrize("step", [5.0, 600.0, 30 * 24 * 3600.0])
def test_a_delay_goes_on_when_the_servers_clock_is_set_back(world: World, step: float) -> None:
    sender = world.clock.now
    world.delay("before", due=sender + 60 * SECOND, now=sender)
    world.sweep(1)
    world.clock.step_back(step)
    world.delay("at once", due=sender + 63 * SECOND, now=sender + 1 * SECOND)  # no sweep has seen the step yet
    world.sweep(1)
    world.delay("after", due=sender + 66 * SECOND, now=sender + 2 * SECOND)
    world.sweep(57)
    assert world.delayed() == 3
    world.sweep(2)
    assert world.client.lrange(world.name, 0, -1) == [b"before"]
    world.sweep(6)
    assert world.client.lrange(world.name, 0, -1) == [b"after", b"at once", b"before"]
    world.client.delete(world.name)


def test_a_worker_puts_back_what_entered_its_queue_early_since_the_servers_clock_was_set_ahead(world: World) -> None:
    sender = world.clock.now
    world.delay("t1", due=sender + 600 * SECOND, now=sender)
    world.sweep(3600)
    assert world.client.lpop(world.name) == b"t1"
    world.delay("t1", due=sender + 600 * SECOND, now=sender + 1 * SECOND)
    world.sweep(598)
    assert world.delayed() == 1
    world.sweep(2)
    assert world.client.lpop(world.name) == b"t1"


# -- the audit ---------------------------------------------------------------------------------------------------


def test_the_audit_lists_it_again(world: World) -> None:
    world.task().apply_async(countdown=60, task_id="t1")
    world.client.delete(f"{world.store.prefix}later")
    assert [finding.code for finding in audit(world.store)] == ["lost-delay"]
    audit(world.store, repair=True)
    assert world.delayed() == 1
    world.sweep(62)
    assert ids(world.queued()) == ["t1"]


def test_the_audit_strikes_an_entry_without_a_message(world: World) -> None:
    world.client.zadd(f"{world.store.prefix}later", {"0000000000000007|t1.n": 9e15})
    assert [finding.code for finding in audit(world.store, repair=True)] == ["stray-entry"]
    assert world.delayed() == 0


@pytest.mark.parametrize("damage", ["record", "message", "list"])
def test_a_damaged_one_does_not_stop_the_others(world: World, damage: str) -> None:
    task = world.task()
    task.apply_async(countdown=60, task_id="bad", queue="odd")
    task.apply_async(countdown=60, task_id="good")
    name = f"{world.store.prefix}task:bad"
    [nonce] = [field for field in world.client.hkeys(name) if b":" not in field]
    if damage == "record":
        world.client.hset(name, nonce, "nonsense")
    elif damage == "message":
        world.client.hdel(name, nonce + b":m")
    else:
        world.client.set("odd", "a string")
    world.sweep(62)
    assert ids(world.queued()) == ["good"]
    assert world.client.hlen(f"{world.store.prefix}aside") == 1
    world.client.delete(f"{world.store.prefix}aside")


def test_a_worker_that_may_not_write_to_the_queue_leaves_it_to_another(world: World) -> None:
    world.task().apply_async(countdown=60, task_id="t1")
    rules = [f"~{world.store.prefix}*", "+@all"]
    world.client.execute_command("ACL", "SETUSER", "narrow", "on", ">secret", "resetkeys", *rules)
    path = world.client.connection_pool.connection_kwargs["path"]
    with Redis(unix_socket_path=path, username="narrow", password="secret") as client:
        narrow = Store(client, world.name, clock=world.clock)
        world.clock.pass_(62)
        assert not narrow.sweep().after.more
    assert (world.delayed(), world.queued()) == (1, [])
    world.client.execute_command("ACL", "DELUSER", "narrow")
    world.sweep(2)
    assert ids(world.queued()) == ["t1"]
