"""A publish on a full key goes straight into its line, and what sits in a queue all the same is sifted out of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from celery_limits import Concurrency, FloatingConcurrency, Limits, RateLimit
from celery_limits.app.stamp import links_of
from celery_limits.store.outcomes import Admitted
from celery_limits.transport import early_park as lines
from celery_limits.transport import member as membership
from tests.redis_server import RedisServer
from tests.waiting import wait_until

_names = itertools.count(1)
WORKER = "tester"


class World:
    """An app on `limits+redis://`, a lease taken by hand, and no worker: what happens is the scripts' doing."""

    def __init__(self, server: RedisServer, **options: Any) -> None:
        self.name = f"w{next(_names)}"
        self.app: Any = Celery(self.name, set_as_current=False)
        self.app.conf.update(
            broker_url=f"limits+redis+socket://{server.socket}",
            result_backend="cache+memory://",
            task_default_queue=self.name,
            limits_namespace=self.name,
            broker_transport_options=options,
        )
        self.limits = Limits(self.app)
        self.store = self.limits.store
        self.store.beat(WORKER)
        self.fences: dict[str, int] = {}
        self.client: Any = server.client()
        self.prefix = options.get("global_keyprefix", "")

    def task(self, *limits: Any, **options: Any) -> Any:
        def body(key: str = "") -> None: ...

        name = f"{self.name}.{next(_names)}"
        return self.app.task(body, name=name, limits=list(limits) or None, shared=False, **options)

    def hold(self, task: Any, **kwargs: Any) -> None:
        """The slot is taken, by a ticket that this test has made."""
        links = links_of(self.app, task.name, (), kwargs)
        assert links
        ticket = f"holder{next(_names)}.n"
        outcome = self.store.admit(ticket, links, WORKER, delivery=ticket)
        assert isinstance(outcome, Admitted)
        self.fences[ticket] = outcome.fence

    def queued(self) -> int:
        return int(self.client.llen(f"{self.prefix}{self.name}"))

    def waiting(self, key: str) -> int:
        return self.limits.status(key).waiting

    def let_go(self, key: str) -> None:
        """Whoever holds the key has ended."""
        [holder] = self.limits.status(key).holders
        self.store.release(holder.ticket, WORKER, self.fences[holder.ticket])

    def take(self) -> list[Any]:
        """What a consumer is given, who drops it all: so each lets the next one in line have its slot."""
        with self.app.connection_for_read() as connection, connection.channel() as channel:
            found = []
            while (message := channel.basic_get(self.name)) is not None:
                message.ack()
                found.append(message)
            return found


@pytest.fixture(scope="module", autouse=True)
def no_lease_left(redis_server: RedisServer) -> Iterator[None]:
    """Each world has a namespace of its own, and so a lease for what is fetched there."""
    yield
    members = list(membership._members.values())
    for member in members:
        member.lease.stopped.set()
    for member in members:
        member.lease.stop()
        membership.disown(member.lease)


@pytest.fixture
def world(redis_server: RedisServer) -> Iterator[World]:
    world = World(redis_server)
    yield world
    world.client.flushall()


ONE = Concurrency("{key}", 1)


def test_a_full_key_never_fills_the_queue(world: World) -> None:
    task = world.task(ONE)
    world.hold(task, key="full")
    for _ in range(500):
        task.delay(key="full")
    assert (world.queued(), world.waiting("full")) == (0, 500)
    task.delay(key="free")
    assert world.queued() == 1
    [message] = world.take()
    assert message.headers["kwargsrepr"] == "{'key': 'free'}"


def test_with_room_it_goes_into_the_queue_and_takes_no_slot(world: World) -> None:
    task = world.task(ONE)
    task.delay(key="a")
    task.delay(key="a")
    assert (world.queued(), world.waiting("a"), world.limits.status("a").holders) == (2, 0, ())


def test_a_task_with_an_eta_is_in_no_line_before_its_time(world: World) -> None:
    task = world.task(ONE)
    world.hold(task, key="full")
    sent = task.apply_async(kwargs={"key": "full"}, countdown=3600)
    assert (world.queued(), world.waiting("full")) == (0, 0)
    assert [story.state for story in world.limits.explain(sent.id).tickets] == ["delayed"]


@pytest.mark.parametrize(
    "written", ["2030-01-02T03:04:05+00:00", "2030-01-02T03:04:05Z", "2030-01-02T05:04:05+02:00", "2030-01-02T03:04:05"]
)
def test_an_expiry_is_read_however_its_publisher_has_written_it(written: str) -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    assert lines._until(written) == lines._until(moment) == f"{int(moment.timestamp())}000000"


def test_it_expires_in_the_line(world: World) -> None:
    task = world.task(ONE)
    world.hold(task, key="full")
    soon = datetime.now(timezone.utc) + timedelta(seconds=0.3)
    first = task.apply_async(kwargs={"key": "full"}, expires=soon)
    second = task.apply_async(kwargs={"key": "full"}, expires=3600)

    def expired() -> bool:
        world.store.sweep()
        return world.waiting("full") == 1

    wait_until(expired, "the first has expired")
    assert world.limits.explain(second.id).tickets
    assert [ended.ticket.rpartition(".")[0] for ended in world.store.claim(10)] == [first.id]


def test_it_is_revoked_in_the_line(world: World) -> None:
    task = world.task(ONE)
    world.hold(task, key="full")
    first, second = task.delay(key="full"), task.delay(key="full")
    world.limits.cancel(first.id)
    assert world.waiting("full") == 1
    assert first.state == "REVOKED"
    assert second.state == "PENDING"


def test_a_revoked_task_that_is_published_again_goes_through_the_gate(world: World) -> None:
    """Which refuses it, and tells: a line must not keep what will never run."""
    task = world.task(ONE)
    world.hold(task, key="full")
    world.limits.cancel("doomed")
    task.apply_async(kwargs={"key": "full"}, task_id="doomed")
    assert (world.queued(), world.waiting("full")) == (1, 0)


def test_who_does_not_wait_is_discarded_at_the_gate(world: World) -> None:
    """A worker tells its result, so it goes through the queue."""
    task = world.task(Concurrency("{key}", 1, on_full="discard"))
    world.hold(task, key="full")
    task.delay(key="full")
    assert (world.queued(), world.waiting("full")) == (1, 0)


def test_a_line_is_no_longer_than_it_may_be(world: World) -> None:
    task = world.task(Concurrency("{key}", 1, max_waiting=2))
    world.hold(task, key="full")
    for _ in range(4):
        task.delay(key="full")
    assert (world.queued(), world.waiting("full")) == (2, 2)


def test_a_paused_key_is_waited_for(world: World) -> None:
    task = world.task(ONE)
    world.limits.pause("a")
    task.delay(key="a")
    assert (world.queued(), world.waiting("a")) == (0, 1)
    world.limits.resume("a")
    assert (len(world.take()), world.waiting("a")) == (1, 0)


def test_a_resized_key_counts_as_it_is_now(world: World) -> None:
    task = world.task(ONE)
    world.hold(task, key="a")
    world.limits.resize("a", 2)
    task.delay(key="a")
    assert (world.queued(), world.waiting("a")) == (1, 0)
    world.limits.resize("a", 1)
    task.delay(key="a")
    assert (world.queued(), world.waiting("a")) == (1, 1)


def test_a_rate_as_the_first_link(world: World) -> None:
    """The one that passes pays at the gate; while there is none to be had, newcomers stand in line."""
    task = world.task(RateLimit("api", "1/h"))
    world.hold(task)
    first, second = task.delay(), task.delay()
    assert (world.queued(), world.waiting("api")) == (0, 2)
    world.client.zrem(f"{world.store.prefix}rates", "api")  # as after an hour
    world.limits.resize("api", "1/h", burst=2)
    assert [message.headers["id"] for message in world.take()] == [first.id, second.id]


def test_a_floating_limit_as_the_first_link(world: World) -> None:
    task = world.task(FloatingConcurrency("{key}", default=1, refresh="tests.worker.sizes:size_of", every=3600))
    world.hold(task, key="a")
    task.delay(key="a")
    assert (world.queued(), world.waiting("a")) == (0, 1)


def test_lower_ranks_stand_first_and_a_rank_out_of_range_counts_as_the_last(world: World) -> None:
    task = world.task(ONE)
    world.hold(task, key="full")
    sent = {priority: task.apply_async(kwargs={"key": "full"}, priority=priority).id for priority in (9, 0, 300, 5)}
    assert world.waiting("full") == 4
    world.let_go("full")
    assert [message.headers["id"] for message in world.take()] == [sent[priority] for priority in (0, 5, 9, 300)]


def test_what_comes_from_the_line_carries_what_it_holds(world: World) -> None:
    """And is otherwise, byte for byte, what was published."""
    task = world.task(ONE)
    world.hold(task, key="full")
    sent = task.delay(key="full")
    world.let_go("full")
    with world.app.connection_for_read() as connection, connection.channel() as channel:
        message = channel.basic_get(world.name)
        assert message.headers["id"] == sent.id
        assert not message.headers.get("redelivered")
        assert (message.headers["limits"]["at"], message.headers["limits"]["held"]) == (1, ["full"])
        assert message.headers["retries"] == 0
        message.ack()  # dropped before it was admitted: its slot is free again
    assert world.limits.status("full").holders == ()


def test_with_a_keyprefix(redis_server: RedisServer) -> None:
    """On a server of its own: consumers of other tests in this process still renew their leases."""
    with RedisServer(redis_server.binary) as server:
        world = World(server, global_keyprefix="shop.")
        task = world.task(ONE)
        world.hold(task, key="full")
        task.delay(key="full")
        task.delay(key="free")
        assert (world.queued(), world.waiting("full"), len(world.take())) == (1, 1, 1)
        assert all(name.startswith(b"shop.") for name in world.client.scan_iter("*"))


def test_a_purge_takes_those_in_line_too_and_leaves_what_runs(world: World) -> None:
    task = world.task(ONE)
    world.hold(task, key="full")
    world.hold(task, key="other")
    for _ in range(3):
        task.delay(key="full")
    for _ in range(2):
        task.delay(key="other")
    task.apply_async(kwargs={"key": "free"}, priority=9)
    world.let_go("full")  # so that one of them is granted
    assert world.app.control.purge() == 6
    assert (world.queued(), world.waiting("full"), world.waiting("other"), world.take()) == (0, 0, 0, [])
    assert len(world.limits.status("other").holders) == 1
    assert world.limits.status("full").holders == ()
    assert world.limits.audit() == []


def test_the_size_of_a_queue_is_what_may_be_fetched(world: World) -> None:
    task = world.task(ONE)
    world.hold(task, key="full")
    task.delay(key="full")
    task.delay(key="free")
    world.let_go("full")
    with world.app.connection_for_read() as connection, connection.channel() as channel:
        assert channel.queue_declare(world.name, passive=True).message_count == 2


def test_sifting(world: World) -> None:
    """The key filled after they were published: those that are fetched while others wait stand in line, in their order,
    without a way through the worker. A task without limits, and one on a free key, come through."""
    task, plain = world.task(ONE), world.task()
    sent = [task.delay(key="full") for _ in range(30)]
    plain.delay()
    task.delay(key="free")
    assert world.queued() == 32
    world.hold(task, key="full")
    sent.append(task.delay(key="full"))
    assert (world.queued(), world.waiting("full")) == (32, 1)
    got: list[Any] = []
    with world.app.connection_for_read() as connection, connection.channel() as channel:
        channel.sift()
        consumer = world.app.amqp.TaskConsumer(channel, on_message=got.append)
        with consumer:
            wait_until(lambda: _turn(connection, got, 2), "two come through")
        assert [message.headers["task"] for message in got] == [plain.name, task.name]
        assert (world.queued(), world.waiting("full")) == (0, 31)
        for message in got:
            message.ack()
    world.let_go("full")
    assert [message.headers["id"] for message in world.take()] == [one.id for one in sent]


SIFTED = [
    [ONE],
    [Concurrency("{key}", 3, weight=3, max_waiting=50), Concurrency("all", 7), RateLimit("api", "100/m", burst=5)],
    [Concurrency("{key}", 1), RateLimit("api", "0.7/s", cost=2), RateLimit("rare", "0.001/h")],
    [FloatingConcurrency("{key}", default=1, refresh="tests.worker.sizes:size_of", every=2.5, weight=1, max_waiting=9)],
    [FloatingConcurrency("{key}", default=1, refresh="tests.worker.sizes:size_of", every=60), Concurrency("é ☃", 9)],
    [RateLimit("{key}", "7/h", burst=2, cost=2), Concurrency("{key}'s", 1)],
    [Concurrency("{key}", 1), RateLimit("daily", "1000/d"), RateLimit("weekly", "5000/w", burst=3)],
]


@pytest.mark.parametrize("chain", SIFTED, ids=str)
def test_a_sifted_one_stands_there_as_one_that_was_published_into_the_line(world: World, chain: list[Any]) -> None:
    """The script reads the header by itself: what it writes must be what the publisher's side writes."""
    task = world.task(*chain)
    sifted = task.apply_async(kwargs={"key": "full"}, priority=3)
    assert world.queued() + int(world.client.llen(f"{world.name}\x06\x163")) == 1
    world.hold(task, key="full")
    published = task.apply_async(kwargs={"key": "full"}, priority=3)
    assert world.waiting("full") == 1
    with world.app.connection_for_read() as connection, connection.channel() as channel:
        channel.sift()
        got: list[Any] = []
        with world.app.amqp.TaskConsumer(channel, on_message=got.append):
            wait_until(lambda: _turn(connection, got, 1) or world.waiting("full") == 2, "it stands in line")
        assert not got
    ours, theirs = (_record(world, result.id) for result in (sifted, published))
    assert ours == theirs


def _record(world: World, task_id: str) -> list[str]:
    """The one record of a task, without its arrival and the time."""
    [value] = [v for f, v in world.client.hgetall(f"{world.store.prefix}task:{task_id}").items() if b":m" not in f]
    fields: list[str] = value.decode().split("\t")
    del fields[13], fields[4]
    return fields


def test_a_damaged_key_costs_no_message_that_is_sifted(world: World) -> None:
    task = world.task(ONE)
    task.delay(key="full")
    world.hold(task, key="full")
    task.delay(key="full")
    note = f"{world.store.prefix}note:full"
    world.client.delete(note)
    world.client.set(note, "no hash")
    with world.app.connection_for_read() as connection, connection.channel() as channel:
        channel.sift()
        got: list[Any] = []
        with world.app.amqp.TaskConsumer(channel, on_message=got.append):
            wait_until(lambda: _turn(connection, got, 1), "the gate gets to see it")
        got[0].ack()


def _turn(connection: Any, got: list[Any], count: int) -> bool:
    if len(got) < count:
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
    return len(got) >= count


@pytest.mark.parametrize("priority", ["high", [1], float("nan")])
def test_one_whose_priority_is_no_number_goes_through_its_queue(world: World, priority: Any) -> None:
    """kombu takes it for none; the gate fails the task."""
    task = world.task(ONE)
    world.hold(task, key="full")
    task.apply_async(kwargs={"key": "full"}, priority=priority)
    assert world.limits.status("full").waiting == 0
    assert world.client.llen(world.name) == 1
