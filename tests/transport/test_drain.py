"""What the store keeps goes back into its queue, in order, and nothing is left of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from celery_limits import Concurrency
from celery_limits.app.drain import StillRunning, count, drain
from celery_limits.app.stamp import links_of
from celery_limits.store.audit import audit
from celery_limits.store.kept import read_kept
from celery_limits.store.outcomes import Admitted
from tests.redis_server import RedisServer
from tests.store.actors import leftovers
from tests.transport.quiet_world import WORKER, World, ids

ONE = Concurrency("{key}", 1)


@pytest.fixture
def world(redis_server: RedisServer) -> Iterator[World]:
    world = World(redis_server)
    world.join()
    yield world
    assert audit(world.store) == []
    assert leftovers(world.store) == []
    world.close()


class Line:
    """Messages of one key, numbered in the order of publishing, wherever they are."""

    def __init__(self, world: World, key: str = "k") -> None:
        self.world, self.key, self.task, self.count = world, key, world.task(ONE), 0

    def publish(self, count: int, **options: Any) -> None:
        for _ in range(count):
            self.task.apply_async(kwargs={"key": self.key}, task_id=f"{self.key}{self.count:04}", **options)
            self.count += 1

    def hold(self) -> None:
        """The slot is taken by one that runs."""
        links = links_of(self.world.app, self.task.name, (), {"key": self.key})
        assert links
        outcome = self.world.limits.store.admit(f"holder-{self.key}.n", links, WORKER, delivery="d")
        assert isinstance(outcome, Admitted)
        self._fence = outcome.fence

    def release(self) -> None:
        self.world.limits.store.release(f"holder-{self.key}.n", WORKER, self._fence)

    @property
    def waiting(self) -> int:
        return self.world.limits.status(self.key).waiting

    @property
    def names(self) -> list[str]:
        return [f"{self.key}{n:04}" for n in range(self.count)]


def of(key: str, messages: list[Any]) -> list[str]:
    return [name for name in ids(messages) if name.startswith(key)]


def test_between_those_that_lie_in_the_queue(world: World) -> None:
    """Some of the line are older, some younger than what is in the queue."""
    a, b = Line(world, "a"), Line(world, "b")
    plain = world.task()
    for line in (a, b):
        line.publish(3)  # in the queue, since there is room
        line.hold()
        line.publish(4)  # in the line
    plain.apply_async(task_id="plain1")
    a.release()  # the first in line is granted
    a.publish(5)
    b.release()
    plain.apply_async(task_id="plain2")
    assert a.waiting + b.waiting > 5
    world.wind_up()
    assert sum(count(world.limits).values()) == 13
    outcome = drain(world.limits)
    assert (sum(outcome.drained.values()), outcome.left) == (13, 0)
    found = world.queued()
    assert (of("a", found), of("b", found)) == (a.names, b.names)
    assert of("plain", found) == ["plain1", "plain2"]
    assert len(found) == 12 + 7 + 2


def test_the_header_says_that_nothing_is_held(world: World) -> None:
    line = Line(world)
    line.hold()
    line.publish(2)
    line.release()
    world.wind_up()
    drain(world.limits)
    for message in world.queued():
        header = message["headers"]["limits"]
        assert (header["at"], header["held"], header["fence"]) == (0, [], 0)


def test_delayed_ones_come_last_and_keep_their_eta(world: World) -> None:
    task, line = world.task(), Line(world)
    for seconds in (300, 100, 200):
        task.apply_async(countdown=seconds, task_id=f"d{seconds}")
    line.hold()
    line.publish(3)
    task.apply_async(task_id="now")
    line.release()
    world.wind_up()
    outcome = drain(world.limits)
    assert outcome.drained["delayed"] == 3
    found = world.queued()
    assert ids(found)[-3:] == ["d100", "d200", "d300"]
    assert all(message["headers"]["eta"] for message in found[-3:])
    task.apply_async(countdown=100)  # from now on Celery's way
    assert len(world.queued()) == len(found) + 1


def test_priorities_have_lists_of_their_own(world: World) -> None:
    line = Line(world)
    line.hold()
    line.publish(2, priority=6)
    line.publish(2)
    line.release()
    world.wind_up()
    drain(world.limits)
    assert ids(world.queued()) == ["k0002", "k0003"]
    assert ids(world.queued(f"{world.name}\x06\x166")) == ["k0000", "k0001"]


def test_refused_while_a_worker_runs(world: World) -> None:
    line = Line(world)
    line.hold()
    line.publish(2)
    with pytest.raises(StillRunning, match="tester@host"):
        drain(world.limits)
    assert (line.waiting, world.queued()) == (2, [])
    outcome = drain(world.limits, force=True)
    assert (outcome.drained["waiting"], len(world.queued())) == (2, 2)
    line.release()
    world.wind_up()


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_interrupted_after_any_step(world: World, steps: int) -> None:
    """A process that dies leaves a part of the list aside; the next drain goes on, and the order is the same."""
    line = Line(world)
    line.publish(700)
    line.hold()
    line.publish(1500)
    line.release()
    line.publish(100)
    world.wind_up()
    kept = sorted(read_kept(world.store), key=lambda kept: kept.order)
    assert len(kept) == 1600
    done = 0
    for _ in range(steps):
        done += world.store.drain(world.name, [one.ticket for one in kept[done : done + 200]], last=False).seen
    aside = world.client.llen(f"{world.store.prefix}drained:{world.name}")
    assert aside > 0
    assert [finding.code for finding in audit(world.limits.store)].count("unfinished-drain") == 1
    outcome = drain(world.limits)
    assert (sum(outcome.drained.values()), outcome.left) == (1600 - done, 0)
    assert ids(world.queued()) == line.names


def test_the_audit_puts_back_what_an_interrupted_drain_laid_aside(world: World) -> None:
    line = Line(world)
    line.publish(5)
    line.hold()
    line.publish(1)
    world.store.drain(world.name, [kept.ticket for kept in read_kept(world.store)], last=False)
    audit(world.limits.store, repair=True)
    assert ids(world.queued()) == line.names
    line.release()
    world.wind_up()


def test_drained_again_there_is_nothing(world: World) -> None:
    line = Line(world)
    line.hold()
    line.publish(3)
    line.release()
    world.wind_up()
    drain(world.limits)
    before = world.client.lrange(world.name, 0, -1)
    assert sum(drain(world.limits).drained.values()) == 0
    assert world.client.lrange(world.name, 0, -1) == before


def test_what_a_dead_worker_had_comes_along(redis_server: RedisServer) -> None:
    """It held a slot and had fetched a message; its lease has lapsed, but nobody was there to see it."""
    world = World(redis_server, limits_lease=0.3)
    world.join()
    line = Line(world)
    line.hold()
    line.publish(2)
    world.task().apply_async(task_id="fetched")
    with world.app.connection_for_read() as connection:
        channel = connection.default_channel
        reply = channel.scripts.fetch_now(WORKER, "1", 1, channel._lists([world.name], set()))
    assert json.loads(reply[2])["headers"]["id"] == "fetched"
    while True:
        try:
            drain(world.limits)
            break
        except StillRunning:
            continue
    assert sorted(ids(world.queued())) == ["fetched", "k0000", "k0001"]
    assert leftovers(world.store) == []
    world.close()


def test_the_broker_must_be_the_one_that_has_the_queues(world: World) -> None:
    line = Line(world)
    line.hold()
    line.publish(1)
    line.release()
    world.wind_up()
    world.app.conf.broker_url = world.plain_url
    world.app.conf.limits_namespace = world.name
    with pytest.raises(Exception, match=r"limits\+redis://"):
        drain(world.limits)
    world.app.conf.broker_url = f"limits+{world.plain_url}"
    drain(world.limits)
