"""What can be declared where the newest wins, and how it travels."""

from __future__ import annotations

import inspect
import json
from datetime import timedelta
from typing import Any

import pytest

from celery_limits import Concurrency, Debounce, DeclarationError, FloatingConcurrency
from celery_limits.declare.chain import DebounceLink, declare, never_discarded, never_superseded, resolve_chain
from celery_limits.declare.trust import lowered
from celery_limits.errors import CorruptChain
from celery_limits.message.canvas import is_canvas_member
from celery_limits.message.header import Header, read_header

SIGNATURE = inspect.signature(lambda doc: None)


def links(*limits: Any) -> Any:
    return resolve_chain(declare("task", list(limits), SIGNATURE), ("d",), {})


@pytest.mark.parametrize("on_full", ["replace", "preempt"])
def test_one_waits_unless_more_may(on_full: Any) -> None:
    assert Concurrency("k", 1, on_full=on_full).max_waiting == 1
    assert Concurrency("k", 1, on_full=on_full, max_waiting=3).max_waiting == 3
    floating = FloatingConcurrency("k", default=1, refresh="shop:size", every=5, on_full=on_full)
    assert floating.max_waiting == 1


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Concurrency("k", 1, on_full="replace", max_waiting=0), "between 1 and"),
        (lambda: Debounce("k", 0), "quiet must be between"),
        (lambda: Debounce("k", "5"), "quiet must be seconds"),  # type: ignore[arg-type]
        (lambda: Debounce("k", True), "quiet must be seconds"),
        (lambda: Debounce("k", float("nan")), "quiet must be between"),
        (lambda: Debounce("k", 5, at_most=4), "at_most 4 is less than quiet 5"),
        (lambda: Debounce(3, 5), "the key must be"),  # type: ignore[arg-type]
    ],
)
def test_what_can_never_work(make: Any, why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        make()


def test_times_may_be_timedeltas() -> None:
    assert Debounce("k", timedelta(seconds=5), timedelta(minutes=1)) == Debounce("k", 5, 60)
    assert repr(Debounce("k", 5)) == "Debounce('k', 5.0)"


def test_two_limits_that_meet_on_one_key_must_agree() -> None:
    signature = inspect.signature(lambda a, b: None)
    with pytest.raises(DeclarationError, match="on_full must be the same"):
        declare("task", [Concurrency("k:{a}", 1, on_full="replace"), Concurrency("k:{b}", 1)], signature)
    with pytest.raises(DeclarationError, match="two kinds"):
        declare("task", [Concurrency("k:{a}", 1), Debounce("k:{b}", 1)], signature)


def test_links_travel() -> None:
    chain = links(Debounce("a:{doc}", 5, 60), Concurrency("b:{doc}", 1, on_full="preempt"))
    sent = json.loads(json.dumps(Header.fresh("t.n", chain).dump()))
    assert read_header(sent).links == chain
    sent["links"][1]["max_waiting"] = 0
    with pytest.raises(CorruptChain, match="lets at least one wait"):
        read_header(sent)


def test_a_member_of_a_canvas_and_a_retry_wait_as_ever() -> None:
    chain = links(
        Debounce("a:{doc}", 5), Concurrency("b:{doc}", 1, on_full="replace"), Concurrency("c", 1, max_waiting=2)
    )
    kept, replaced, bounded = never_superseded(chain)
    assert isinstance(kept, DebounceLink)
    assert kept.keep
    assert (replaced.on_full, replaced.max_waiting) == ("wait", None)  # type: ignore[union-attr]
    assert bounded == chain[2]
    retried = never_discarded(chain)
    assert retried[0] == kept
    assert retried[1] == replaced.model_copy(update={"begun": True})


@pytest.mark.parametrize(
    ("headers", "embed", "member"),
    [
        ({"group": None}, {"chord": None, "callbacks": None, "errbacks": None, "chain": None}, False),
        ({"group": "g"}, {}, True),
        ({}, {"chord": {"task": "x"}}, True),
        ({}, {"callbacks": [{"task": "x"}]}, True),
        ({}, {"errbacks": [{"task": "x"}]}, True),
        ({}, {"chain": [{"task": "x"}]}, True),
        ({}, None, False),
        ({}, "text", False),
    ],
)
def test_who_is_a_member_of_a_canvas(headers: Any, embed: Any, member: bool) -> None:
    assert is_canvas_member(headers, embed) is member


def test_a_header_that_is_not_trusted_changes_nothing_where_the_newest_wins() -> None:
    wins, waits = links(Concurrency("k", 1, on_full="replace")), links(Concurrency("k", 1))
    assert lowered(wins, waits) == wins
    assert lowered(waits, wins) == waits
