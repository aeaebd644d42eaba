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
    ledger.refused("t.1")  # the second is a duplicate
    assert ledger.forgotten(held) == []
    ledger.enter("t.1", 7)  # the first begins
    assert ledger.forgotten(held) == []


def test_another_admission_is_not_the_one_that_was_seen_before() -> None:
    ledger = Ledger()
    assert ledger.forgotten({"t.1": 7}) == []
    assert ledger.forgotten({"t.1": 8}) == []
    assert ledger.forgotten({"t.1": 8}) == [("t.1", 8, False)]


def test_what_nobody_ran_goes_back_though_another_delivery_of_it_was_refused() -> None:
    """Two deliveries of one ticket: the first is admitted and its answer lost; the second becomes the spare."""
    ledger, held = Ledger(), {"t.1": 7}
    ledger.enter("t.1")
    ledger.refused("t.1")  # the second is a duplicate
    assert ledger.forgotten(held) == []
    assert ledger.forgotten(held) == [("t.1", 7, True)]


def test_what_ran_after_all_is_done_though_another_delivery_of_it_was_refused() -> None:
    ledger, held = Ledger(), {"t.1": 7}
    ledger.enter("t.1")
    ledger.refused("t.1")
    ledger.enter("t.1", 7)  # the first is asked about again, and begins
    ledger.refused("t.1")
    assert "t.1" in ledger
    ledger.close("t.1")  # and ends, but the store does not hear of it
    assert ledger.forgotten(held) == []
    assert ledger.forgotten(held) == [("t.1", 7, False)]
