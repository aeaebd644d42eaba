"""Nothing lost: consumers are killed at every step of an exchange with Redis, and at random moments under load."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection

from tests.redis_server import RedisServer
from tests.transport.kills import durable_server, judge, rampage
from tests.transport.test_channel import put
from tests.transport.victims import DONE, TOOK, Ledger, consume, nursery
from tests.waiting import wait_until

MOMENTS = 30
"""Enough for some victims to work off their queue: who is killed at the last moments has acknowledged all."""

MESSAGES = 5
LEASE = 2.0


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def test_killed_at_every_moment_of_every_exchange(server: RedisServer, tmp_path: Path) -> None:
    """Each victim has a queue of its own and dies at its n-th moment; then one that lives works off what is left."""
    url, ledger, context = f"limits+redis+socket://{server.socket}", Ledger(tmp_path / "ledger"), nursery()
    queues = [f"q{moment}" for moment in range(1, MOMENTS + 1)]
    numbers = itertools.count()
    with Connection(url) as connection:
        for queue in queues:
            put(connection, queue, *(next(numbers) for _ in range(MESSAGES)))
    victims = []
    for moment, queue in enumerate(queues, 1):
        victim = context.Process(target=consume, args=(url, [queue], str(ledger.path), 3, moment, LEASE))
        victim.start()
        victims.append(victim)
    for victim in victims:
        victim.join(60)
        assert victim.exitcode == -9
    before = ledger.entries()
    assert 0 < sum(entry.what == DONE for entry in before) < MOMENTS * MESSAGES
    survivor = context.Process(target=consume, args=(url, queues, str(ledger.path), 50, None, LEASE))
    survivor.start()
    try:
        wait_until(lambda: len(ledger.taken()) == MOMENTS * MESSAGES, "all are taken", within=60)
        wait_until(lambda: not _left(server), "all are acknowledged", within=60)
    finally:
        survivor.terminate()
        survivor.join(20)
    killed = {int(victim.pid) for victim in victims}
    verdict = judge(ledger, MOMENTS * MESSAGES, killed)
    assert verdict.is_fine, verdict
    assert verdict.repeated > 0, "some were killed between the work and its acknowledgement"


def test_killed_at_random_under_load(server: RedisServer, tmp_path: Path) -> None:
    verdict = rampage(server, tmp_path, kills=20)
    assert verdict.is_fine, verdict
    assert verdict.published > 100


def test_redis_is_killed_under_load(tmp_path: Path) -> None:
    """With an append-only file it comes back as it was; no consumer is killed, so each message is taken once."""
    with durable_server() as server:
        verdict = rampage(server, tmp_path, kills=0, restarts=4)
    assert verdict.is_fine, verdict
    assert verdict.repeated == 0


@pytest.mark.long
def test_a_mixed_fleet_under_load(server: RedisServer, tmp_path: Path) -> None:
    """Producers and consumers of both kinds on one queue: each message once, whoever sent it and whoever gets it."""
    ledger, context, numbers = Ledger(tmp_path / "ledger"), nursery(), itertools.count()
    urls = [f"{scheme}+socket://{server.socket}" for scheme in ("redis", "limits+redis")]
    fleet = [context.Process(target=consume, args=(url, ["q"], str(ledger.path), 4, None, 30.0)) for url in urls * 2]
    for process in fleet:
        process.start()
    try:
        with Connection(urls[0]) as theirs, Connection(urls[1]) as ours:

            def all_have_some() -> bool:
                for connection in (theirs, ours) * 50:
                    put(connection, "q", next(numbers))
                return len({entry.pid for entry in ledger.entries()}) == len(fleet)

            wait_until(all_have_some, "every consumer had some", within=60)
        published = next(numbers)
        wait_until(lambda: len(ledger.taken()) == published, "all are taken", within=60)
        wait_until(lambda: not _left(server) and not _left(server, "unacked"), "all are acknowledged")
    finally:
        for process in fleet:
            process.terminate()
        for process in fleet:
            process.join(20)
    assert sorted(entry.message for entry in ledger.entries() if entry.what == TOOK) == list(range(published))


def test_the_judge_is_no_friend_of_the_accused(tmp_path: Path) -> None:
    """Message 0 is done, 1 is lost, 2 taken by two that lived, 3 again after it was done, 4 again after a kill."""
    ledger = Ledger(tmp_path / "ledger")
    for what, message, pid in [
        (TOOK, 0, 1), (DONE, 0, 1),
        (TOOK, 2, 1), (TOOK, 2, 2),
        (TOOK, 3, 9), (DONE, 3, 9), (TOOK, 3, 1),
        (TOOK, 4, 9), (TOOK, 4, 1),
    ]:  # fmt: skip
        ledger.note(what, message, pid)
    verdict = judge(ledger, 5, {9})
    assert (verdict.lost, verdict.again, verdict.repeated) == ([1], [2, 3], 3)
    assert not verdict.is_fine


def _left(server: RedisServer, pattern: str = "*unacked:*") -> list[bytes]:
    with server.client() as client:
        return list(client.scan_iter(pattern))
