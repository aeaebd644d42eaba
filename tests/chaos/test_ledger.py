"""The ledger of the chaos run, which many write to while others read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "ledger")
    for what in ("one", "two", "three"):
        ledger.note(what)
    return ledger


def whats(ledger: Ledger, start: int) -> list[str]:
    return [line.what for line in ledger.follow(start)]


def test_what_was_noted_since(ledger: Ledger) -> None:
    since = ledger.path.stat().st_size
    ledger.note("four")
    assert whats(ledger, since) == ["four"]
    assert whats(ledger, 0) == ["one", "two", "three", "four"]


def test_from_amid_a_line_and_up_to_one_that_is_being_written(ledger: Ledger) -> None:
    first = ledger.path.read_bytes().index(b"\n") + 1
    with ledger.path.open("ab") as file:
        file.write(b'["four", 1')
    assert whats(ledger, first) == ["two", "three"]
    assert whats(ledger, first + 1) == whats(ledger, first + 4) == ["three"]
    assert whats(ledger, first - 1) == ["two", "three"]
