"""What a worker believes to hold, against what the store says."""

from __future__ import annotations

from celery_limits.worker.exits import Ledger


def test_what_the_worker_is_done_with_is_given_back_at_the_second_look() -> None:
    ledger, held = Ledger(), {"t.1": 7}
    ledger.enter("t.1")
    assert ledger.forgotten(held) == []
    ledger.close("t.1", owed_back=True)
    assert ledger.forgotten(held) == []
    assert ledger.forgotten(held) == [("t.1", 7, True)]


def test_what_is_about_to_begin_is_not() -> None:
    """Two deliveries of one ticket: the store admits the first, and its answer to the second is there before."""
    ledger, held = Ledger(), {"t.1": 7}
    ledger.enter("t.1")
    ledger.close("t.1")  # the second is a duplicate
    assert ledger.forgotten(held) == []
    ledger.enter("t.1", 7)  # the first begins
    assert ledger.forgotten(held) == []


def test_another_admission_is_not_the_one_that_was_seen_before() -> None:
    ledger = Ledger()
    assert ledger.forgotten({"t.1": 7}) == []
    assert ledger.forgotten({"t.1": 8}) == []
    assert ledger.forgotten({"t.1": 8}) == [("t.1", 8, False)]
