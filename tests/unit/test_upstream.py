"""What is told of a test of somebody else's: its worst phase, its last run, and that it never came back."""

from __future__ import annotations

from typing import Any

from tests.upstream.sides import Outcome, _outcomes
from tests.upstream.suites import _first_match


def report(test: str, outcome: str, when: str = "call") -> dict[str, Any]:
    return {"test": test, "when": when, "outcome": outcome, "seconds": 1.0, "text": f"{when} {outcome}"}


def test_a_test_has_the_outcome_of_its_worst_phase() -> None:
    lines = [{"begin": "a"}, report("a", "passed"), report("a", "failed", "teardown"), {"end": "a"}]
    assert _outcomes(lines) == {"a": Outcome("failed", 2.0, "teardown failed")}


def test_a_test_that_was_run_again_by_its_own_wish_has_the_outcome_of_the_last_time() -> None:
    lines = [{"begin": "a"}, report("a", "rerun"), report("a", "passed"), {"end": "a"}]
    assert _outcomes(lines)["a"].kind == "passed"


def test_the_test_during_which_pytest_died_is_lost_and_those_after_it_have_no_outcome() -> None:
    lines: list[dict[str, Any]] = [{"collected": ["a", "b", "c"]}]
    lines += [{"begin": "a"}, report("a", "passed"), {"end": "a"}, {"begin": "b"}, report("b", "passed", "setup")]
    assert {test: outcome.kind for test, outcome in _outcomes(lines).items()} == {"a": "passed", "b": "lost"}


def test_brackets_in_a_pattern_are_those_of_a_test() -> None:
    assert _first_match("t.py::test_a[one]", ("t.py::test_a[*]",)) == "t.py::test_a[*]"
    assert _first_match("t.py::test_ao", ("t.py::test_a[one]",)) is None
