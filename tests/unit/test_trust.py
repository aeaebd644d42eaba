"""What an untrusted header may change: nothing but how little its own task accepts."""

from __future__ import annotations

import pytest

from celery_limits.declare.chain import ConcurrencyLink, FloatingLink, Link, RateLink
from celery_limits.declare.trust import lowered

OWN = ConcurrencyLink(key="a", limit=4, weight=2, max_waiting=10)
FLOATING = FloatingLink(key="f", default=4, every=30.0, refresh="shop:size", weight=2)
RATE = RateLink(key="r", rate="10/s", burst=5, cost=2)


def only(own: Link, claimed: Link) -> Link:
    (link,) = lowered((own,), (claimed,))
    return link


@pytest.mark.parametrize(("claimed", "limit"), [(3, 3), (2, 2), (4, 4), (5, 4), (10**9, 4)])
def test_a_limit_can_be_lowered_and_not_raised(claimed: int, limit: int) -> None:
    assert only(OWN, ConcurrencyLink(key="a", limit=claimed)) == OWN.model_copy(update={"limit": limit})


@pytest.mark.parametrize("claimed", [0, 1])
def test_a_limit_is_never_too_small_for_its_own_task(claimed: int) -> None:
    """It would wait for ever, and fill the line for those who come after it."""
    assert only(OWN, ConcurrencyLink(key="a", limit=claimed)) == OWN.model_copy(update={"limit": 2})


def test_a_declared_limit_of_0_stays_0() -> None:
    own = ConcurrencyLink(key="a", limit=0)
    assert only(own, ConcurrencyLink(key="a", limit=9)) == own


@pytest.mark.parametrize("weight", [1, 4])
def test_a_weight_is_what_the_worker_declares(weight: int) -> None:
    """A smaller one would take less than its share, a larger one that of others."""
    assert only(OWN, ConcurrencyLink(key="a", limit=4, weight=weight)) == OWN


def test_a_line_can_be_shortened_and_not_lengthened() -> None:
    assert only(OWN, ConcurrencyLink(key="a", limit=4, max_waiting=3)) == OWN.model_copy(update={"max_waiting": 3})
    assert only(OWN, ConcurrencyLink(key="a", limit=4, max_waiting=99)) == OWN
    assert only(OWN, ConcurrencyLink(key="a", limit=4)) == OWN
    discarding = only(OWN, ConcurrencyLink(key="a", limit=4, on_full="discard"))
    assert discarding == OWN.model_copy(update={"on_full": "discard"})
    assert only(discarding, ConcurrencyLink(key="a", limit=4)) == discarding


@pytest.mark.parametrize(
    "claimed",
    [
        RateLink(key="r", rate="1/h", burst=2),  # would push back the next token of everyone
        RateLink(key="r", rate="1000/s", burst=100),
        RateLink(key="r", rate="10/s", burst=500, cost=1),
        RateLink(key="r", rate="0/s", burst=1),
    ],
)
def test_a_rate_is_what_the_worker_declares(claimed: RateLink) -> None:
    assert only(RATE, claimed) == RATE


def test_a_refresh_function_is_what_the_worker_declares() -> None:
    claimed = FloatingLink(key="f", default=3, every=0.001, refresh="os:system", weight=1)
    assert only(FLOATING, claimed) == FLOATING.model_copy(update={"default": 3})


def test_links_can_be_neither_removed_added_reordered_nor_changed_in_kind() -> None:
    own = (OWN, FLOATING, RATE)
    assert lowered(own, (ConcurrencyLink(key="victim", limit=1),)) == own
    assert lowered(own, (RATE, FLOATING, OWN)) == own
    assert lowered(own, (RateLink(key="a", rate="1/h", burst=1), ConcurrencyLink(key="r", limit=1))) == own
