"""A real server whose clock is set back, and the times that its own scripts read."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from celery_limits.store import Policy, Store
from celery_limits.store.outcomes import Admitted, Parked
from tests.server_clock import SetClockServer, is_possible
from tests.store.actors import ANY, Worker, c, holders, r, raw_client
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not is_possible(), reason="to set a server's clock takes a C compiler, and Linux")

STEP = 3600.0


@pytest.fixture
def server() -> Iterator[SetClockServer]:
    with SetClockServer() as server:
        yield server


@pytest.fixture
def real_store(server: SetClockServer) -> Iterator[Store]:
    store = Store(server.client(), "test", Policy(lease=2))
    yield store
    store.close()


def _keeps_house(store: Store, w: Worker) -> None:
    store.beat(w.name)
    store.sweep(w.name)


def _server_time(store: Store) -> float:
    seconds, micros = raw_client(store).time()
    return float(seconds + micros / 1e6)


def test_its_clock_is_set(server: SetClockServer, real_store: Store) -> None:
    assert _server_time(real_store) == pytest.approx(time.time(), abs=60)
    server.step(-STEP)
    assert _server_time(real_store) == pytest.approx(time.time() - STEP, abs=60)
    server.kill()
    server.start()
    assert _server_time(real_store) == pytest.approx(time.time() - STEP, abs=60)


def test_a_rate_goes_on_at_once(server: SetClockServer, real_store: Store) -> None:
    w, link = Worker(real_store), r("api", "5/s", burst=1)
    assert isinstance(w.deliver("a.1", link), Admitted)
    assert isinstance(w.deliver("b.1", link), Parked)
    server.step(-STEP)

    def passes() -> bool:
        _keeps_house(real_store, w)
        return w.pick_up(link) == ["b.1"]

    wait_until(passes, "the second passes", within=15)


def test_a_dead_worker_loses_its_slots_and_nobody_else_does(server: SetClockServer, real_store: Store) -> None:
    dead, lives = Worker(real_store, "dead"), Worker(real_store, "lives")
    dead.deliver("a.1", c("k", 1), late=True)
    lives.deliver("c.1", c("other", 1))
    assert isinstance(lives.deliver("b.1", c("k", 1)), Parked)
    server.step(-STEP)

    def is_free() -> bool:
        _keeps_house(real_store, lives)
        return holders(real_store, "k") == {"b.1"}

    wait_until(is_free, "the dead one's slot is free", within=30)
    assert holders(real_store, "other") == {"c.1"}
    assert lives.pick_up(ANY) == ["b.1"]
