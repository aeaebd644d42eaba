"""The outbox: how grants reach another broker and ends reach a result backend, at least once, and run or are told once.

Also what the store writes into a message on its way back: position, held keys and fence, and no other byte.
"""

from __future__ import annotations

import json

import pytest

from celery_limits.message.header import Header, read_header
from celery_limits.store import Store
from celery_limits.store.audit import audit
from celery_limits.store.outcomes import Admitted, Duplicate, Parked, Released, Revoked
from tests.store.actors import (
    ANY,
    Clock,
    Worker,
    c,
    field_of,
    holders,
    line_at,
    live_on,
    names_in,
    r,
    raw_client,
    settle,
    used,
    wind_up,
)
from tests.store.model_message import Message
from tests.store.post import QUEUE, Post, list_of

A = c("a", 1)


@pytest.fixture
def w(store: Store) -> Worker:
    """A worker of a broker that the store can't write to, with t.n granted."""
    w = Worker(store, queue="")
    w.deliver("first.n", A)
    w.deliver("t.n", A)
    return w


def test_a_grant_is_claimed_published_settled_and_picked_up(store: Store, clock: Clock, w: Worker) -> None:
    released = w.finish("first.n")
    assert isinstance(released, Released)
    assert released.after.outbox == 1
    assert [(ticket, reason, message) for ticket, _, reason, message in store.claim()] == [
        ("t.n", None, b"message of t.n")
    ]
    assert store.claim() == (), "it is being published"
    settle(store, ["t.n"])
    assert field_of(store, "t.n", "kept") == "", "the broker has it now"
    assert audit(store) == []
    assert isinstance(w.deliver("t.n", A), Admitted)
    wind_up(clock, w)


def test_a_grant_that_is_published_into_our_own_queue_does_not_wait_anew(store: Store, clock: Clock) -> None:
    """Its ticket came through another broker; the outbox publishes it to an app that has moved to our transport."""
    w = Worker(store, queue="")
    w.deliver("first.n", A)
    message = Message("t.n", (A,), 0, False, QUEUE, None, None)
    assert isinstance(w.deliver("t.n", A, message=message.body), Parked)
    w.finish("first.n")
    (claimed,) = store.claim()
    assert (claimed.ticket, used(store, "a")) == ("t.n", 1)
    assert not Post(store).publish(QUEUE, list_of(0), message.body, *message.stamp(clock.now)), "it is in its queue"
    assert (field_of(store, "t.n", "state"), line_at(store, "a")) == ("granted", [])
    settle(store, ["t.n"])
    raw_client(store).delete(QUEUE, f"{store.prefix}call:{QUEUE}")
    assert isinstance(w.deliver("t.n", A), Admitted)
    wind_up(clock, w)


def test_the_outbox_is_worked_off_in_turn_and_by_the_batch(store: Store, clock: Clock) -> None:
    w, key = Worker(store, queue=""), c("k", 20)
    for i in range(40):
        w.deliver(f"t{i}.n", key)
    for i in range(20):
        w.finish(f"t{i}.n")
    store.pause("k")
    first, second = store.claim(15), store.claim(15)
    assert [entry.ticket for entry in (*first, *second)] == [f"t{i}.n" for i in range(20, 40)]
    store.resume("k")
    for entry in (*first, *second):
        w.deliver(entry.ticket, ANY)
    wind_up(clock, w)


def test_who_dies_between_claim_and_settle_is_followed_by_another(store: Store, clock: Clock, w: Worker) -> None:
    w.finish("first.n")
    assert len(store.claim(settle_within=2)) == 1
    live_on(clock, 1.9, w)
    assert store.claim() == ()
    live_on(clock, 0.2, w)
    assert len(store.claim()) == 1
    w.deliver("t.n", A)
    wind_up(clock, w)


def test_what_its_claimer_could_not_finish_is_claimed_again_at_once(store: Store, clock: Clock, w: Worker) -> None:
    """And counted: its first copy may have reached the broker all the same."""
    w.finish("first.n")
    failed = store.claim()
    (again,) = store.claim(again=failed)
    assert again.ticket == "t.n"
    assert store.claim(again=failed) == (), "an old claim frees nothing"
    w.deliver("t.n", A)
    assert store.claim(again=[again]) == (), "it runs"
    w.finish("t.n")
    assert isinstance(w.deliver("t.n", A), Duplicate)
    assert store.claim(again=[again]) == ()
    assert wind_up(clock, w) == []


def test_published_twice_runs_once_while_the_first_runs(store: Store, clock: Clock, w: Worker) -> None:
    w.finish("first.n")
    store.claim(settle_within=1)
    live_on(clock, 2, w)
    store.claim()
    assert isinstance(w.deliver("t.n", A), Admitted)
    assert isinstance(w.deliver("t.n", A), Duplicate)
    settle(store, ["t.n"])
    w.finish("t.n")
    assert isinstance(w.deliver("t.n", A), Duplicate)
    assert wind_up(clock, w) == []


def test_published_twice_runs_once_after_the_first_has_ended(store: Store, clock: Clock, w: Worker) -> None:
    w.finish("first.n")
    store.claim(settle_within=1)
    live_on(clock, 2, w)
    store.claim()
    w.deliver("t.n", A)
    w.finish("t.n")
    assert field_of(store, "t.n", "state") == "finished"
    assert isinstance(w.deliver("t.n", A), Duplicate), "the second copy finds that the first has run"
    live_on(clock, store.policy.revoke_ttl + 5, w)
    assert names_in(store, "task:*") == []
    wind_up(clock, w)


def test_delivered_before_it_was_settled(store: Store, clock: Clock, w: Worker) -> None:
    w.finish("first.n")
    store.claim()
    assert isinstance(w.deliver("t.n", A), Admitted)
    settle(store, ["t.n"])
    assert field_of(store, "t.n", "state") == "running"
    live_on(clock, 31, w)
    assert store.claim() == ()
    w.finish("t.n")
    assert names_in(store, "task:*") == []
    wind_up(clock, w)


def test_a_published_grant_that_nobody_picks_up_gives_its_slot_away(store: Store, clock: Clock, w: Worker) -> None:
    w.deliver("next.n", A)
    w.finish("first.n")
    store.claim()
    settle(store, ["t.n"])
    live_on(clock, store.policy.grant_timeout + 1, w)
    assert holders(store, "a") == {"next.n"}
    assert isinstance(w.deliver("t.n", A), Parked), "its message comes at last, and has its place"
    assert wind_up(clock, w) == ["next.n", "t.n"]


def test_a_grant_that_nobody_publishes_gives_its_slot_away_but_stays_to_be_published(
    store: Store, clock: Clock, w: Worker
) -> None:
    w.deliver("next.n", A)
    w.finish("first.n")
    live_on(clock, store.policy.grant_timeout + 1, w)
    assert holders(store, "a") == {"next.n"}
    assert {entry.ticket for entry in store.claim()} == {"t.n", "next.n"}
    assert isinstance(w.deliver("t.n", A), Parked)
    assert isinstance(w.deliver("next.n", A), Admitted)
    assert audit(store) == []
    assert wind_up(clock, w) == ["t.n"]


def test_cancelled_while_it_is_being_published(store: Store, clock: Clock, w: Worker) -> None:
    w.finish("first.n")
    (entry,) = store.claim()
    cancelled = store.cancel("t")
    assert [ended.ticket for ended in cancelled.ended] == ["t.n"]
    assert holders(store, "a") == set()
    settle(store, [entry])  # by the publisher
    assert isinstance(w.deliver("t.n", A), Revoked | Duplicate)
    live_on(clock, 31, w)
    settle(store, store.claim())
    assert names_in(store, "task:*") == []
    assert wind_up(clock, w) == []


def test_settling_what_is_not_there_changes_nothing(store: Store, clock: Clock, w: Worker) -> None:
    settle(store, ["first.n", "t.n", "never.seen", "not a ticket"])
    settle(store, [])
    assert field_of(store, "t.n", "state") == "waiting"
    assert wind_up(clock, w) == ["t.n"]


# -- what is written into a message ------------------------------------------------------------------------

_REST = (
    '"headers": {"lang": "py", "big": 123456789012345678901234567890, "f": 1.10, "é": "\\u00e9☃", "none": [], "o": {}}'
)


def _message(ticket: str, keys: list[str]) -> tuple[bytes, int]:
    """A message as a publisher would mark it: the store writes where `at`, `held` and `fence` stand in the header."""
    links = tuple(c(key, 1) for key in keys)
    start = json.dumps(Header(ticket=ticket, links=links).dump())
    head = '{"limits": ' + start[: start.index('"at"')]
    return (head + "}, " + _REST + "}").encode(), len(head.encode())


@pytest.mark.parametrize("dispatch", ["q", ""])
@pytest.mark.parametrize("key", ["plain", "sl/ash", 'qu"ote', "back\\slash", "ключ☃", "co:lon"])
def test_the_header_is_rewritten_and_every_other_byte_stays(
    store: Store, clock: Clock, dispatch: str, key: str
) -> None:
    w, chain = Worker(store, queue=dispatch), (c(key, 1), c("second", 1))
    w.deliver("first.n", c("second", 1))
    message, cut = _message("t.n", [key, "second"])
    w.deliver("t.n", *chain, message=message, cut=cut)
    w.finish("first.n")
    entry = w.fetch()[0] if dispatch else store.claim()[0]
    out = entry.message
    assert out.startswith(message[:cut])
    assert out.endswith(message[cut:])
    header = read_header(json.loads(out)["limits"])
    assert (header.at, header.held) == (2, (key, "second"))
    assert json.loads(out)["headers"] == json.loads("{" + _REST + "}")["headers"]
    w.deliver("t.n", *chain)
    wind_up(clock, w)


def test_a_rate_is_passed_but_not_held_and_nothing_held_is_an_empty_list(store: Store, clock: Clock) -> None:
    w, message = Worker(store), b'{"limits": {}}'
    w.deliver("first.n", r("api", "1/s"))
    w.deliver("t.n", r("api", "1/s"), message=message, cut=message.index(b"}"))
    live_on(clock, 2, w)
    (fetched,) = w.fetch()
    assert json.loads(fetched.message)["limits"] == {"at": 1, "held": [], "fence": 0}
    w.deliver("t.n", ANY)
    wind_up(clock, w)


def test_a_grant_taken_back_is_sent_as_one_that_starts_over(store: Store, clock: Clock) -> None:
    w, (message, cut) = Worker(store), _message("t.n", ["a"])
    w.deliver("first.n", A)
    w.deliver("t.n", A, message=message, cut=cut)
    w.finish("first.n")
    live_on(clock, store.policy.grant_timeout + 1, w)
    (fetched,) = w.fetch()
    header = read_header(json.loads(fetched.message)["limits"])
    assert (header.at, header.held) == (0, ())
    w.deliver("t.n", ANY)
    wind_up(clock, w)
