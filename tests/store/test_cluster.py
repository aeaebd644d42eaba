"""A namespace in a Redis Cluster: all of its keys are in one slot, and the verbs work through a cluster client."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from redis.cluster import RedisCluster
from redis.crc import key_slot

from celery_limits.store import Policy, Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Parked, Released
from tests.redis_server import RedisServer
from tests.store.actors import ANY, Clock, Worker, c, f, holders, names_in, r, wind_up
from tests.waiting import wait_until

SLOTS = 16384


def _free_port() -> int:
    """Low enough for the cluster's own port, 10 000 above it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port
        port = 20_000 + port % 30_000
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


@pytest.fixture
def cluster(redis_server: RedisServer) -> Iterator[Any]:
    port = _free_port()
    with RedisServer(redis_server.binary, port=port, bind="127.0.0.1", cluster_enabled="yes") as server:
        with server.client() as node:
            node.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
            wait_until(lambda: node.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "the cluster is up")
        client = RedisCluster(host="127.0.0.1", port=port)
        yield client
        client.close()


def test_all_keys_of_a_namespace_are_in_one_slot(store: Store, clock: Clock) -> None:
    w, sender = Worker(store), Worker(store, "sender", queue="")
    for worker in (w, sender):
        for i in range(4):
            worker.deliver(
                f"{worker.name}{i}.n", c("k", 2), f("fl", 3), r("api", "9/s", burst=2), expires=clock.now + 10**8
            )
    store.resize("k", 3)
    store.cancel("w13")
    names = names_in(store, "*")
    assert len({name.partition(":")[0] for name in names}) > 10, "or this shows little"
    assert {key_slot((store.prefix + name).encode()) for name in names} == {key_slot(store.prefix.encode())}
    store.reset("k")
    clock.pass_(31)
    for worker in (w, sender):
        store.beat(worker.name)
    wind_up(clock, w, sender)


def test_the_verbs_work_in_a_cluster(cluster: Any, clock: Clock, policy: Policy) -> None:
    stores = [Store(cluster, namespace, policy, clock) for namespace in ("red", "blue", "green")]
    assert len({key_slot(store.prefix.encode()) for store in stores}) == 3
    for store in stores:
        w = Worker(store)
        assert isinstance(w.deliver("t1.n", c("k", 1), r("api", "9/s")), Admitted)
        assert isinstance(w.deliver("t2.n", c("k", 1)), Parked)
        assert holders(store, "k") == {"t1.n"}
        assert store.status("k").waiting == 1
        assert isinstance(w.finish("t1.n"), Released)
        cluster.script_flush()
        assert w.pick_up(ANY) == ["t2.n"]
        assert store.explain("t2").tickets[0].state == "running"
        store.sweep("w1")
        assert audit(store) == []
        assert wind_up(clock, w) == []
