"""The lease: renewed whatever the bodies do, and what happens when it can't be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.waiting import wait_until
from tests.worker.harness import Scene, Worker

GREEN = ("gevent", "eventlet")
LEASE = 1.5


def lease_of(scene: Scene, worker: Worker) -> float:
    """When the worker's lease lapses, in seconds; 0 when it has none."""
    client: Any = scene.limits.store.client
    found = client.zrange(f"{scene.limits.store.prefix}leases", 0, -1, withscores=True)
    return max((score / 1e6 for name, score in found if name.decode().startswith(f"{worker.name}/")), default=0.0)


@pytest.mark.parametrize("pool", GREEN)
def test_a_body_that_never_yields_keeps_its_slot(scene: Scene, pool: str) -> None:
    """S1: it blocks its worker for many times the lease. The other worker, on another queue, reaps the dead."""
    scene.configure(limits_lease=LEASE)
    selfish, other = scene.launch(pool), scene.launch("threads", "-Q", f"{scene.key}-other")
    for worker in (selfish, other):
        worker.wait_ready()
    first = scene.send("selfish", "first")
    scene.wait_started("first")
    second = scene.send("early", "second", queue=f"{scene.key}-other")
    scene.wait_parked(1)
    until = lease_of(scene, selfish)
    wait_until(lambda: lease_of(scene, selfish) > until + 3 * LEASE, "the lease is renewed")
    assert not scene.stage.starts("second")
    scene.stage.open_all()
    first.get()
    second.get()
    assert "cut off" not in selfish.log
    scene.wait_quiet()
    selfish.stop()
    assert selfish.wait_gone() == 0
    assert lease_of(scene, selfish) == 0
