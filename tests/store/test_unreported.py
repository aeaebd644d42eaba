"""Ends that could not be reported: deferred with growing pauses, counted once per failure, named by the audit, and gone
when they are settled."""

from __future__ import annotations

from celery_limits.store import Store
from celery_limits.store.outcomes import Claimed
from tests.store.actors import SECOND, Clock, Worker, c, names_in, raw_client, wind_up

A = c("a", 1)


def _ended(store: Store) -> Worker:
    w = Worker(store)
    w.deliver("first.n", A)
    w.deliver("t.n", A)
    store.cancel("t", settle_within=0)
    return w


def _claim(store: Store) -> Claimed | None:
    return next(iter(store.claim(settle_within=1)), None)


def _defer(store: Store, entry: Claimed) -> int:
    return store.defer(entry, "Down", pause=10, longest=35)


def test_the_pause_doubles_up_to_the_longest(store: Store, clock: Clock) -> None:
    w = _ended(store)
    for failures, pause in enumerate((10, 20, 35, 35), 1):
        entry = _claim(store)
        assert entry is not None
        assert _defer(store, entry) == failures
        clock.now += pause * SECOND - 100
        assert _claim(store) is None, f"it may be claimed before {pause} s have passed"
        clock.pass_(0.001)
    entry = _claim(store)
    assert entry is not None
    assert store.settle([entry]) == 1, "it could not be reported before"
    assert names_in(store, "unreported") == []
    wind_up(clock, w)


def test_a_repeated_call_counts_once_and_an_old_claim_defers_nothing(store: Store, clock: Clock) -> None:
    """The answer to the first call is lost; or another process has claimed the entry since."""
    w = _ended(store)
    old = _claim(store)
    assert old is not None
    clock.pass_(2)
    entry = _claim(store)
    assert entry is not None
    assert _defer(store, old) == 0
    assert names_in(store, "unreported") == []
    assert [_defer(store, entry), _defer(store, entry)] == [1, 0]
    assert store.settle([entry]) == 0, "the claim has ended with the deferral"
    clock.pass_(11)
    last = _claim(store)
    assert last is not None
    assert raw_client(store).hget(f"{store.prefix}unreported", "t.n").startswith(b"1 ")
    assert store.settle([last]) == 1
    wind_up(clock, w)


def test_what_runs_or_is_sent_is_not_deferred(store: Store, clock: Clock) -> None:
    """Only ends are: a message that can't be published is claimed again when its claim has run out."""
    w = Worker(store, queue="")
    w.deliver("first.n", A)
    w.deliver("t.n", A)
    w.finish("first.n")
    entry = _claim(store)
    assert entry is not None
    assert entry.reason is None
    assert _defer(store, entry) == 0
    store.settle([entry])
    w.deliver("t.n", A)
    wind_up(clock, w)
