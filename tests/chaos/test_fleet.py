"""The processes of the chaos run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos.faults import Injector
from tests.chaos.fleet import LEASE, Fleet, scratch
from tests.chaos.history import read
from tests.chaos.plan import PROFILES, Fault, Plan
from tests.chaos.runner import under_way
from tests.server_clock import is_possible
from tests.waiting import DEADLINE, wait_until


def test_one_that_was_told_to_go_feels_its_wire_until_it_has_ended() -> None:
    with scratch() as directory, Fleet(Path(directory), ("threads",)) as fleet:
        (place,) = fleet.places
        before = place.worker
        assert before is not None
        fleet.replace(place)
        assert fleet.behind_the_wire_of(place) == ["w1.2@chaos", "w1.1@chaos"]
        before.signal(signal.SIGTERM)
        before.wait_gone()
        assert fleet.behind_the_wire_of(place) == ["w1.2@chaos"]


def test_the_lease_of_one_that_was_killed_is_waited_for_though_no_other_took_its_place() -> None:
    """Else the last to leave would leave it behind."""
    with scratch() as directory, Fleet(Path(directory), ("threads", "threads")) as fleet:
        limits = fleet.limits()
        for place in fleet.places:
            place.wait_ready()
        wait_until(lambda: under_way(fleet, limits) == [], "both are at rest")
        killed = fleet.places[0].worker
        assert killed is not None
        killed.signal(signal.SIGKILL)
        killed.wait_gone()
        assert [name.partition("/")[0] for name in under_way(fleet, limits)] == ["lease of w1.1@chaos"]
        wait_until(lambda: under_way(fleet, limits) == [], "the other has buried it", within=LEASE + DEADLINE)


@pytest.mark.skipif(not is_possible(), reason="no C compiler: the clock of Redis cannot be set")
def test_a_clock_that_is_set_back_is_felt_at_that_moment_and_never_mended() -> None:
    with scratch() as directory, Fleet(Path(directory), ("threads",)) as fleet:
        fleet.places[0].wait_ready()
        plan = Plan(PROFILES["smoke"], 1, faults=[Fault(0.0, "redis clock", 0.1)])
        injector = Injector(fleet, plan, lambda: None)
        injector.start()
        wait_until(lambda: injector.struck["redis clock"] == 1, "the clock is set back")
        injector.finish()
        assert injector.failures == []
        (felt,) = [each for each in read(fleet.ledger.lines()).faults if each.kind == "redis clock"]
        assert felt.until == felt.at
