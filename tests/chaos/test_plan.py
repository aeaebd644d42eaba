"""A plan is its seed, and breaks only what there is where it is played."""

from __future__ import annotations

import pytest

from tests.chaos.faults import Injector
from tests.chaos.fleet import LEASE
from tests.chaos.plan import FAULTS, PROFILES, faults_on, make_plan
from tests.chaos.sites import SITES


def test_a_plan_is_its_seed() -> None:
    standard = PROFILES["standard"]
    assert make_plan(standard, 1) == make_plan(standard, 1) != make_plan(standard, 2)
    assert {fault.kind for fault in make_plan(standard, 1).faults} == {*FAULTS, "deploy"}
    assert make_plan(standard, 1).calls == make_plan(standard, 1, on="rabbitmq").calls
    beyond = [
        fault.seconds for fault in make_plan(standard, 1).faults if fault.kind in ("stop", "cut off", "half-open")
    ]
    assert min(beyond) > LEASE


def test_more_calls_are_shorter() -> None:
    standard = PROFILES["standard"]
    few, many = make_plan(standard, 1), make_plan(standard.at_rate(50), 1)
    assert len(many.calls) > 9 * len(few.calls)
    lengths = [
        sum(call.seconds for call in plan.calls if call.shape == "call" and not call.limit) for plan in (few, many)
    ]
    assert max(lengths) < 1.5 * min(lengths)
    assert all(call.seconds > call.limit for call in many.calls if call.limit is not None)
    assert make_plan(standard.at_rate(standard.rate), 1) == few


@pytest.mark.parametrize("site", SITES)
def test_a_plan_breaks_what_there_is(site: str) -> None:
    kinds = faults_on(site)
    assert {fault.kind for fault in make_plan(PROFILES["standard"], 1, on=site).faults} == {*kinds, "deploy"}
    assert all(hasattr(Injector, "_" + kind.replace(" ", "_").replace("-", "_")) for kind in kinds)
