"""The lease: renewed whatever the bodies do, and what happens when it can't be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import states

from tests.redis_server import RedisServer
from tests.store.cutting_proxy import CuttingProxy, cutting_proxy
from tests.waiting import wait_until
from tests.worker.harness import Scene, Sent, Worker

GREEN = ("gevent", "eventlet")
LEASE = 3.0
CUT_OFF_LEASE = 6.0
"""Long enough for a busy machine to end a body in the last third of it."""


def lease_of(scene: Scene, worker: Worker) -> float:
    """When the worker's lease lapses, in seconds; 0 when it has none."""
    client: Any = scene.limits.store.client
    found = client.zrange(f"{scene.limits.store.prefix}leases", 0, -1, withscores=True)
    return max((score / 1e6 for name, score in found if name.decode().startswith(f"{worker.name}/")), default=0.0)


@pytest.mark.long
@pytest.mark.parametrize("pool", GREEN)
def test_a_body_that_never_yields_keeps_its_slot(scene: Scene, pool: str) -> None:
    """S1: it blocks its worker for several leases. The other worker, on another queue, reaps the dead."""
    scene.configure(limits_lease=LEASE)
    selfish, other = scene.launch(pool), scene.launch("threads", "-Q", f"{scene.key}-other")
    for worker in (selfish, other):
        worker.wait_ready()
    first = scene.send("selfish", "first")
    scene.wait_started("first")
    second = scene.send("early", "second", queue=f"{scene.key}-other")
    scene.wait_parked(1)
    until = lease_of(scene, selfish)
    wait_until(lambda: lease_of(scene, selfish) > until + 2 * LEASE, "the lease is renewed")
    assert not scene.stage.starts("second")
    scene.stage.open_all()
    first.get()
    second.get()
    assert "cut off" not in selfish.log
    scene.wait_quiet()
    selfish.stop()
    assert selfish.wait_gone() == 0
    assert lease_of(scene, selfish) == 0


# -- cut off from the store --------------------------------------------------------------------------------------


@pytest.fixture
def wire(broker: RedisServer) -> Iterator[CuttingProxy]:
    """What one of the workers reaches the store through, and nothing else."""
    with cutting_proxy(broker.socket) as proxy:
        yield proxy


def cut_off(scene: Scene, wire: CuttingProxy, task: str, **conf: Any) -> tuple[Worker, Worker, Sent, Sent]:
    """One worker runs a body and loses sight of the store; another waits for its slot, on another queue."""
    scene.configure(limits_lease=CUT_OFF_LEASE, limits_place_ttl=3.0, **conf)
    far = scene.launch("prefork", limits_store_url=f"unix://{wire.path}")
    near = scene.launch("prefork", "-Q", f"{scene.key}-near")
    for worker in (far, near):
        worker.wait_ready()
    first = scene.send(task, "first")
    scene.wait_started("first")
    second = scene.send("early", "second", queue=f"{scene.key}-near")
    scene.wait_parked(1)
    return far, near, first, second


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_terminate_ends_the_bodies_before_others_get_their_slots(scene: Scene, wire: CuttingProxy, how: str) -> None:
    """Never over, even then: the scene's fixture fails the test if the second body met the first."""
    far, _, first, second = cut_off(scene, wire, "early", limits_on_lost_lease="terminate")
    wire.shut(silently=how == "silent")
    scene.wait_started("second")
    far.wait_for_log("these are ended: early")
    first.wait(states.FAILURE)
    assert not scene.stage.ends("first")
    wire.reopen()
    far.wait_for_log("it joins again as")
    scene.stage.open_all()
    second.get()
    scene.send("early.quick", "third").get()


def test_continue_lets_the_bodies_finish_loudly(scene: Scene, wire: CuttingProxy) -> None:
    """The stated exception: they count for nothing any more, and what they release later changes nothing."""
    scene.sizes[scene.key] = 2
    far, near, first, second = cut_off(scene, wire, "early")
    wire.shut()
    scene.wait_started("second")
    # On our own transport the one that is cut off has a second lease, for its deliveries, and may look after the first.
    dead = f"for {CUT_OFF_LEASE:g} s; declaring it dead"
    wait_until(lambda: dead in near.log or dead in far.log, "one of them says who is taken for dead")
    far.wait_for_log("these run on, beside those that get their slots: early")
    scene.stage.open("first")
    first.get()
    wire.reopen()
    far.wait_for_log("it joins again as")
    third = scene.send("early", "third")
    scene.wait_parked(1)
    assert [party.task_id for party in scene.limits.status(scene.key).holders] == [second.id]
    scene.stage.open_all()
    for sent in (second, third):
        sent.get()


# -- the store loses its data ------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A store that ends after the scene has looked into it."""
    with RedisServer() as server:
        yield server


@pytest.mark.own_broker
@pytest.mark.parametrize("how", ["flushed", "restarted"])
def test_a_store_that_lost_its_data_is_named_as_that(server: RedisServer, scene: Scene, how: str) -> None:
    """And not as a worker that was cut off: nobody was given its slots."""
    scene.configure(limits_store_url=f"unix://{server.socket}", limits_lease=LEASE)
    worker = scene.start("threads")
    scene.send("early", "first")
    scene.wait_started("first")
    if how == "flushed":
        with server.client() as client:
            client.flushall()
    else:
        server.restart()
    worker.wait_for_log("the store has lost its data")
    worker.wait_for_log("1 tasks of this worker run on without a slot")
    assert "was cut off from the store" not in worker.log
    scene.stage.open_all()
    scene.wait_ended("first")
    scene.send("early.quick", "next").get()
