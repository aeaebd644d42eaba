"""Each defect that the chaos run is to catch can be put in; where the code has moved on, this says so before a hunt."""

from __future__ import annotations

import multiprocessing

import pytest

from tests.chaos.bugs import BUGS
from tests.chaos.checker import CHECKS


@pytest.mark.parametrize("name", BUGS)
def test_it_can_be_put_in(name: str) -> None:
    """In a process of its own, which has the defect then."""
    process = multiprocessing.get_context("fork").Process(target=BUGS[name].put_in)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_each_is_seen_by_checks_that_there_are() -> None:
    assert all(bug.seen_by and bug.seen_by <= set(CHECKS) for bug in BUGS.values())
