"""The audit names deliveries that nobody would ever give back, and mends them."""

from __future__ import annotations

from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.transport import member as membership
from tests.redis_server import RedisServer
from tests.transport.conftest import Connect
from tests.transport.test_channel import bodies, put, take


def test_deliveries_of_a_worker_without_a_lease(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    put(connect(), queue, 1, 2)
    member = take(connect(), queue, 2)[0].channel.member
    with redis_server.client() as client:
        store = Store(client)
        assert audit(store) == []
        member.lease._heartbeat.stop()
        member.lease.stopped.set()
        member.lease._thread.join()
        membership.disown(member.lease)
        client.zrem(f"{store.prefix}leases", member.worker)  # what no script does
        client.delete(f"{store.prefix}worker:{member.worker}")
        [found] = audit(store)
        assert (found.code, found.subject) == ("lost-delivery", member.worker)
        assert [one.code for one in audit(store, repair=True)] == ["lost-delivery"]
        assert audit(store) == []
    got = take(connect(), queue, 2)
    assert bodies(got) == [1, 2]
    for message in got:
        message.ack()


def test_a_ready_list_that_names_what_is_not_there(connect: Connect, redis_server: RedisServer, queue: str) -> None:
    """It keeps nobody from fetching, and is struck."""
    with redis_server.client() as client:
        store = Store(client)
        client.zadd(f"{store.prefix}ready:{queue}", {"ghost.n": 1})
        assert [one.code for one in audit(store)] == ["stray-entry"]
        put(connect(), queue, 1)
        got = take(connect(), queue, 1)
        got[0].ack()
        assert audit(store, repair=True) == []
        assert not client.exists(f"{store.prefix}ready:{queue}")
