"""What a worker believes to hold, against what the store says."""

from __future__ import annotations

from celery_limits.lease.ledger import LOOKS, Ledger

HELD = {"t.1": 7}


def test_what_the_worker_is_done_with_is_given_back_at_the_second_look() -> None:
    ledger = Ledger()
    ledger.ask("t.1", 1)
    assert ledger.forgotten(HELD) == []
    ledger.ask_no_more("t.1", 1)
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == [("t.1", 7, True)]


def test_what_goes_back_does_so_though_the_store_was_asked_before_it_was_admitted() -> None:
    """The answer to the look is late: meanwhile it was admitted, that answer was lost, and its message was given back,
    which another worker has made the spare. Were it taken for done, the spare would go with it."""
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.ask_no_more("t.1", 1)
    assert ledger.forgotten({}) == []
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == [("t.1", 7, True)]


def test_what_was_given_back_is_not_done_if_a_call_of_before_admits_it_again() -> None:
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.enter("t.1", 6, 1)
    ledger.close("t.1", 6, back=True)
    assert ledger.forgotten({}) == []
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == [("t.1", 7, True)]


def test_what_the_store_never_says_to_run_is_not_remembered_for_ever() -> None:
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.ask_no_more("t.1", 1)
    for _ in range(LOOKS + 1):
        assert ledger.forgotten({}) == []
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == [("t.1", 7, False)]


def test_what_is_about_to_begin_is_kept_though_another_delivery_of_it_was_refused() -> None:
    """The answer to the first is late, and whoever gave its slots away meanwhile would let two run."""
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.ask("t.1", 2)
    ledger.ask_no_more("t.1", 2)  # it is a duplicate
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == []
    ledger.enter("t.1", 7, 1)
    assert ledger.forgotten(HELD) == []
    ledger.close("t.1", 7)
    assert "t.1" not in ledger


def test_another_admission_is_not_the_one_that_was_seen_before() -> None:
    ledger = Ledger()
    assert ledger.forgotten({"t.1": 7}) == []
    assert ledger.forgotten({"t.1": 8}) == []
    assert ledger.forgotten({"t.1": 8}) == [("t.1", 8, False)]


def test_what_nobody_ran_goes_back_though_another_delivery_of_it_was_refused() -> None:
    """The first is admitted, its answer lost, and its message given back; the second becomes the spare."""
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.ask("t.1", 2)
    ledger.ask_no_more("t.1", 1)
    ledger.ask_no_more("t.1", 2)
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == [("t.1", 7, True)]


def test_what_ran_is_done_though_another_delivery_of_it_was_refused_meanwhile() -> None:
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.enter("t.1", 7, 1)
    ledger.ask("t.1", 2)
    ledger.close("t.1", 7)  # it ends, and the store does not hear of it
    assert "t.1" in ledger
    assert ledger.forgotten(HELD) == []
    ledger.ask_no_more("t.1", 2)
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == [("t.1", 7, False)]


def test_what_was_admitted_since_and_nobody_ran_goes_back_though_another_delivery_of_it_ran() -> None:
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.enter("t.1", 6, 1)
    ledger.ask("t.1", 2)
    ledger.close("t.1", 6)
    ledger.ask_no_more("t.1", 2)
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == [("t.1", 7, True)]


def test_what_goes_back_does_so_though_another_delivery_of_it_was_not_asked_about() -> None:
    """1. The store is asked about the first delivery; it admits, and the answer is lost. 2. The connection is lost, so
    the message comes again, to this worker. 3. The store is known to be away, so it is not asked. 4. The connection is
    lost again, and another worker makes the message the spare of what this one seems to run. Taken for done, the spare
    would go with it."""
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.ask_no_more("t.1", 1)
    ledger.ask("t.1", 2)
    ledger.withdraw("t.1", 2)
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == [("t.1", 7, True)]


def test_what_celery_has_ended_is_done_though_it_was_to_go_back() -> None:
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.ask_no_more("t.1", 1)
    ledger.ask("t.1", 2)
    ledger.ask_no_more("t.1", 2, back=False)
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == [("t.1", 7, False)]


def test_what_has_run_is_done_though_another_delivery_of_it_was_refused_since() -> None:
    """Its release was not answered, its message came again, and the store keeps that as the spare of what it believes
    to run here. Were that to go back, the spare would run."""
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.enter("t.1", 7, 1)
    ledger.close("t.1", 7)
    ledger.ask("t.1", 2)
    ledger.ask_no_more("t.1", 2, back=True)
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == [("t.1", 7, False)]


def test_what_was_admitted_since_runs_on_when_the_delivery_before_it_ends() -> None:
    """Two copies of one message: the first ends, and the second is admitted in the same exchange, whose answers are
    entered before the end of the first is."""
    ledger = Ledger()
    ledger.ask("t.1", 1)
    ledger.enter("t.1", 6, 1)
    ledger.ask("t.1", 2)
    ledger.enter("t.1", 7, 2)
    ledger.close("t.1", 6)
    assert "t.1" in ledger
    assert ledger.forgotten(HELD) == []
    assert ledger.forgotten(HELD) == []
    ledger.close("t.1", 7)
    assert "t.1" not in ledger


def test_what_a_release_brings_along_is_not_given_back_before_its_answer_is_there() -> None:
    """The store has handed it off, and the answer that says so is slow."""
    ledger = Ledger()
    offer, later = ledger.offer(), 0
    for _ in range(3):
        assert ledger.forgotten(HELD) == []
        later = ledger.offer()  # sent when the ticket was seen already: it does not bring that
    ledger.enter("t.1", 7)
    ledger.offer_answered(offer)
    assert ledger.forgotten(HELD) == []
    assert later


def test_what_no_release_brings_along_is_given_back_though_others_are_under_way_by_now() -> None:
    ledger = Ledger()
    offer = ledger.offer()
    assert ledger.forgotten(HELD) == []
    ledger.offer()
    assert ledger.forgotten(HELD) == []
    ledger.offer_answered(offer)
    assert ledger.forgotten(HELD) == [("t.1", 7, False)]
