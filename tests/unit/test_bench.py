"""What the benches say is what was measured: the ledger loses nothing, and no figure is rounded to our favour."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.bench.report import Row, render
from tests.bench.rounds import Spread, spread, take_turns
from tests.bench.transport.fleet import Drain
from tests.bench.transport.ledger import Entry, Lane, Ledger


def test_a_ledger_has_the_bodies_of_all_threads_in_the_order_of_their_starts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")

    def run(starts: range) -> None:
        lane = Lane(ledger.directory, 10)
        for start in starts:
            lane.write(start, start + 1)

    run(range(0, 10, 2))
    thread = threading.Thread(target=run, args=(range(1, 10, 2),))
    thread.start()
    thread.join()
    assert ledger.count() == 10
    assert ledger.turn() == [Entry(start, start + 1) for start in range(10)]


def test_a_turn_of_the_ledger_has_only_what_came_since_the_last_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    lane = Lane(ledger.directory, 10)
    lane.write(1, 2)
    assert ledger.turn() == [Entry(1, 2)]
    lane.write(3, 4)
    assert ledger.count() == 1
    assert ledger.turn() == [Entry(3, 4)]
    assert ledger.turn() == []


def test_a_full_lane_is_an_error_and_not_a_lost_body(tmp_path: Path) -> None:
    lane = Lane(tmp_path, 1)
    lane.write(1, 2)
    with pytest.raises(OverflowError, match="1 bodies"):
        lane.write(3, 4)


def test_a_rate_counts_the_intervals_between_bodies() -> None:
    drained = Drain([Entry(0, 0), Entry(500_000_000, 0), Entry(1_000_000_000, 0)], cpu=0.0)
    assert drained.rate == 2.0


@pytest.mark.parametrize(
    ("median", "least", "shown", "verdict"),
    [(1.9999, True, "1.99 ", "missed"), (2.0, True, "2.00 ", "met"), (1.001, False, "1.01 ", "met")],
)
def test_a_figure_is_never_rounded_to_our_favour(median: float, least: bool, shown: str, verdict: str) -> None:
    row = Row("s", "n", Spread(median, median, median), "times", goal=2.0, least=least)
    assert row.cells()[1].startswith(shown)
    assert row.verdict == verdict
    assert verdict in render([row])


def test_every_variant_takes_its_turn_in_every_round_and_the_first_does_not_count() -> None:
    calls: list[str] = []

    def turn(name: str) -> dict[str, float]:
        calls.append(name)
        return {"cost": float(calls.count(name))}

    got = take_turns("t", {"a": lambda: turn("a"), "b": lambda: turn("b")}, rounds=3)
    assert got == {"a cost": [2.0, 3.0, 4.0], "b cost": [2.0, 3.0, 4.0]}
    assert [sorted(calls[i : i + 2]) for i in range(0, 8, 2)] == [["a", "b"]] * 4


def test_a_ratio_is_taken_within_each_round() -> None:
    assert spread([2.0, 40.0, 6.0], [1.0, 20.0, 3.0]) == Spread(2.0, 2.0, 2.0)
