"""The checker is held to its word: what is neither over nor lost, but changed, out of turn, early or unsound."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.fleet import LEASE
from tests.chaos.tale import Tale


@pytest.mark.parametrize("wrong", [
    {"id": "x-1-b"}, {"retries": 1}, {"extra": None}, {"priority": 3}, {"weight": 2}, {"results": ["a.0"]},
])  # fmt: skip
def test_something_was_changed_on_the_way(tale: Tale, wrong: dict[str, Any]) -> None:
    for member in ("a.0", "a.1"):
        tale.publish(member)
        tale.live(member)
    tale.publish("a", priority=9, members=["a.0", "a.1"])
    tale.live("a", **{"priority": 9, "results": ["a.0", "a.1"], **wrong})
    assert tale.wrong()["6 unchanged"] == 1


def test_out_of_turn(tale: Tale) -> None:
    names = {"line": "a"}
    tale.publish("a", names=names, line="a")
    run = tale.start("a", names=names)
    for member in ("a.0", "a.1"):
        tale.publish(member, names=names, line="a")
    tale.end("a", run)
    for member in ("a.1", "a.0"):
        tale.live(member, names=names)
    assert tale.wrong() == {"8 in turn": 1}


def test_before_its_eta(tale: Tale) -> None:
    tale.publish("a", eta=tale.clock + 1)
    tale.live("a")
    assert tale.wrong() == {"9 not before its eta": 1}


def test_faster_than_the_rate(tale: Tale) -> None:
    tale.step = 0.001
    for n in range(60):
        tale.publish(f"a{n}", names={"api": "1"})
        tale.live(f"a{n}", names={"api": "1"})
    assert set(tale.wrong()) == {"rates"}


def test_a_worker_that_ended_by_itself(tale: Tale) -> None:
    tale.say("gone", worker="w1@chaos")
    assert tale.wrong() == {"workers stay": 1}


def test_an_audit_on_the_way(tale: Tale) -> None:
    tale.fault("kill", "w1@chaos")
    tale.say("audit", findings=["lapsed-lease: w1@chaos/1/a: its lease has lapsed"])
    assert tale.wrong() == {}
    tale.say("audit", findings=["room-beside-waiter: tenant:1: 1 of 2"])
    assert tale.wrong() == {"3-4 sound on the way": 1}
    tale.say("audit", findings=["lapsed-lease: w2@chaos/1/a: its lease has lapsed"])
    assert tale.wrong() == {"3-4 sound on the way": 2}, "nobody has touched that one"


def test_a_lease_that_was_lost_without_a_reason(tale: Tale) -> None:
    tale.fault("stop", "w1@chaos", 8.0)
    tale.mend("stop", "w1@chaos", LEASE)
    tale.say("lost", worker="w1@chaos")
    assert tale.wrong() == {}
    tale.say("lost", worker="w2@chaos")
    assert tale.wrong() == {"workers stay": 1}


def test_a_moment_between_two_long_waits_is_not_enough_to_be_heard_of(tale: Tale) -> None:
    for seconds in (LEASE / 2, LEASE / 2):
        tale.clock += seconds
        tale.say("starved", worker="w1@chaos", seconds=seconds)
    tale.say("lost", worker="w1@chaos")
    assert tale.wrong() == {}


def test_a_clock_that_is_ahead_starts_early_by_no_more_than_that(tale: Tale) -> None:
    tale.say("begins", worker="w3@chaos", mode="continue", shift=10.0)
    tale.publish("a", eta=tale.clock + 5)
    tale.live("a", "w3@chaos")
    assert tale.wrong() == {}
    tale.publish("b", eta=tale.clock + 15)
    tale.live("b", "w3@chaos")
    assert tale.wrong() == {"9 not before its eta": 1}


def test_a_message_that_nobody_understands(tale: Tale) -> None:
    tale.publish("a", alien="newer")
    assert tale.wrong() == {"5 nothing lost": 1}
    tale.answer("a", "FAILURE", "CorruptChain")
    assert tale.wrong() == {}
    tale.publish("b", alien="newer")
    tale.answer("b", "FAILURE", "KeyError")
    tale.publish("c", alien="newer")
    tale.live("c")
    tale.answer("c", "FAILURE", "CorruptChain")
    assert tale.wrong() == {"10 no silent bypass": 2}


def pause(tale: Tale, region: str, *, runs: bool, seconds: float = 10.0, again: str = "") -> None:
    """`w` waits at a key that is paused; `n` need nothing of it, and one of them starts, or none."""
    names, name = {"region": region}, region + again
    tale.say("steers", kind="pause", key=f"region:{region}", size=0)
    for call in ("w", "n1", "n2", "n3"):
        tale.publish(f"{call}.{name}", names=names if call == "w" else {"tenant": call})
    tale.clock += seconds
    if runs:
        tale.live(f"n2.{name}", names={"tenant": "n2"})
    tale.say("steered", kind="pause", key=f"region:{region}")
    tale.live(f"w.{name}", names=names)
    for call in ("n1", "n3") if runs else ("n1", "n2", "n3"):
        tale.live(f"{call}.{name}", names={"tenant": call})


@pytest.mark.parametrize(("runs", "seconds", "wrong"), [(True, 10.0, 0), (False, 10.0, 1), (False, 2.0, 0)])
def test_those_who_need_nothing_of_a_paused_key_start(tale: Tale, runs: bool, seconds: float, wrong: int) -> None:
    """In a pause that is cut short they need not."""
    pause(tale, "1", runs=runs, seconds=seconds)
    assert tale.wrong() == ({"7 no cross-blocking": 1} if wrong else {})


@pytest.mark.parametrize(
    ("kind", "ago", "wrong"), [("kill all", 5.0, 0), ("kill all", 20.0, 1), ("redis away", 0.0, 0)]
)
def test_nobody_starts_while_nobody_can(tale: Tale, kind: str, ago: float, wrong: int) -> None:
    tale.fault(kind, "w1@chaos" if kind == "kill all" else "", 5.0 if kind == "redis away" else 0.0)
    tale.clock += ago
    pause(tale, "1", runs=False)
    assert tale.wrong() == ({"7 no cross-blocking": 1} if wrong else {})
    assert wrong or tale.excused() == {f"nobody ran: {kind}": 1}


def test_each_pause_of_a_key_is_judged(tale: Tale) -> None:
    tale.fault("redis away", seconds=5.0)
    pause(tale, "1", runs=False)
    tale.mend("redis away")
    tale.clock += 100
    pause(tale, "1", runs=False, again="'")
    assert tale.wrong() == {"7 no cross-blocking": 1}
    assert tale.excused() == {"nobody ran: redis away": 1}
